"""The life of a broker: its services are built, started and stopped in order.

Its rooms are built on two stages: the choices of the process (ProcessContext), and the context of a member
(broker/context).

Start: lock → probe → look for signs that coordination went back (broker/rebuild) → identity → membership → views →
recovery of this folder's journals → journal → election → serve. The leader (broker/cluster/leader), which may be this
broker, does the work left by brokers that are gone.

Stop: 1. segments and subscriptions are handed over, while others live; 2. nothing more is accepted, and waiting
requests end; 3. imports end with their batch, and the audit sends its rest; 4. the commits under way end, everything is
flushed, and cursors are written (broker/maintenance); 5. tasks are cancelled, and the services end, the last one first;
6. the journal is closed, and if it is of no use its key says so before its content goes
(broker/recovery/journal_recovery); 7. the membership ends, so nobody recovers the journal too early; 8. the folder
is given back. The journal keeps the rest that a stop does not finish in time, and a recovery finds it there. A step
that fails is logged, and the next one follows.
"""

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any

from seaweedq import levels
from seaweedq.access.limits import Accounts
from seaweedq.broker.access.callers import AdminToken, Callers, Issuer
from seaweedq.broker.audit import Audit, AuditTopic, mode_of
from seaweedq.broker.backups import Backups
from seaweedq.broker.cluster.joining import Following, check_secret, cluster_of
from seaweedq.broker.cluster.leadership import Leadership
from seaweedq.broker.cluster.suspecting import OwnRevocations, Suspecting
from seaweedq.broker.context import Context
from seaweedq.broker.context import Readiness as Readiness
from seaweedq.broker.imports.importing import Importing
from seaweedq.broker.imports.reader_process import StartReader, no_reader
from seaweedq.broker.imports.runner import ReaderSetup
from seaweedq.broker.imports.writing import Writing
from seaweedq.broker.load import Load
from seaweedq.broker.log.entry_writer import EntryWriter
from seaweedq.broker.log.flusher import Log
from seaweedq.broker.log.memory_budget import Budget
from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.broker.maintenance import Maintenance
from seaweedq.broker.publish.publisher import Publishing
from seaweedq.broker.read.reading import Reading
from seaweedq.broker.rebuild import COMMAND, Look, Waiting, record_signs
from seaweedq.broker.rebuild.journals import JournalSearch
from seaweedq.broker.rebuild.rebuilding import Rebuilding
from seaweedq.broker.rebuild.signs import Sign, told
from seaweedq.broker.recovery.held_journals import HeldJournals
from seaweedq.broker.recovery.journal_recovery import Recovery
from seaweedq.broker.reshape.reshaping import Reshaping
from seaweedq.broker.retention.retention import Retaining
from seaweedq.broker.retention.topic_deletion import TopicDeletion, refuse_more
from seaweedq.broker.rpc.client import Peers
from seaweedq.broker.rpc.mirrors import ClusterMirrors
from seaweedq.broker.rpc.peer_keyring import Addresses, PeerKeyring, PeerVerifier, secrets_of
from seaweedq.broker.rpc.peer_keys import MakeKeys, make_keys
from seaweedq.broker.service import Service
from seaweedq.broker.streams.streaming import Streaming
from seaweedq.broker.subscriptions.dead_lettering import DeadLettering
from seaweedq.broker.subscriptions.subscribing import Subscribing
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.topics.cluster_quota import ClusterQuota
from seaweedq.broker.topics.schema_versions import SchemaVersions
from seaweedq.broker.topics.topic_admin import TopicAdmin
from seaweedq.broker.uploads.uploads import Uploading
from seaweedq.clock import Clock, CpuTimes, Ids, no_cpu
from seaweedq.concurrency.pools import Pools
from seaweedq.coordination.backup import Sealer, SealKeys
from seaweedq.coordination.cluster_level import ClusterLevel
from seaweedq.coordination.election import Election
from seaweedq.coordination.interface import Coordination
from seaweedq.coordination.membership import BrokerIdentity, LeaseThread, Membership, StartBackground
from seaweedq.coordination.roster import Roster
from seaweedq.coordination.seen_revisions import SeenRevisions
from seaweedq.errors import Fenced, NotReady, Restored, SeaweedqError, UnfitStore
from seaweedq.journal.interface import Journals, JournalSetup
from seaweedq.settings import Settings
from seaweedq.storage.file_cache import FileCache
from seaweedq.storage.generations import Generation, Generations
from seaweedq.storage.identity import known_identity
from seaweedq.storage.instrumented import InstrumentedStore
from seaweedq.storage.probe import probe
from seaweedq.traces import Traces


@dataclass(frozen=True)
class ProcessContext:
    """The backends that a broker's process chose for it, and how it and others reach each other: clients at `url`,
    and at `grpc_url` if there is one, brokers at `peer_url` if there is one.

    `secret` is the setting by which brokers of the cluster know each other; an empty one matches nothing. `make_keys`
    makes the keys of its secrets, which takes a while. `import_reader` starts the reader of an import. `background`
    runs work that must go on while the event loop stands still; None runs it on the loop. `pools` are the threads of
    the process, for its metrics. `cache` has ranges of files. `revoked` remembers over all lives of the process which
    leases others have ended. `cpu_s` counts the CPU time of the process. `traces` makes spans, if the settings ask for
    them.
    """

    settings: Settings
    store: InstrumentedStore
    coordination: Coordination
    journals: JournalSetup
    clock: Clock
    ids: Ids
    peers: Peers
    url: str
    revoked: OwnRevocations
    secret: str = ""
    import_reader: StartReader = no_reader
    background: StartBackground | None = LeaseThread
    pools: Pools = field(default_factory=Pools)
    peer_url: str = ""
    grpc_url: str = ""
    make_keys: MakeKeys = make_keys
    cache: FileCache | None = None
    cpu_s: CpuTimes = no_cpu
    traces: Traces | None = None


FILE_WORKS = 2  # imports and writes at once; each has a reader with up to MEMORY_BYTES
STOP_MARGIN_S = 1.5  # of shutdown_s, kept for the steps after the flushes
logger = logging.getLogger(__name__)


class Broker:
    """One life of one broker process. `lost` is set when its lease has ended, or it cannot go on.

    Its views and memory are there from the beginning, `context` and `recovery` once it is a member of the cluster, and
    the other services once it has a journal.
    """

    # Its rooms, in the order in which they are made.
    recovery: Recovery
    topics: TopicAdmin
    schemas: SchemaVersions
    log: Log
    load: Load
    publishing: Publishing
    reading: Reading
    subscribing: Subscribing
    reshaping: Reshaping
    uploading: Uploading
    importing: Importing
    writing: Writing
    dead_lettering: DeadLettering
    streaming: Streaming
    audit_topic: AuditTopic
    retaining: Retaining
    deletion: TopicDeletion
    leadership: Leadership
    suspecting: Suspecting

    def __init__(self, process: ProcessContext) -> None:
        settings, clock, ids = process.settings, process.clock, process.ids
        coordination = self.coordination = SeenRevisions(process.coordination, self._end_history)
        self.process = process
        self.readiness = Readiness()
        self.lost = asyncio.Event()
        self.budget = Budget(settings.memory_budget_bytes)
        self.keyring = PeerKeyring(secrets_of(process.secret), ids)
        self.roster = Roster(coordination, self._roster_changed, self.keyring.is_known)
        self.level = ClusterLevel(coordination, self.roster, self._level_changed)
        process.peers.begin(self.keyring, Addresses(self.roster, self.keyring), clock, ids)
        holdings, zone = process.journals.holdings, settings.zone
        self._mirrors = ClusterMirrors(coordination, self.roster, process.peers, holdings, process.url, zone)
        self.verifier = PeerVerifier(self.keyring, clock, ids, is_apart=bool(process.peer_url))
        self.catalog = Catalog(coordination, self._topic_closed)
        admin_token = AdminToken(settings.admin_token_path)
        admin_token.require()
        names = settings.client_certificate_name
        self.callers = Callers(coordination, clock, admin_token, Issuer.of(settings), names)
        self.generations = Generations(process.store, self._end_history)
        self.accounts = Accounts(clock.monotonic_s())
        self.audit = Audit(mode_of(settings), settings.name, clock)
        self.services: tuple[Service, ...] = ()  # those that run, in the order of their start
        self.waiting: Waiting | None = None  # of a broker that waits for a rebuild of coordination
        self._context: Context | None = None
        self._following: Following | None = None
        self._maintenance: Maintenance | None = None
        self._tasks: dict[asyncio.Task[Any], None] = {}  # in the order in which they began; none ends before this life
        self._was_seen = False  # its own key, by the watch
        self._stop_by_s: float | None = None  # monotonic, since the stop was first asked for

    @property
    def context(self) -> Context:
        """The context of a member of the cluster. Raises NotReady before it has joined."""
        if self._context is None:
            raise NotReady("the broker is starting")
        return self._context

    @property
    def id(self) -> str:
        """The id of this life in the cluster. Raises NotReady before the broker has joined."""
        return self.context.broker

    @property
    def restored(self) -> tuple[str, ...]:
        """The reasons of the signs that coordination went back, while this broker or topics wait for a rebuild."""
        if self.waiting:
            return self.waiting.found
        return tuple(reason for reason, _ in self.publishing.ownership.waiting_topics()) if self.readiness.ready else ()

    async def begin_to_wait(self) -> bool:
        """Ends the lives of all brokers if topics wait for a rebuild here, so that brokers wait for it. Returns False
        if none does. Raises Unavailable."""
        topics = self.publishing.ownership.waiting_topics() if self.readiness.ready else []
        if topics:
            signs = [Sign(reason, text) for reason, text in topics]
            await record_signs(self.process.coordination, [self.context.membership.compare()], signs)
        return bool(topics)

    def lock(self) -> None:
        """Locks this process's data folder; a member waits for its predecessor. Raises DataFolderInUse."""
        settings = self.process.settings
        stop_s = settings.shutdown_delay_s + settings.shutdown_s
        self.process.journals.home.lock(stop_s if settings.member else 0)

    async def start(self) -> None:
        """Does everything from the lock to the first request, or to the wait for a rebuild of coordination. Raises
        UnfitStore, InvalidRequest, Damaged, Unavailable."""
        process = self.process
        await probe(process.store.payloads, process.ids)
        exempt = process.revoked.exempt_s > 0
        urls = process.peer_url, process.grpc_url
        identity = BrokerIdentity.new(
            process.ids, process.settings.name, process.url, process.settings.zone, exempt, *urls
        )
        look = self._look()
        if signs := await look.signs():
            await record_signs(process.coordination, [look.seen], signs)  # leased keys raise revisions, and hide it
            await self._wait(signs, identity)
            return
        try:
            context = await self._join(await self._identify(identity), identity)
        except UnfitStore as error:
            if not await self._look().signs():
                raise
            logger.warning(
                "this broker cannot join the cluster yet, because a rebuild of coordination has started, or "
                "coordination seems to be lost or restored to an earlier state (%s); the broker will try again",
                error,
            )
            self.lost.set()  # the next life waits
            return
        self._following = Following(context)
        await self._run(self._following)
        await self.recovery.journals.recover_own()
        for service in self._open_services(context):
            await self._run(service)
        self.readiness.ready = True
        logger.info(
            "broker %s is ready: %d topics, store %s",
            self.id,
            len(self.catalog.names()),
            process.settings.store_path,
        )

    @property
    def _named(self) -> str:
        """The store and coordination, for people."""
        settings = self.process.settings
        kept = settings.data_dir if settings.coordination == "embedded" else settings.etcd_prefix
        return f"store {settings.store_path}, coordination {settings.coordination} ({kept})"

    def _look(self, sealer: Sealer | None = None) -> Look:
        """Returns the look for signs that coordination went back. Only backups' names are read without a `sealer`."""
        process = self.process
        backups = self._backups(sealer or Sealer(process.ids.nonce))
        return Look(process.coordination, process.store, self._journals(), backups)

    def _backups(self, sealer: Sealer) -> Backups:
        return Backups(self.process.store, sealer, self.generations, lambda: self.level.written)

    def _journals(self) -> Journals:
        seen = partial(attrgetter("generations.mine.number", "coordination.seen"), self)
        return self.process.journals.open(self.process.store, lambda: self.level.written, seen, self._mirrors)

    async def _wait(self, signs: Sequence[Sign], identity: BrokerIdentity) -> None:
        """Begins to wait for a rebuild of coordination, with the keys that backups and the port for brokers need."""
        process, keyring = self.process, self.keyring
        found, text = tuple(dict.fromkeys(one.reason for one in signs)), told(signs, self._named)
        logger.error("%s", text)
        of_store = await known_identity(process.store)
        assert of_store is not None, "a store without a cluster shows no sign of lost coordination"
        keyring.begin(await process.make_keys(keyring.secrets, of_store.cluster), identity.id)
        if identity.peer_url:
            await asyncio.to_thread(lambda: keyring.tls)
        journals = self._journals()
        rebuilding = Rebuilding(
            process.coordination,
            process.store,
            process.store.payloads,
            self._backups(self._sealer()),
            JournalSearch(journals, process.coordination),
            process.clock,
            process.ids,
            process.settings.lease_s,
            self._named,
        )
        look = self._look()
        place = process.journals.home.id

        async def is_over() -> bool:
            """Tells whether no sign is left."""
            return not await look.signs()

        self.waiting = Waiting(
            process.coordination, journals, rebuilding, place, process.url, found, is_over, self.lost.set
        )
        self.readiness.waits = Restored(text, command=COMMAND, found=list(found))
        await self.waiting.begin()

    async def _identify(self, identity: BrokerIdentity) -> str:
        """Checks that store, coordination and the other brokers' secret belong together. Returns the cluster's id."""
        process, keyring, named = self.process, self.keyring, self._named
        record = await cluster_of(self.coordination, process.store, process.ids, process.clock, named)
        cluster = record.cluster
        self.generations.begin(Generation(record.generation, record.nonce))
        self.catalog.generation = record.generation
        await self.level.load()
        keyring.begin(await process.make_keys(keyring.secrets, cluster), identity.id)
        if identity.peer_url:
            await asyncio.to_thread(lambda: keyring.tls)
        await self.roster.load()
        await check_secret(process.peers, self.roster)
        return cluster

    async def _join(self, cluster: str, identity: BrokerIdentity) -> Context:
        """Makes this broker a member of the cluster, whose journal is known before there is one."""
        context = self._context = self._member(cluster, identity)
        self.readiness.has_lease = context.membership.valid
        self.recovery = Recovery(context, self.process.journals.home.id)
        await self.recovery.journals.revoke()
        mine = self.generations.mine
        await context.membership.start(partial(self.level.admit, mine.number, mine.nonce))
        await self.recovery.registration.register()
        return context

    def _member(self, cluster: str, identity: BrokerIdentity) -> Context:
        process, settings = self.process, self.process.settings
        coordination, clock, level = self.coordination, process.clock, self.level
        prove = self.keyring.keys.prove
        membership = Membership(
            coordination, clock, identity, settings.lease_s, self._lose, background=process.background, prove=prove
        )
        limits_of, most = self.callers.view.limits_of, (settings.max_topics, settings.max_segments)
        return Context(
            settings=settings,
            store=process.store,
            coordination=coordination,
            clock=clock,
            ids=process.ids,
            peers=process.peers,
            url=process.url,
            readiness=self.readiness,
            level=level,
            roster=self.roster,
            callers=self.callers,
            catalog=self.catalog,
            quota=ClusterQuota(self.catalog, coordination, *most, limits_of),
            budget=self.budget,
            cluster=cluster,
            membership=membership,
            election=Election(coordination, membership),
            entries=EntryWriter(cluster, membership.broker, clock, process.ids, lambda: level.written),
            journals=self._journals(),
            generations=self.generations,
            backups=self._backups(self._sealer()),
            files=process.cache.over(process.store) if process.cache else process.store,
            traces=process.traces,
        )

    def _sealer(self) -> Sealer:
        """Returns the protection of backups by the secrets of this process, which has its keys by now."""
        keys = tuple(SealKeys.from_root(root.derive) for root in self.keyring.keys.roots)
        return Sealer(self.process.ids.nonce, keys, self.process.settings.store_in_data_dir)

    def _open_services(self, context: Context) -> tuple[Service, ...]:
        """Makes the journal, which is empty, and all that needs one. Returns the services in the order of their start:
        the recovery is complete before the leader may assign segments to this broker, or this broker leads."""
        self._open_log(context)
        self._open_rooms(context, self.process, self.log)
        self.leadership = Leadership(
            context,
            self.accounts,
            self.recovery,
            self.load,
            self.reshaping.planner,
            self.retaining,
            self.topics,
            self.schemas,
            self.deletion,
        )
        self.suspecting = Suspecting(context, self.process.revoked, self.reading)
        self._maintenance = Maintenance(context, self.log, self.subscribing.dispatcher)
        held = HeldJournals(self.process.journals.holdings, context.journals, context.coordination, context.roster)
        return (
            self._maintenance,
            self.load,
            self.publishing,
            self.subscribing,
            self.reshaping,
            self.dead_lettering,
            self.audit_topic,
            self.uploading,
            self.importing,
            self.writing,
            self.streaming,
            self.reading,
            self.retaining,
            held,
            self.recovery,
            self.leadership,
            self.suspecting,
        )

    def _open_log(self, context: Context) -> None:
        """Makes the journal and the log, and the changes of topics: rooms below the context."""
        self.topics = TopicAdmin(
            context.catalog,
            context.roster,
            context.membership,
            context.clock,
            context.coordination,
            context.store,
            context.entries,
            context.settings.publish_timeout_s,
            context.quota,
            self.generations.check,
            context.changes,
        )
        self.schemas = SchemaVersions(
            context.catalog, context.coordination, context.store, context.entries, context.changes, context.clock
        )
        self.log = Log(
            context.journals.create(context.broker),
            context.membership.valid,
            context.entries,
            context.budget,
            context.settings.memory_cache_bytes,
            context.clock,
            lambda segment: self.reshaping.grown(segment),
            self._segment_fenced,
            context.generations.check,
            context.traces,
        )

    def _open_rooms(self, context: Context, process: ProcessContext, log: Log) -> None:
        """Makes the rooms of topics, each on those above it."""
        self.load = Load(context, lambda: self.leadership.autoscaler.hot, self.process.cpu_s)
        self.publishing = publishing = Publishing(context, log)
        self.reading = reading = Reading(context, publishing.ownership, log, self.load)
        self.subscribing = subscribing = Subscribing(context, reading, log)
        self.reshaping = Reshaping(context, log, publishing, self.load)
        self.uploading = Uploading(context, self.keyring, reading)
        uploads = self.uploading.uploads
        readers = ReaderSetup(process.import_reader, context.settings.home, asyncio.Semaphore(FILE_WORKS))
        self.importing = Importing(context, readers, publishing, reading, uploads)
        self.writing = Writing(context, readers, publishing, reading, uploads)
        self.dead_lettering = DeadLettering(
            context, self.topics, self.schemas, publishing, reading, subscribing, self.uploading
        )
        self.streaming = Streaming(context, reading, subscribing, self.uploading)
        self.audit_topic = AuditTopic(self.audit, context.catalog, self.topics, publishing.publisher, context.broker)
        self.retaining = Retaining(context, log, publishing, reading, subscribing)
        self.deletion = TopicDeletion(
            context.catalog,
            self.topics,
            reading.positions,
            log,
            self.reshaping.reshaper,
            (self.importing, self.writing),
            uploads,
            self.generations.check,
        )

    async def _run(self, service: Service) -> None:
        """Begins a service, whose tasks this life does not go on without."""
        self.services += (service,)
        for name, work in (await service.run()).items():
            task = asyncio.create_task(work, name=name)
            self._tasks[task] = None
            task.add_done_callback(self._ended)

    def leave(self) -> None:
        """Sends new clients elsewhere, and those who listen to streams: they need not wait for the end."""
        self.readiness.leaving = True
        if self.readiness.ready:
            self.streaming.begin_stop()

    async def drain(self) -> None:
        """Hands over segments and subscriptions to others, as far as they live and the time for a stop allows."""
        readiness = self.readiness
        if readiness.draining or not readiness.ready or self.lost.is_set() or len(self.roster.brokers) < 2:
            return
        readiness.draining = True
        self.suspecting.begin_stop()
        try:
            async with asyncio.timeout(self._left_s()):
                handed = [service.hand_over() for service in self.services]
                for error in filter(None, await asyncio.gather(*handed, return_exceptions=True)):
                    raise error  # once all have ended
        except (TimeoutError, SeaweedqError) as error:
            logger.warning(
                "this broker could not hand over all of its segments and subscriptions (%s); other "
                "brokers will recover the rest",
                str(error) or "out of time",
            )
        except Exception:  # the stop goes on, whatever has happened
            logger.exception(
                "this broker could not hand over all of its segments and subscriptions; other "
                "brokers will recover the rest"
            )

    def _left_s(self) -> float:
        """Returns the time that is left of `shutdown_s`, which the first call starts."""
        now_s = self.process.clock.monotonic_s()
        if self._stop_by_s is None:
            self._stop_by_s = now_s + self.process.settings.shutdown_s - STOP_MARGIN_S
        return max(0.5, self._stop_by_s - now_s)

    def begin_stop(self) -> None:
        """Accepts nothing more, and ends waiting requests."""
        self.readiness.stopping = True
        self._left_s()
        if self.readiness.ready:
            for service in self.services:
                service.begin_stop()
        for topic in filter(None, map(self.catalog.get, self.catalog.names())):
            topic.signal.wake()

    async def stop(self) -> None:
        """Flushes, checkpoints and leaves, within `shutdown_s` of `begin_stop`. A broker that was never ready leaves as
        well, so that nobody waits for its lease. A step that fails is logged, and the next one follows."""
        self.begin_stop()
        try:
            clean = await self._flush_all()
            if self.waiting:
                await self._step(self.waiting.stop())
            if self._context:
                await self._leave(self._context, clean)
            await self._step(self.process.peers.close())
        finally:
            self.process.journals.home.release()

    async def _flush_all(self) -> bool:
        """Returns whether the journal is of no use any more."""
        if not self.readiness.ready:
            return False
        self.readiness.ready = False
        try:
            async with asyncio.timeout(self._left_s()):
                return not self.lost.is_set() and await self._put_away()
        except TimeoutError:
            logger.warning(
                "could not flush all messages in time; the messages that were not flushed will be "
                "recovered from the journal"
            )
        except Exception:
            logger.exception(
                "could not flush all messages; the messages that were not flushed will be recovered from the journal"
            )
        return False

    async def _put_away(self) -> bool:
        """Brings everything into files and cursors. Returns whether the journal is of no use any more."""
        assert self._maintenance is not None
        await asyncio.gather(self.importing.hand_over(), self.writing.hand_over())
        await self.audit_topic.send_rest()
        return await self._maintenance.put_away()

    async def _leave(self, context: Context, clean: bool) -> None:
        """Ends all work and the membership. The journal is closed before the lease ends: nobody recovers it too
        early."""
        await self._step(self._end_work())
        if self._maintenance:
            await self._step(self._close_journal(clean))
        await self._step(context.membership.stop())

    async def _close_journal(self, clean: bool) -> None:
        log = self.log
        await log.journal.close()
        if clean:
            log.journal.release(log.commit.committed + 1)
            await self.recovery.registration.retire(log.journal)

    async def _end_work(self) -> None:
        """Cancels all tasks, and ends the services, the last one first."""
        tasks, self._tasks = self._tasks, {}
        for task in tasks:
            task.cancel()
        services, self.services = self.services, ()
        for service in reversed(services):
            await self._step(service.stop())
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _step(self, work: Awaitable[Any]) -> None:
        """Does a step of the stop. One that fails is logged."""
        try:
            await work
        except Exception:
            logger.exception("a shutdown step failed; continuing with the next one")

    def _topic_closed(self, topic: Topic) -> None:
        """Listens to the catalog: the topic is being deleted, or gone."""
        refuse_more(topic)
        if self.process.cache:
            self.process.cache.forget(f"topics/{topic.name}/")
        if self.readiness.ready:
            for service in self.services:
                service.forget(topic)

    def _roster_changed(self) -> None:
        """Listens to the roster: brokers or journals have come or gone."""
        self.accounts.set_brokers(self.roster.living)
        if self.readiness.ready:
            self.subscribing.dispatcher.end_streams(self.roster.alive)
        if self._maintenance:
            self.leadership.leader.wake()
            self.suspecting.wake()
        if self._following:
            self._following.guard.check()
        if self._context:
            self._check_own_key()

    def _check_own_key(self) -> None:
        """Ends this life as soon as its key has gone: others may do its work by now, or soon."""
        is_there = self.roster.alive(self.id)
        if self._was_seen and not is_there:
            self._lose_lease("its key no longer exists in coordination")
        self._was_seen = self._was_seen or is_there

    def _level_changed(self) -> None:
        """Listens to the cluster's level."""
        if self._context is None:
            return
        if self.level.level > levels.HIGHEST:
            self._lose(f"the cluster has format level {self.level.level}, which this broker cannot read")
        if not self.level.serves(self.generations.mine.number, self.generations.mine.nonce):
            self._lose_lease("the cluster's record has another generation, or a rebuild has stopped all brokers")
        if self._following:
            self._following.guard.check()

    def _lose_lease(self, why: str) -> None:
        """Ends this life if others act as though its lease had ended: from here nothing is answered."""
        self.context.membership.end()
        self._lose(why)

    def _end_history(self, why: str) -> None:
        """Ends this life if coordination is not the one in which it joined, or went back. One that is joining ends by
        the error that its caller gets."""
        if self._context is not None:
            self._lose_lease(why)

    def _lose(self, why: str = "its lease has expired") -> None:
        """Ends this life: nothing may be acknowledged any more, and the process begins again under a new id."""
        if not self.lost.is_set():
            revoked = self.context.membership.was_revoked
            more = self.process.revoked.add() if revoked else ""
            logger.warning("broker %s is no longer a member of the cluster, and is stopping: %s%s", self.id, why, more)
        self.begin_stop()
        self.lost.set()

    def _segment_fenced(self, segment: OpenSegment, error: Fenced) -> None:
        """Listens to the flusher: another broker has written to a segment of this one, which it believes dead."""
        topic = self.catalog.get(segment.topic)
        known = self.catalog.records(topic).get(segment.id) if topic else None
        if known and known.record.owner == self.id:
            self._lose_lease(f"another broker took over segment {segment.id} of topic {segment.topic!r}: {error}")

    def _ended(self, task: asyncio.Task[Any]) -> None:
        """Ends the life with a task that has ended by itself, also by a cancellation that came from inside."""
        if task not in self._tasks:  # it was ended
            return
        del self._tasks[task]
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Fenced):
            self._lose_lease(str(error))
            return
        logger.error("%s ended unexpectedly", task.get_name(), exc_info=error)
        self._lose(f"its {task.get_name()} has ended")

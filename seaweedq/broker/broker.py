"""The life of a broker: its services (broker/services) are built, started and stopped in named steps.

Start: lock → probe → identity → membership → views → recovery of this folder's journals → journal → election → serve.
The leader (broker/leader/leader), which may be this broker, does what is to be done for brokers that are gone.
Stop: drain (hand over, while others live) → refuse → quiet → flush → checkpoint → close the journal → leave.
The journal keeps what a stop does not finish in time, and a recovery finds it there.
"""

import asyncio
import logging
from collections.abc import Awaitable, Coroutine
from typing import Any

from seaweedq.broker.cluster_identity import check_secret, cluster_of
from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.broker.readiness import Readiness
from seaweedq.broker.services import Environment, Joined, Serving
from seaweedq.broker.topic_deletion import refuse_more
from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.wiring import build_core, build_joined, build_serving, identity_of
from seaweedq.coordination.membership import BrokerIdentity
from seaweedq.coordination.unreadable import NOTED
from seaweedq.errors import Fenced, NotReady, SeaweedqError
from seaweedq.levels import HIGHEST
from seaweedq.storage.level_marks import marked_level
from seaweedq.storage.probe import probe

STOP_MARGIN_S = 1.5  # of shutdown_s, kept for what comes after the flushes
logger = logging.getLogger(__name__)


class Broker:
    """One life of one broker process. `lost` is set when its lease has ended, or it cannot go on."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.readiness = Readiness(self._has_lease)
        self.core = build_core(environment, self._topic_closed, self._roster_changed, self._level_changed)
        self.lost = asyncio.Event()
        self._joined: Joined | None = None
        self._serving: Serving | None = None
        self._tasks: dict[asyncio.Task[Any], None] = {}  # in the order in which they began; none ends before this life
        self._was_seen = False  # its own key, by the watch
        self._stop_by_s: float | None = None  # monotonic, since the stop was first asked for

    @property
    def joined(self) -> Joined:
        """The services of a member of the cluster. Raises NotReady before it has joined."""
        if self._joined is None:
            raise NotReady("the broker is starting")
        return self._joined

    @property
    def serving(self) -> Serving:
        """The services that need a journal. Raises NotReady before there is one."""
        if self._serving is None:
            raise NotReady("the broker is starting")
        return self._serving

    @property
    def id(self) -> str:
        """The id of this life in the cluster. Raises NotReady before the broker has joined."""
        return self.joined.membership.broker

    def lock(self) -> None:
        """Locks this process's data folder; a member waits for its predecessor. Raises DataFolderInUse."""
        settings = self.environment.settings
        stop_s = settings.shutdown_delay_s + settings.shutdown_s
        self.environment.journals.home.lock(stop_s if settings.member else 0)

    async def start(self) -> None:
        """Does everything from the lock to the first request. Raises UnfitStore, InvalidRequest, Damaged,
        Unavailable."""
        await probe(self.environment.store.payloads, self.environment.ids)
        identity = identity_of(self.environment)
        joined = await self._join(await self._identify(identity), identity)
        await self._follow_views()
        await joined.recovery.recover_own()
        serving = self._open_journal(joined)
        await self._open(joined)
        await self._lead(joined, serving)
        await self._suspect(joined, serving)
        self.readiness.ready = True
        logger.info(
            "broker %s is ready: %d topics, store %s",
            joined.membership.broker,
            len(self.core.catalog.names()),
            self.environment.settings.store_path,
        )

    async def _identify(self, identity: BrokerIdentity) -> str:
        """Checks that store, coordination and the other brokers' secret belong together. Returns the cluster's id."""
        environment, roster = self.environment, self.core.roster
        store, coordination = environment.settings.store_path, environment.settings.coordination
        kept = environment.settings.data_dir if coordination == "embedded" else environment.settings.etcd_prefix
        named = f"store {store}, coordination {coordination} ({kept})"
        cluster = await cluster_of(
            environment.coordination, environment.store, environment.ids, environment.clock, named
        )
        await self.core.level.load()
        trust = self.core.trust
        marked = await marked_level(environment.store) if not trust.is_on else 0
        trust.begin(await environment.make_keys(trust.secrets, cluster), identity.id, marked)
        if identity.peer_url:
            await asyncio.to_thread(lambda: trust.tls)
        trust.tell()
        await roster.load()
        await check_secret(self.environment.peers, roster)
        return cluster

    async def _join(self, cluster: str, identity: BrokerIdentity) -> Joined:
        joined = self._joined = build_joined(self.environment, self.core, cluster, identity, self._lose)
        await joined.recovery.revoke()
        await joined.membership.start(self.core.level.admit)
        await joined.registration.register()
        return joined

    async def _follow_views(self) -> None:
        roster, catalog, level, callers = self.core.roster, self.core.catalog, self.core.level, self.core.callers
        self._spawn(level.follow(await level.load()), "cluster level")
        self._spawn(self.joined.guard.run(), "guard of the level")
        self._spawn(roster.follow(await roster.load()), "roster")
        self._spawn(catalog.follow(await catalog.load()), "catalog")
        self._spawn(callers.view.follow(await callers.view.load()), "principals and tokens")
        self._spawn(callers.look_often(self.joined.membership.valid), "rights of those who wait")

    def _open_journal(self, joined: Joined) -> Serving:
        serving = self._serving = build_serving(self.environment, self.core, joined, self.readiness)
        serving.log.flusher.fenced = self._segment_fenced
        self._spawn(serving.log.commit.run(), "group commit")
        self._spawn(serving.reshaping.reshaper.run(), "reshaping")
        self._spawn(serving.subscribing.handoff.run(), "handover")
        self._spawn(serving.subscribing.reports.run(), "reports of waits")
        self._spawn(serving.letters.run(), "dead letters")
        if self.core.audit.mode == "topic":
            self._spawn(serving.audit.run(), "audit")
        self._spawn(serving.loads.run(), "loads")
        self._spawn(serving.maintenance.tick_often(), "ticks")
        self._spawn(serving.maintenance.checkpoint_often(), "checkpoints")
        self._spawn(serving.imports.look_often(), "imports")
        self._spawn(joined.recovery.recover_left_often(), "journals left here")
        self._spawn(NOTED.look_often(self.environment.coordination), "unreadable records")
        return serving

    async def _open(self, joined: Joined) -> None:
        """Recovery is complete: from now on the leader may assign segments to this broker."""
        if not await joined.membership.open():
            raise NotReady("this broker's lease expired while it was starting")
        await self.core.roster.load()

    async def _lead(self, joined: Joined, serving: Serving) -> None:
        """Stands for election. A broker that leads at once does its first round before it serves."""
        await joined.election.campaign()
        self._keep(joined.election.start())
        if joined.election.is_leader:
            await serving.leading.leader.round()
        self._spawn(serving.leading.leader.run(), "leader")
        self._spawn(serving.leading.limits.run(), "split of limits")

    async def _suspect(self, joined: Joined, serving: Serving) -> None:
        """Begins to look after the others, and to be looked after."""
        suspecting = serving.suspecting
        self._spawn(suspecting.marks.follow(await suspecting.marks.load()), "marks of suspicion")
        self._spawn(suspecting.greeter.run(), "greetings")
        self._spawn(suspecting.revoker.run(), "suspicions")
        if joined.membership.is_spared:
            self._spawn(self.environment.revoked.end_sparing(joined.membership), "end of sparing")

    def leave(self) -> None:
        """Sends new clients elsewhere, and those who listen to streams: they need not wait for the end."""
        self.readiness.leaving = True
        if self.readiness.ready:
            self.serving.streams.feeds.end()

    async def drain(self) -> None:
        """Hands over what this broker has to others, as far as they live and the time for a stop allows."""
        readiness = self.readiness
        if readiness.draining or not readiness.ready or self.lost.is_set() or len(self.core.roster.brokers) < 2:
            return
        readiness.draining = True
        serving = self.serving
        serving.suspecting.greetings.leave()
        try:
            async with asyncio.timeout(self._left_s()):
                await asyncio.gather(
                    serving.subscribing.handoff.leave(), serving.drain.hand_over(), serving.imports.leave()
                )
        except (TimeoutError, SeaweedqError) as error:
            logger.warning(
                "could not hand over all segments and subscriptions; other brokers recover them: %s",
                str(error) or "out of time",
            )
        except Exception:  # the stop goes on, whatever has happened
            logger.exception("could not hand over all segments and subscriptions; other brokers recover them")

    def _left_s(self) -> float:
        """Returns the time that is left of `shutdown_s`, which the first call starts."""
        now_s = self.environment.clock.monotonic_s()
        if self._stop_by_s is None:
            self._stop_by_s = now_s + self.environment.settings.shutdown_s - STOP_MARGIN_S
        return max(0.5, self._stop_by_s - now_s)

    def begin_stop(self) -> None:
        """Takes nothing more, and sends home everybody who waits."""
        self.readiness.stopping = True
        self._left_s()
        if self.readiness.ready:
            self.serving.suspecting.greetings.leave()
            self.serving.streams.feeds.end()
            self.serving.subscribing.dispatcher.close()
            self.serving.imports.begin_stop()
        catalog = self.core.catalog
        for topic in filter(None, map(catalog.find, catalog.names())):
            topic.signal.wake()

    async def stop(self) -> None:
        """Flushes, checkpoints and leaves, within `shutdown_s` of `begin_stop`. A broker that was never ready leaves as
        well, so that nobody waits for its lease. A step that fails is logged, and the next one follows."""
        self.begin_stop()
        try:
            clean = await self._flush_all()
            if self._joined:
                await self._leave(self._joined, clean)
            await self._step(self.environment.peers.close())
        finally:
            self.environment.journals.home.release()

    async def _flush_all(self) -> bool:
        """Returns whether the journal is of no use any more."""
        if not self.readiness.ready:
            return False
        self.readiness.ready = False
        try:
            async with asyncio.timeout(self._left_s()):
                return not self.lost.is_set() and await self._put_away(self.serving)
        except TimeoutError:
            logger.warning("could not flush all messages in time; they are recovered from the journal later")
        except Exception:
            logger.exception("could not flush all messages; they are recovered from the journal later")
        return False

    async def _step(self, work: Awaitable[Any]) -> None:
        """Does a step of the stop, whatever comes of it."""
        try:
            await work
        except Exception:
            logger.exception("a step of the stop failed; the next one follows")

    async def _put_away(self, serving: Serving) -> bool:
        """Brings everything into files and cursors. Returns whether the journal is of no use any more."""
        log, dispatcher = serving.log, serving.subscribing.dispatcher
        await serving.imports.leave()
        await serving.audit.send_rest()
        log.commit.close()
        await log.commit.quiet()
        flushes = [log.flusher.flush(segment) for segment in log.dirty]
        for outcome in await asyncio.gather(*flushes, dispatcher.checkpoint(), return_exceptions=True):
            if isinstance(outcome, BaseException):
                logger.error("a flush or a checkpoint at stop failed: %s", outcome)
        return not any(segment.pin is not None for segment in log.dirty) and dispatcher.pin is None

    async def _leave(self, joined: Joined, clean: bool) -> None:
        """Ends all work and the membership. The journal is closed before the lease ends: nobody recovers it too
        early."""
        await self._step(self._end_work(self._serving) if self._serving else self._end_tasks())
        await self._step(joined.uploads.close())
        if self._serving:
            await self._step(self._close_journal(joined, self._serving, clean))
        await self._step(joined.election.stop())
        await self._step(joined.membership.stop())

    async def _close_journal(self, joined: Joined, serving: Serving, clean: bool) -> None:
        log = serving.log
        await log.journal.close()
        if clean:
            log.journal.release(log.commit.committed + 1)
            await joined.registration.retire(log.journal)

    async def _end_work(self, serving: Serving) -> None:
        serving.reading.readables.close()
        await serving.imports.stop()
        await asyncio.gather(serving.reshaping.reshaper.stop(), serving.reshaping.roller.stop())
        await self._end_tasks(serving.log.flusher.stop())
        await serving.leading.leader.stop()
        await serving.leading.requested.stop()

    async def _end_tasks(self, *others: Coroutine[Any, Any, Any]) -> None:
        tasks, self._tasks = self._tasks, {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *others, return_exceptions=True)

    def _has_lease(self) -> bool:
        return self._joined is not None and self._joined.membership.valid()

    def _topic_closed(self, topic: Topic) -> None:
        """Listens to the catalog: the topic is being deleted, or gone."""
        refuse_more(topic)
        if self.readiness.ready:
            self.serving.closing.forget(topic)

    def _roster_changed(self) -> None:
        """Listens to the roster: brokers or journals have come or gone."""
        self.core.accounts.live(self.core.roster.living)
        if self._serving:
            self._serving.leading.leader.wake()
            self._serving.suspecting.greeter.wake()
            self._serving.suspecting.revoker.wake()
        if self._joined:
            self._joined.guard.look()
            self._look_for_own_key()

    def _look_for_own_key(self) -> None:
        """Ends this life as soon as its key has gone: others may do its work by now, or soon."""
        is_there = self.core.roster.alive(self.id)
        if self._was_seen and not is_there:
            self._lose_lease("its key has gone from coordination")
        self._was_seen = self._was_seen or is_there

    def _level_changed(self) -> None:
        """Listens to the cluster's level."""
        self.core.roster.judge()
        if self._joined is None:
            return
        if self.core.level.level > HIGHEST:
            self._lose(f"the cluster has level {self.core.level.level}, which it does not read")
        self._joined.guard.look()

    def _lose_lease(self, why: str) -> None:
        """As `_lose`, where others were seen to act as if the lease had ended: from here nothing is answered."""
        self.joined.membership.end()
        self._lose(why)

    def _lose(self, why: str = "its lease has expired") -> None:
        """Ends this life: nothing may be acknowledged any more, and the process begins again under a new id."""
        if not self.lost.is_set():
            revoked = self.joined.membership.was_revoked
            more = self.environment.revoked.note() if revoked else ""
            logger.warning("%s is no longer a member of the cluster and stops: %s%s", self.id, why, more)
        self.begin_stop()
        self.lost.set()

    def _segment_fenced(self, segment: OpenSegment, error: Fenced) -> None:
        """Listens to the flusher: another broker has written where this one owns the segment. It is believed dead."""
        topic = self.core.catalog.find(segment.topic)
        known = self.core.catalog.records(topic).get(segment.id) if topic else None
        if known and known.record.owner == self.id:
            self._lose_lease(f"segment {segment.id} of {segment.topic!r} was taken: {error}")

    def _spawn(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        self._keep(asyncio.create_task(work, name=name))

    def _keep(self, task: asyncio.Task[Any]) -> None:
        """Remembers a task of this life, which does not go on without it."""
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        """Ends the life with a task that has ended by itself, also by a cancellation that came from inside."""
        if task not in self._tasks:  # it was ended
            return
        del self._tasks[task]
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Fenced):
            self._lose_lease(str(error))
            return
        logger.error("%s ended unforeseen", task.get_name(), exc_info=error)
        self._lose(f"its {task.get_name()} has ended")

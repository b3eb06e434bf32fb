"""Building the services of a broker, a phase at a time. It only makes objects; broker/broker has the order.

A phase needs what an earlier one has found out: a member the cluster's id and the id of its data folder, what serves a
journal, which must not exist before the journals of earlier lives are recovered.
"""

from collections.abc import Callable

from seaweedq.access.accounts import Accounts
from seaweedq.broker.access.admin_token import AdminToken
from seaweedq.broker.access.callers import Callers
from seaweedq.broker.audit.audit import Audit, mode_of
from seaweedq.broker.audit.topic import AuditTopic
from seaweedq.broker.cluster_level import ClusterLevel
from seaweedq.broker.drain import Drain
from seaweedq.broker.imports.record_store import ImportRecords
from seaweedq.broker.imports.runner import ImportRunner, ReaderSetup
from seaweedq.broker.imports.service import Imports, UploadClaims
from seaweedq.broker.journal_registration import JournalRegistration
from seaweedq.broker.leader_wiring import build_leading
from seaweedq.broker.letters.letters import DeadLetters
from seaweedq.broker.letters.payload_copies import PayloadCopies
from seaweedq.broker.letters.target import LetterTopics
from seaweedq.broker.level_rise import LevelGuard, LevelRise
from seaweedq.broker.load.meters import Loads
from seaweedq.broker.log.dirty_segments import DirtySegments
from seaweedq.broker.log.entry_writer import EntryWriter
from seaweedq.broker.log.flusher import Flusher
from seaweedq.broker.log.group_commit import GroupCommit
from seaweedq.broker.log.marker import Marker
from seaweedq.broker.log.memory_budget import Budget
from seaweedq.broker.log.reader import GroupCache, Reader
from seaweedq.broker.log.segment_log import SegmentLog
from seaweedq.broker.maintenance import Maintenance
from seaweedq.broker.publish.forward_receiver import ForwardReceiver
from seaweedq.broker.publish.forwarder import Forwarder, Identities
from seaweedq.broker.publish.local_append import LocalAppender
from seaweedq.broker.publish.owner_append import OwnerAppender
from seaweedq.broker.publish.publisher import Publisher
from seaweedq.broker.publish.remote_append import RemoteAppender
from seaweedq.broker.read.fetcher import Fetcher
from seaweedq.broker.read.file_pages import FilePages
from seaweedq.broker.read.local_positions import LocalPositions
from seaweedq.broker.read.owner_search import OwnerFinder
from seaweedq.broker.read.read_server import ReadServer
from seaweedq.broker.read.remote_reader import ReadableSegments
from seaweedq.broker.read.request_search import SearchContext
from seaweedq.broker.read.topic_positions import TopicPositions
from seaweedq.broker.readiness import Readiness
from seaweedq.broker.recovery.journal_recovery import JournalRecovery
from seaweedq.broker.recovery.recovery_memory import RecoveryMemory
from seaweedq.broker.recovery.replay import Replay
from seaweedq.broker.reshape.chain_roller import Roller
from seaweedq.broker.reshape.change_requests import ChangeRequests
from seaweedq.broker.reshape.planner import Planner
from seaweedq.broker.reshape.replacer import Replacer
from seaweedq.broker.reshape.reshaper import Reshaper
from seaweedq.broker.reshape.sealer import Sealer
from seaweedq.broker.retention.lost import LostSegments
from seaweedq.broker.retention.marks import SegmentMarks
from seaweedq.broker.rpc.peer_gate import PeerGate
from seaweedq.broker.rpc.peer_trust import Addresses, PeerTrust, secrets_of
from seaweedq.broker.services import (
    Core,
    Environment,
    Joined,
    Publishing,
    Reading,
    Reshaping,
    Serving,
    Subscribing,
    Suspecting,
)
from seaweedq.broker.streams.feeds import Feeds
from seaweedq.broker.streams.subscription_streams import SubscriptionStreams
from seaweedq.broker.streams.topic_streams import TopicStreams
from seaweedq.broker.subscriptions.administration.lag import LagMeter
from seaweedq.broker.subscriptions.administration.seeking import Seeking
from seaweedq.broker.subscriptions.administration.starts import Starts
from seaweedq.broker.subscriptions.administration.subscription_admin import SubscriptionAdmin
from seaweedq.broker.subscriptions.cursors.assignment import Assignment
from seaweedq.broker.subscriptions.cursors.cursor_store import CursorStore
from seaweedq.broker.subscriptions.dispatch.dispatcher import Dispatcher
from seaweedq.broker.subscriptions.dispatch.dispatcher_search import DispatcherFinder
from seaweedq.broker.subscriptions.dispatch.handoff import Handoff
from seaweedq.broker.suspicion.greeter import Greeter
from seaweedq.broker.suspicion.greetings import Greetings
from seaweedq.broker.suspicion.marks import Marks
from seaweedq.broker.suspicion.revoker import Revoker
from seaweedq.broker.topic_deletion import TopicClosing, TopicDeletion
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.topics.cluster_quota import ClusterQuota
from seaweedq.broker.topics.cluster_view import ClusterView
from seaweedq.broker.topics.ownership import Ownership
from seaweedq.broker.topics.restored_coordination import RestoredCoordination
from seaweedq.broker.topics.segment_mover import SegmentMover
from seaweedq.broker.topics.tombstones import Tombstones
from seaweedq.broker.topics.topic_admin import TopicAdmin
from seaweedq.broker.uploads.broker_urls import BrokerUrls
from seaweedq.broker.uploads.link_keys import LinkKeys
from seaweedq.broker.uploads.message_payloads import Payloads
from seaweedq.broker.uploads.record_store import UploadRecords
from seaweedq.broker.uploads.service import Uploads
from seaweedq.coordination.election import Election
from seaweedq.coordination.membership import BrokerIdentity, Membership
from seaweedq.coordination.roster import Roster
from seaweedq.journal.interface import Journals


def build_core(
    environment: Environment,
    topic_closed: Callable[[Topic], None],
    roster_changed: Callable[[], None],
    level_changed: Callable[[], None],
) -> Core:
    """Builds what exists from the beginning. The listeners are told of topics that are being deleted or gone, of
    brokers and journals that come and go, and of the cluster's level."""
    settings, coordination = environment.settings, environment.coordination
    budget = Budget(settings.memory_budget_bytes)
    cache = GroupCache(budget, settings.cache_bytes)
    clock, ids = environment.clock, environment.ids
    trust = PeerTrust(secrets_of(environment.secret), lambda: level.written, environment.ids)
    roster = Roster(coordination, roster_changed, trust.is_known)
    level = ClusterLevel(coordination, roster, level_changed)
    environment.peers.begin(trust, Addresses(roster, trust), clock, ids)
    catalog = Catalog(coordination, topic_closed)
    admin = AdminToken(settings.admin_token_path)
    admin.require()
    callers = Callers(coordination, environment.clock, admin)
    return Core(
        callers=callers,
        accounts=Accounts(clock.monotonic_s()),
        audit=Audit(mode_of(settings), settings.name, environment.clock),
        catalog=catalog,
        tombstones=Tombstones(coordination),
        quota=ClusterQuota(catalog, coordination, settings.max_topics, settings.max_segments, callers.view.limits_of),
        roster=roster,
        level=level,
        trust=trust,
        gate=PeerGate(trust, clock, ids, has_port=bool(environment.peer_url)),
        budget=budget,
        cache=cache,
        reader=Reader(cache, clock),
    )


def identity_of(environment: Environment) -> BrokerIdentity:
    """Returns who this broker is in this life."""
    settings = environment.settings
    spared = environment.revoked.spared_s > 0
    return BrokerIdentity.of(
        environment.ids, settings.name, environment.url, settings.zone, spared, environment.peer_url
    )


def build_joined(
    environment: Environment, core: Core, cluster: str, identity: BrokerIdentity, lost: Callable[[], None]
) -> Joined:
    """Builds what a member has. `lost` is told when its lease has ended."""
    membership = Membership(
        environment.coordination,
        environment.clock,
        identity,
        environment.settings.lease_s,
        lost,
        aside=environment.aside,
        prove=core.trust.keys.prove,
    )
    settings, coordination, clock = environment.settings, environment.coordination, environment.clock
    entries = EntryWriter(cluster, membership.broker, clock, environment.ids, lambda: core.level.written)
    view = ClusterView(core.catalog, core.roster, membership, clock)
    journals = environment.journals.open(environment.store, lambda: core.level.written)
    return Joined(
        cluster=cluster,
        view=view,
        membership=membership,
        election=Election(coordination, membership),
        entries=entries,
        topics=TopicAdmin(view, coordination, environment.store, entries, settings.publish_timeout_s, core.quota),
        uploads=_uploads(environment, core),
        journals=journals,
        recovery=_recovery(environment, core, membership, entries, journals),
        registration=JournalRegistration(coordination, membership, journals.describe(membership.broker)),
        rise=LevelRise(coordination, environment.store, core.level, membership, settings.lease_s),
        guard=LevelGuard(coordination, core.level, core.roster),
    )


def _uploads(environment: Environment, core: Core) -> Uploads:
    coordination, clock, ids = environment.coordination, environment.clock, environment.ids
    link_keys = LinkKeys(
        coordination, ids, lambda: core.trust.link_roots(core.roster.brokers), lambda: core.level.written
    )
    return Uploads(
        UploadRecords(core.catalog, coordination),
        BrokerUrls(link_keys, clock, environment.url, environment.settings.upload_url_s),
        environment.store.payloads,
        clock,
        ids,
        environment.settings,
    )


def _recovery(
    environment: Environment, core: Core, membership: Membership, entries: EntryWriter, journals: Journals
) -> JournalRecovery:
    coordination = environment.coordination
    memory = RecoveryMemory(core.budget)
    replay = Replay(core.catalog, coordination, environment.store, entries, lambda: core.level.written, memory)
    level, home = lambda: core.level.written, environment.journals.home.id
    return JournalRecovery(coordination, membership, replay, journals, home, level)


def build_serving(environment: Environment, core: Core, joined: Joined, readiness: Readiness) -> Serving:
    """Builds what needs a journal, and the journal, which is empty."""
    restored = RestoredCoordination(environment.coordination, environment.store, environment.clock)
    planner = Planner(core.catalog, environment.coordination, core.quota, restored)
    roller = Roller(core.catalog, planner)
    log = _log(environment, joined, roller)
    loads = Loads(core.catalog, joined.membership.broker, environment.clock)
    publishing = _publishing(environment, core, joined, log, restored)
    timeout_s = environment.settings.publish_timeout_s
    ownership = publishing.ownership
    local = LocalPositions(joined.view, ownership, core.reader, log.flusher, loads, timeout_s)
    marker = Marker(log.commit, log.flusher, environment.clock)
    marks = SegmentMarks(joined.view, ownership, marker, environment.peers, timeout_s)
    reading = _reading(environment, core.reader, joined.view, ownership, local, readiness)
    lost = LostSegments(core.catalog, ownership, reading.readables, joined.entries, environment.store)
    subscribing = _subscribing(environment, core.level, joined.view, reading, log)
    payloads = _payloads(environment, joined, reading)
    imports = _imports(environment, core, joined, publishing.publisher)
    reshaping = _reshaping(environment, joined.view, ownership, log, planner, roller)
    closing = TopicClosing(
        log,
        reshaping.reshaper,
        [
            subscribing.dispatcher.forget,
            imports.forget,
            subscribing.assignment.forget,
            publishing.identities.forget,
        ],
    )
    deletion = TopicDeletion(core.catalog, joined.topics, reading.positions, closing, imports, joined.uploads)
    return Serving(
        log=log,
        loads=loads,
        publishing=publishing,
        reading=reading,
        subscribing=subscribing,
        letters=_letters(environment, core, joined, reading, subscribing.dispatcher, publishing.publisher, payloads),
        audit=_audit(core, joined, publishing.publisher),
        streams=_streams(core, reading),
        subscription_streams=SubscriptionStreams(
            subscribing.admin, subscribing.dispatcher, subscribing.finder, payloads, environment.peers
        ),
        payloads=payloads,
        imports=imports,
        reshaping=reshaping,
        changes=_changes(environment, joined, planner, readiness),
        closing=closing,
        deletion=deletion,
        leading=build_leading(
            environment, core, joined, loads, planner, deletion, reading.positions, subscribing.admin, marks, lost
        ),
        suspecting=_suspecting(environment, core, joined),
        drain=Drain(core.catalog, core.roster, joined.membership, loads, reshaping.mover),
        maintenance=Maintenance(
            environment.settings, joined.view, core.budget, core.cache, subscribing.dispatcher, log
        ),
    )


def _log(environment: Environment, joined: Joined, roller: Roller) -> SegmentLog:
    journal = joined.journals.create(joined.membership.broker)
    commit = GroupCommit(journal, environment.clock, joined.membership.valid)
    return SegmentLog(journal, commit, Flusher(joined.entries, roller.grown, environment.clock), DirtySegments())


def _publishing(
    environment: Environment, core: Core, joined: Joined, log: SegmentLog, restored: RestoredCoordination
) -> Publishing:
    timeout_s = environment.settings.publish_timeout_s
    ownership = Ownership(core.catalog, environment.store, joined.membership, core.budget, log.dirty, restored)
    local, forwarder = LocalAppender(log.commit), Forwarder(environment.peers, timeout_s)
    owners = OwnerAppender(core.catalog, ownership, core.roster, local, forwarder)
    identities = Identities(joined.membership.broker, core.catalog.is_open)
    remote = RemoteAppender(core.catalog, ownership, owners, identities, environment.clock)
    publisher = Publisher(ownership, local, remote, environment.ids, environment.clock, timeout_s)
    return Publishing(
        ownership=ownership,
        publisher=publisher,
        receiver=ForwardReceiver(core.catalog, ownership, local, publisher.deadline),
        identities=identities,
    )


def _reading(
    environment: Environment,
    reader: Reader,
    view: ClusterView,
    ownership: Ownership,
    local: LocalPositions,
    readiness: Readiness,
) -> Reading:
    timeout_s, stopping = environment.settings.publish_timeout_s, readiness.is_stopping
    context = SearchContext(view, timeout_s, stopping)
    positions = TopicPositions(view, ownership, environment.peers, local, timeout_s)
    return Reading(
        local_positions=local,
        positions=positions,
        readables=ReadableSegments(view, ownership, reader, environment.peers),
        server=ReadServer(view.catalog, ownership, reader, view.clock, readiness.check_ready),
        fetcher=Fetcher(ownership, reader, view.clock, stopping),
        finder=OwnerFinder(context, ownership),
        files=FilePages(view.catalog, positions, environment.store),
    )


def _subscribing(
    environment: Environment, level: ClusterLevel, view: ClusterView, reading: Reading, log: SegmentLog
) -> Subscribing:
    coordination, timeout_s = environment.coordination, environment.settings.publish_timeout_s
    readables, positions = reading.readables, reading.positions
    assignment = Assignment(coordination, view.roster, view.membership, lambda: level.written)
    cursors = CursorStore(coordination, lambda: level.written, view.catalog.end_of)
    dispatcher = Dispatcher(view, assignment, cursors, readables, log.commit, timeout_s)
    starts = Starts(readables, positions, Tombstones(coordination))
    return Subscribing(
        assignment=assignment,
        dispatcher=dispatcher,
        admin=SubscriptionAdmin(coordination, assignment, dispatcher, starts),
        seeking=Seeking(dispatcher, starts),
        handoff=Handoff(dispatcher, assignment, view.membership, view.clock),
        finder=DispatcherFinder(reading.finder.context, assignment, dispatcher),
        meter=LagMeter(dispatcher, readables, positions, view.clock),
    )


def _letters(
    environment: Environment,
    core: Core,
    joined: Joined,
    reading: Reading,
    dispatcher: Dispatcher,
    publisher: Publisher,
    payloads: Payloads,
) -> DeadLetters:
    topics = LetterTopics(joined.view.catalog, joined.topics, core.callers)
    copies = PayloadCopies(payloads, environment.store.payloads)
    return DeadLetters(joined.view, dispatcher, reading.readables, topics, publisher, copies)


def _audit(core: Core, joined: Joined, publisher: Publisher) -> AuditTopic:
    broker, level = joined.membership.broker, core.level
    return AuditTopic(core.audit, core.catalog, joined.topics, publisher, broker, lambda: level.written)


def _streams(core: Core, reading: Reading) -> TopicStreams:
    feeds = Feeds(core.catalog, reading.readables)
    return TopicStreams(core.catalog, reading.readables, reading.positions, core.tombstones, feeds)


def _payloads(environment: Environment, joined: Joined, reading: Reading) -> Payloads:
    return Payloads(
        environment.store.payloads,
        joined.uploads.claim,
        joined.uploads.link,
        reading.readables.every,
        environment.clock,
        environment.settings.publish_timeout_s,
    )


def _imports(environment: Environment, core: Core, joined: Joined, publisher: Publisher) -> Imports:
    settings = environment.settings
    records = ImportRecords(core.catalog, environment.coordination, joined.membership)
    readers = ReaderSetup(environment.import_reader, settings.home)
    runner = ImportRunner(core.catalog, records, publisher, environment.store, core.budget, readers)
    return Imports(joined.view, records, UploadClaims(joined.uploads.find, joined.uploads.claim), runner, settings)


def _reshaping(
    environment: Environment,
    view: ClusterView,
    ownership: Ownership,
    log: SegmentLog,
    planner: Planner,
    roller: Roller,
) -> Reshaping:
    timeout_s = environment.settings.publish_timeout_s
    mover = SegmentMover(view.catalog, view.roster, ownership, log.commit, log.flusher, timeout_s)
    sealer = Sealer(view.catalog, ownership, log.commit, log.flusher, view.clock)
    replacer = Replacer(view.catalog, view.roster, ownership, sealer, mover, view.clock)
    reshaper = Reshaper(view.catalog, ownership, sealer, replacer)
    return Reshaping(mover=mover, planner=planner, reshaper=reshaper, roller=roller)


def _changes(environment: Environment, joined: Joined, planner: Planner, readiness: Readiness) -> ChangeRequests:
    timeout_s = environment.settings.publish_timeout_s
    return ChangeRequests(joined.view, planner, environment.peers, timeout_s, readiness.is_stopping)


def _suspecting(environment: Environment, core: Core, joined: Joined) -> Suspecting:
    coordination, membership, level = environment.coordination, joined.membership, core.level
    marks = Marks(coordination, lambda: revoker.wake())
    revoker = Revoker(joined.view, coordination, joined.election, level, marks)
    return Suspecting(
        greetings=Greetings(membership.broker, joined.view.clock),
        greeter=Greeter(coordination, membership, core.roster, level, marks, environment.peers),
        marks=marks,
        revoker=revoker,
    )

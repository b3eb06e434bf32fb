"""Building the log, and what takes, reads, dispatches and moves messages: the other services stand on it."""

from seaweedq.broker.cluster_level import ClusterLevel
from seaweedq.broker.load.meters import Loads
from seaweedq.broker.log.dirty_segments import DirtySegments
from seaweedq.broker.log.flusher import Flusher
from seaweedq.broker.log.group_commit import GroupCommit
from seaweedq.broker.log.segment_log import SegmentLog
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
from seaweedq.broker.reshape.chain_roller import Roller
from seaweedq.broker.reshape.planner import Planner
from seaweedq.broker.reshape.replacer import Replacer
from seaweedq.broker.reshape.reshaper import Reshaper
from seaweedq.broker.reshape.sealer import Sealer
from seaweedq.broker.services import (
    Core,
    Environment,
    Joined,
    Messaging,
    Publishing,
    Reading,
    Reshaping,
    Subscribing,
)
from seaweedq.broker.subscriptions.admin import Seeking, Starts, SubscriptionAdmin
from seaweedq.broker.subscriptions.assignment import Assignment
from seaweedq.broker.subscriptions.cursor_store import CursorStore
from seaweedq.broker.subscriptions.dispatcher import Dispatcher, Handoff
from seaweedq.broker.subscriptions.lag import LagMeter
from seaweedq.broker.subscriptions.relaying import DispatcherFinder, RelayedWaits, WaitReports
from seaweedq.broker.topics.cluster_view import ClusterView
from seaweedq.broker.topics.ownership import Ownership
from seaweedq.broker.topics.restored_coordination import RestoredCoordination
from seaweedq.broker.topics.segment_mover import SegmentMover
from seaweedq.broker.topics.tombstones import Tombstones


def build_messaging(environment: Environment, core: Core, joined: Joined, readiness: Readiness) -> Messaging:
    """Builds what needs a journal and the other services stand on, and the journal, which is empty."""
    restored = RestoredCoordination(environment.coordination, environment.store, environment.clock)
    planner = Planner(core.catalog, environment.coordination, core.quota, restored)
    roller = Roller(core.catalog, planner)
    log = _log(environment, joined, roller)
    loads = Loads(core.catalog, joined.membership.broker, environment.clock)
    publishing = _publishing(environment, core, joined, log, restored)
    timeout_s, ownership = environment.settings.publish_timeout_s, publishing.ownership
    local = LocalPositions(joined.view, ownership, core.reader, log.flusher, loads, timeout_s)
    reading = _reading(environment, core, joined, ownership, local, readiness)
    return Messaging(
        log=log,
        loads=loads,
        publishing=publishing,
        reading=reading,
        subscribing=_subscribing(environment, core.level, joined.view, reading, log),
        reshaping=_reshaping(environment, joined.view, ownership, log, planner, roller),
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
    core: Core,
    joined: Joined,
    ownership: Ownership,
    local: LocalPositions,
    readiness: Readiness,
) -> Reading:
    timeout_s, stopping = environment.settings.publish_timeout_s, readiness.is_stopping
    view, reader = joined.view, core.reader
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
    waits = RelayedWaits(assignment, view.clock)
    return Subscribing(
        assignment=assignment,
        dispatcher=dispatcher,
        admin=SubscriptionAdmin(coordination, assignment, dispatcher, starts),
        seeking=Seeking(dispatcher, starts),
        handoff=Handoff(dispatcher, assignment, view.membership, view.clock),
        waits=waits,
        reports=WaitReports(view, waits, assignment, dispatcher, environment.peers),
        finder=DispatcherFinder(reading.finder.context, assignment, dispatcher),
        meter=LagMeter(dispatcher, readables, positions, view.clock),
    )


def _reshaping(
    environment: Environment, view: ClusterView, ownership: Ownership, log: SegmentLog, planner: Planner, roller: Roller
) -> Reshaping:
    timeout_s = environment.settings.publish_timeout_s
    mover = SegmentMover(view.catalog, view.roster, ownership, log.commit, log.flusher, timeout_s)
    sealer = Sealer(view.catalog, ownership, log.commit, log.flusher, view.clock)
    replacer = Replacer(view.catalog, view.roster, ownership, sealer, mover, view.clock)
    reshaper = Reshaper(view.catalog, ownership, sealer, replacer)
    return Reshaping(mover=mover, planner=planner, reshaper=reshaper, roller=roller)

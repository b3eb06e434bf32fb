"""Building what the leader does: its rounds, and the tasks that it repeats."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from seaweedq.broker.leader.autoscaler import Autoscaler
from seaweedq.broker.leader.journal_sweep import JournalSweep
from seaweedq.broker.leader.late_files import LateFiles
from seaweedq.broker.leader.leader import Leader
from seaweedq.broker.leader.limit_split import LimitSplit
from seaweedq.broker.leader.periodic import Deletions, PeriodicTask
from seaweedq.broker.leader.rebalancer import Rebalancer
from seaweedq.broker.leader.recoveries import Recoveries
from seaweedq.broker.leader.upload_sweep import UploadSweep
from seaweedq.broker.load.cluster_loads import Reports
from seaweedq.broker.load.histories import Histories
from seaweedq.broker.load.history_recorder import HistoryRecorder
from seaweedq.broker.log.marker import Marker
from seaweedq.broker.read.topic_positions import TopicPositions
from seaweedq.broker.recovery.requested import RequestedRecoveries
from seaweedq.broker.retention.burial import Burial
from seaweedq.broker.retention.expiry import Expiry
from seaweedq.broker.retention.files import TopicFiles
from seaweedq.broker.retention.looks import Looks
from seaweedq.broker.retention.lost import LostSegments
from seaweedq.broker.retention.marks import SegmentMarks
from seaweedq.broker.retention.payloads import RetainedPayloads
from seaweedq.broker.retention.restored import Restored
from seaweedq.broker.retention.retention import Retention, Taken
from seaweedq.broker.retention.rounds import Rounds
from seaweedq.broker.services import Core, Environment, Joined, Leading, Messaging
from seaweedq.broker.topic_deletion import TopicDeletion

DELETIONS_S, BALANCE_S, LEVEL_S, EXPIRY_S, UPLOADS_S, RETENTION_S, LATE_FILES_S, SWEEP_S, DAY_S = (
    1.0,
    2.0,
    2.0,
    60.0,
    60.0,
    60.0,
    60.0,
    3600.0,
    86_400.0,
)  # how often the leader does them


def build_leading(
    environment: Environment, core: Core, joined: Joined, messaging: Messaging, deletion: TopicDeletion
) -> Leading:
    """Builds the leader's work, which every broker has, and does while it leads."""
    view, election, peers, coordination = joined.view, joined.election, environment.peers, environment.coordination
    reports = Reports(view.catalog, view.roster, peers, view.membership.broker, messaging.loads)
    rebalancer = Rebalancer(view.catalog, view.roster, reports, peers, view.clock)
    autoscaler = Autoscaler(view, reports, messaging.reshaping.planner, rebalancer, election)
    recorder = HistoryRecorder(view.catalog, reports, election, lambda: autoscaler.hot, view.clock)
    balance = partial(_balance, reports, recorder, autoscaler, rebalancer)
    marks, lost = _marks(environment, joined, messaging), _lost(environment, joined, messaging)
    retention, files = _retention(environment, joined, messaging.reading.positions, marks)
    checkpoint_s = environment.settings.checkpoint_s
    admin = messaging.subscribing.admin
    expiry = Expiry(view.catalog, coordination, admin, retention.rounds, view.clock, checkpoint_s)
    tasks = (
        *_periodic_tasks(environment, joined, deletion, balance),
        PeriodicTask("retention", retention.round, RETENTION_S, view.clock),
        PeriodicTask("sweep of tombstones", retention.burial.sweep, SWEEP_S, view.clock),
        PeriodicTask("expiry of subscriptions", expiry.look, EXPIRY_S, view.clock),
        PeriodicTask("telling of retention", retention.tell, DAY_S, view.clock),
    )
    me, level = view.membership.broker, lambda: core.level.written
    recoveries = Recoveries(joined.recovery, view.roster, peers, coordination, me, level)
    return Leading(
        reports=reports,
        rebalancer=rebalancer,
        autoscaler=autoscaler,
        histories=Histories(view, election, recorder, peers),
        leader=Leader(view, coordination, election, recoveries, rebalancer, tasks),
        restored=Restored(view.catalog, environment.store, retention.rounds, lost, view.clock),
        expiry=expiry,
        retention=retention,
        retained=files,
        marks=marks,
        requested=RequestedRecoveries(joined.recovery, coordination),
        limits=LimitSplit(view, election, peers, core.accounts),
    )


def _marks(environment: Environment, joined: Joined, messaging: Messaging) -> SegmentMarks:
    marker = Marker(messaging.log.commit, messaging.log.flusher, environment.clock)
    timeout_s = environment.settings.publish_timeout_s
    return SegmentMarks(joined.view, messaging.publishing.ownership, marker, environment.peers, timeout_s)


def _lost(environment: Environment, joined: Joined, messaging: Messaging) -> LostSegments:
    ownership, readables = messaging.publishing.ownership, messaging.reading.readables
    return LostSegments(joined.view.catalog, ownership, readables, joined.entries, environment.store)


def _retention(
    environment: Environment, joined: Joined, positions: TopicPositions, marks: SegmentMarks
) -> tuple[Retention, TopicFiles]:
    view, store, coordination = joined.view, environment.store, environment.coordination
    files = TopicFiles(view.catalog, coordination, store, marks)
    rounds = Rounds(coordination, store, joined.election, view.clock)
    looks = Looks(view.catalog, files, positions)
    grace_s = environment.settings.upload_grace_s
    payloads = RetainedPayloads(view.catalog, coordination, store.payloads, rounds, positions, grace_s)
    taken = Taken(files, payloads, Burial(view.catalog, coordination, rounds, files, view.clock))
    return Retention(view, rounds, looks, taken, environment.settings.retention_grace_s), files


def _periodic_tasks(
    environment: Environment, joined: Joined, deletion: TopicDeletion, balance: Callable[[], Awaitable[None]]
) -> Sequence[PeriodicTask]:
    catalog, clock = joined.view.catalog, joined.view.clock
    journals = JournalSweep(environment.coordination, joined.journals)
    sweep = UploadSweep(
        catalog,
        environment.coordination,
        environment.store.payloads,
        clock,
        environment.settings.upload_grace_s,
        joined.election.leader_compare,
    )
    late = LateFiles(catalog, joined.topics.sweep, clock)
    return (
        PeriodicTask("ending deletions", Deletions(catalog, deletion.delete, clock).end, DELETIONS_S, clock),
        PeriodicTask("ending a rise of the level", joined.rise.finish, LEVEL_S, clock),
        PeriodicTask("telling of the level", joined.rise.tell, DAY_S, clock),
        PeriodicTask("balancing", balance, BALANCE_S, clock),
        PeriodicTask("sweep of uploads", sweep.records, UPLOADS_S, clock),
        PeriodicTask("sweep of payloads", sweep.folders, SWEEP_S, clock),
        PeriodicTask("sweep", joined.topics.sweep, SWEEP_S, clock),
        PeriodicTask("sweep of late files", late.look, LATE_FILES_S, clock),
        PeriodicTask("sweep of journals", journals.sweep, SWEEP_S, clock),
    )


async def _balance(reports: Reports, recorder: HistoryRecorder, autoscaler: Autoscaler, rebalancer: Rebalancer) -> None:
    await reports.ask()
    await recorder.record()
    await autoscaler.scale()
    await rebalancer.rebalance()

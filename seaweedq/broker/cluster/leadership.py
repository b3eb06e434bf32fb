"""Leadership: each broker stands for election, and the one that leads works for the whole cluster."""

from collections.abc import Mapping, Sequence

from seaweedq.access.limits import Accounts
from seaweedq.balancer.broker_count import BrokerCount, least_used
from seaweedq.broker.cluster.accepted_loss import AcceptedLoss
from seaweedq.broker.cluster.balancing import Autoscaler, Rebalancer, hosts_of
from seaweedq.broker.cluster.leader import Leader, Recoveries
from seaweedq.broker.cluster.level_upgrade import LevelUpgrade
from seaweedq.broker.cluster.limit_split import LimitSplit
from seaweedq.broker.cluster.periodic_tasks import (
    Abandoned,
    JournalSweep,
    LateFiles,
    PeriodicTask,
    UploadSweep,
)
from seaweedq.broker.cluster.snapshots import Snapshots
from seaweedq.broker.context import Context
from seaweedq.broker.load import Load
from seaweedq.broker.rebuild import LeaderLook, Look
from seaweedq.broker.recovery.journal_recovery import Recovery
from seaweedq.broker.reshape.planning import Planner
from seaweedq.broker.retention.retention import Retaining
from seaweedq.broker.retention.topic_deletion import TopicDeletion
from seaweedq.broker.service import Service, Tasks
from seaweedq.broker.topics.schema_versions import SchemaVersions
from seaweedq.broker.topics.topic_admin import TopicAdmin
from seaweedq.coordination.records import BrokerRecord
from seaweedq.coordination.versioned import Versioned

DELETIONS_S = 1.0  # the periods of the tasks
BALANCE_S = LEVEL_S = 2.0
EXPIRY_S = UPLOADS_S = RETENTION_S = LATE_FILES_S = 60.0
SWEEP_S = 3600.0
DAY_S = 86_400.0


class Leadership(Service):
    """The work of a leader, which every broker has, and does while it leads."""

    def __init__(
        self,
        context: Context,
        accounts: Accounts,
        recovery: Recovery,
        load: Load,
        planner: Planner,
        retaining: Retaining,
        admin: TopicAdmin,
        schemas: SchemaVersions,
        deletion: TopicDeletion,
    ) -> None:
        view, coordination, election = context.view, context.coordination, context.election
        self._context = context
        self._election = election
        self._load = load
        self.rebalancer = Rebalancer(context.catalog, context.roster, load.reports, context.peers, context.clock)
        self.count = BrokerCount()
        self.autoscaler = Autoscaler(view, load.reports, planner, self.rebalancer, election)
        self.upgrade = LevelUpgrade(
            coordination, context.store, context.level, context.membership, context.settings.lease_s
        )
        self.limits = LimitSplit(view, election, context.peers, accounts)
        self.snapshots = Snapshots(context)
        self.losses = AcceptedLoss(view, coordination, context.store, context.journals, planner, context.changes)
        recoveries = Recoveries(
            recovery.journals, context.roster, context.peers, coordination, context.broker, context.clock, self.losses
        )
        tasks = self._periodic_tasks(context, admin, schemas, deletion, retaining)
        look = LeaderLook(
            Look(coordination, context.store, context.journals, context.backups),
            coordination,
            context.journals,
            context.roster,
            election.leader_compare,
        )
        self.leader = Leader(view, coordination, election, recoveries, self.rebalancer, tasks, look)

    @property
    def brokers_wanted(self) -> int:
        """Returns the number of brokers that the load needs, 0 unless this broker leads and has decided."""
        return (self._election.is_leader and self.count.is_made and self.count.wanted) or 0

    def wish(self) -> tuple[int, list[str]] | None:
        """Returns `brokers_wanted` and the URLs of the brokers in `first_to_stop`; None if so many run, or if this
        broker does not lead."""
        running = self._running()
        if self.brokers_wanted in (0, len(running)):
            return None
        return self.brokers_wanted, [running[one].record.url for one in self.first_to_stop()]

    def first_to_stop(self) -> list[str]:
        """Returns the running brokers in the order in which they should stop: the least used one first, the leader
        last, since the next leader decides anew and recommends fewer brokers much later; empty unless this broker
        leads."""
        if not self._election.is_leader:
            return []
        running = self._running()
        ordered = [one for one in least_used(self._load.reports.utilizations) if one in running]
        return sorted(ordered, key=lambda one: one == self._context.broker)

    async def run(self) -> Tasks:
        """Stands for election. A broker that leads at once does its first round before it serves."""
        await self._election.campaign()
        if self._election.is_leader:
            await self.leader.round()
        return {"election": self._election.run(), "leader": self.leader.run(), "split of limits": self.limits.run()}

    async def stop(self) -> None:
        """Ends the tasks beside the leader's rounds."""
        await self.leader.stop()

    def _periodic_tasks(
        self,
        context: Context,
        admin: TopicAdmin,
        schemas: SchemaVersions,
        deletion: TopicDeletion,
        retaining: Retaining,
    ) -> Sequence[PeriodicTask]:
        catalog, coordination, clock = context.catalog, context.coordination, context.clock
        retention = retaining.retention
        snapshot_s = context.settings.snapshot_s
        grace_s, leading = context.settings.upload_grace_s, context.election.leader_compare
        uploads = UploadSweep(
            catalog, coordination, context.store.payloads, clock, grace_s, leading, context.generations.check
        )
        deletions = Abandoned(catalog.being_deleted, deletion.delete, "is not deleted yet", clock)
        versions = Abandoned(catalog.pending.values, schemas.finish, "still has a pending version of its schema", clock)
        late_files = LateFiles(catalog, admin.sweep, clock)
        journals = JournalSweep(coordination, context.journals, context.generations)
        return (
            PeriodicTask("ending deletions", deletions.end, DELETIONS_S, clock),
            PeriodicTask("ending changes of schemas", versions.end, DELETIONS_S, clock),
            PeriodicTask("ending an upgrade of the level", self.upgrade.finish, LEVEL_S, clock),
            PeriodicTask("log of the possible level", self.upgrade.log_possible, DAY_S, clock),
            PeriodicTask("balancing", self._balance, BALANCE_S, clock),
            PeriodicTask("sweep of uploads", uploads.records, UPLOADS_S, clock),
            PeriodicTask("sweep of payloads", uploads.folders, SWEEP_S, clock),
            PeriodicTask("sweep of lists", uploads.lists, SWEEP_S, clock),
            PeriodicTask("sweep", admin.sweep, SWEEP_S, clock),
            PeriodicTask("putting markers of schemas again", schemas.put_markers, SWEEP_S, clock),
            PeriodicTask("sweep of late files", late_files.sweep_recently_deleted, LATE_FILES_S, clock),
            PeriodicTask("sweep of journals", journals.sweep, SWEEP_S, clock),
            PeriodicTask("retention", retention.round, RETENTION_S, clock),
            PeriodicTask("sweep of tombstones", retention.removal.sweep, SWEEP_S, clock),
            PeriodicTask("snapshot of coordination", self.snapshots.put_if_changed, snapshot_s, clock),
            PeriodicTask("expiry of subscriptions", retaining.expiry.delete_expired, EXPIRY_S, clock),
        )

    async def _balance(self) -> None:
        await self._load.reports.ask()
        await self._load.recorder.record()
        self._count_brokers()
        await self.autoscaler.scale()
        await self.rebalancer.rebalance()

    def _count_brokers(self) -> None:
        """Decides how many brokers the load needs, never fewer than the mirrors of a journal and the zones need."""
        roster, reports, settings = self._context.roster, self._load.reports, self._context.settings
        mirrors = settings.journal_mirrors if settings.journal_kind == "mirrored" else 0
        least = max(1 + mirrors, len({host.zone for host in hosts_of(roster)}))
        now_s = self._context.clock.monotonic_s()
        self.count.update(now_s, reports.utilizations.values(), len(self._running()), least)

    def _running(self) -> Mapping[str, Versioned[BrokerRecord]]:
        """Returns the brokers that are not about to stop."""
        return {broker: one for broker, one in self._context.roster.brokers.items() if not one.record.draining}

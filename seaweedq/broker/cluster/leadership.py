"""Leadership: each broker stands for election, and the one that leads works for the whole cluster."""

from collections.abc import Sequence

from seaweedq.access.limits import Accounts
from seaweedq.broker.cluster.accepted_loss import AcceptedLoss
from seaweedq.broker.cluster.balancing import Autoscaler, Rebalancer
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
        self._election = election
        self._load = load
        self.rebalancer = Rebalancer(context.catalog, context.roster, load.reports, context.peers, context.clock)
        self.autoscaler = Autoscaler(view, load.reports, planner, self.rebalancer, election)
        self.upgrade = LevelUpgrade(
            coordination, context.store, context.level, context.membership, context.settings.lease_s
        )
        self.limits = LimitSplit(view, election, context.peers, accounts)
        self.snapshots = Snapshots(context)
        self.losses = AcceptedLoss(view, coordination, context.store, planner)
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
        await self.autoscaler.scale()
        await self.rebalancer.rebalance()

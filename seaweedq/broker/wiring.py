"""The parts of a broker, put together; how they live is broker/broker's. Everything here only makes objects."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any

from seaweedq.broker.drain import Drain
from seaweedq.broker.imports.record_store import ImportRecords
from seaweedq.broker.imports.runner import Importing
from seaweedq.broker.imports.service import Claims, Imports
from seaweedq.broker.journal_registration import JournalRegistration
from seaweedq.broker.leader.autoscaler import Scaler
from seaweedq.broker.leader.leader import Leader
from seaweedq.broker.leader.periodic import Chore, Deletions
from seaweedq.broker.leader.rebalancer import Evening
from seaweedq.broker.leader.upload_sweep import UploadSweep
from seaweedq.broker.load.cluster_loads import Reports
from seaweedq.broker.load.meters import Loads
from seaweedq.broker.log.entry_writer import EntryWriter
from seaweedq.broker.log.flusher import Flusher
from seaweedq.broker.log.group_commit import GroupCommit
from seaweedq.broker.log.memory_budget import Budget
from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.broker.log.reader import GroupCache, Reader
from seaweedq.broker.maintenance import Upkeep
from seaweedq.broker.publish.forward_receiver import ForwardReceiver
from seaweedq.broker.publish.forwarder import Forwarder, Identities
from seaweedq.broker.publish.local_append import LocalAppender
from seaweedq.broker.publish.owner_append import OwnerAppender
from seaweedq.broker.publish.publisher import Publisher
from seaweedq.broker.publish.remote_append import RemoteAppender
from seaweedq.broker.read.read_server import Lender
from seaweedq.broker.read.remote_reader import Readables
from seaweedq.broker.read.topic_positions import Everywhere
from seaweedq.broker.recovery.journal_recovery import JournalRecovery
from seaweedq.broker.recovery.replay import Replay
from seaweedq.broker.reshape.chain_roller import Roller
from seaweedq.broker.reshape.planner import Planner
from seaweedq.broker.reshape.replacer import Replacer
from seaweedq.broker.reshape.reshaper import Reshaper
from seaweedq.broker.reshape.sealer import Sealer
from seaweedq.broker.rpc.client import Peers
from seaweedq.broker.subscriptions.admin import SubscriptionAdmin
from seaweedq.broker.subscriptions.assignment import Succession
from seaweedq.broker.subscriptions.cursor_store import Cursors
from seaweedq.broker.subscriptions.dispatcher import Dispatcher
from seaweedq.broker.subscriptions.handoff import Handover
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.topics.ownership import Ownership
from seaweedq.broker.topics.segment_mover import SegmentMover
from seaweedq.broker.topics.topic_admin import TopicAdmin
from seaweedq.broker.uploads.message_payloads import Payloads
from seaweedq.broker.uploads.service import Uploads
from seaweedq.clock import Clock, Ids
from seaweedq.coordination.election import Election
from seaweedq.coordination.interface import Coordination
from seaweedq.coordination.membership import Membership
from seaweedq.coordination.roster import Roster
from seaweedq.journal.interface import JournalSetup
from seaweedq.settings import Settings
from seaweedq.storage.counting import Counted
from seaweedq.storage.interface import ObjectStore

DELETIONS_S, BALANCE_S, UPLOADS_S, SWEEP_S = 1.0, 2.0, 60.0, 3600.0  # how often the leader does them


class Parts(ABC):
    """What a broker is made of. What needs a journal, or a membership, is made once there is one."""

    def __init__(
        self,
        settings: Settings,
        store: ObjectStore,
        coordination: Coordination,
        clock: Clock,
        ids: Ids,
        url: str,
        secret: str = "",
        import_reader: Sequence[str] = (),
        *,
        journals: JournalSetup,
    ) -> None:
        self.settings = settings
        self.store = Counted(store)
        self.clock = clock
        self.url = url
        self.secret = secret
        self.stopping = self.draining = False
        self.ready = False
        self._joined = self._working = False  # it may have a lease; it has a journal, and what writes to it
        self.budget = Budget(settings.memory_budget_bytes)
        self.catalog = Catalog(coordination, self._close_topic)
        self.roster = Roster(coordination, self._look_again)
        self.cache = GroupCache(self.budget, settings.cache_bytes)
        self.reader = Reader(self.cache)
        self.peers = Peers(secret)
        self.uploads = Uploads(self.catalog, coordination, self.store.payloads, clock, ids, settings, url)
        self.lost = asyncio.Event()
        self.leader: Leader | None = None
        self._coordination = coordination
        self._import_reader = import_reader
        self._ids = ids
        self._home = journals.home
        self._open_journals = journals.open
        self._tasks: set[asyncio.Task[Any]] = set()
        self._dirty: set[OpenSegment] = set()
        self._stop_by_s: float | None = None  # monotonic, since the first word of stopping

    @abstractmethod
    async def delete_topic(self, topic: Topic) -> None:
        """Delete a topic with its data."""

    @abstractmethod
    def check_ready(self) -> None:
        """Raises NotReady where this broker may not answer."""

    @abstractmethod
    def _close_topic(self, topic: Topic) -> None:
        """A topic is being deleted, or gone."""

    @abstractmethod
    def _look_again(self) -> None:
        """Brokers or journals have come or gone."""

    @abstractmethod
    def _lose(self, why: str = "its lease has expired") -> None:
        """Nothing may be acknowledged any more."""

    def _make_member(self, cluster: str) -> None:
        """What a broker has before it has a journal."""
        settings, clock, coordination = self.settings, self.clock, self._coordination
        self.membership = Membership(
            coordination,
            clock,
            self._ids,
            settings.name,
            self.url,
            settings.lease_s,
            self._lose,
            settings.zone,
            renew_in_thread=True,
        )
        self.election = Election(coordination, self.membership)
        self.entries = EntryWriter(cluster, self.membership.broker, clock, self._ids)
        self.admin = TopicAdmin(
            self.catalog,
            coordination,
            self.store,
            self.entries,
            clock,
            self.membership,
            self.roster,
            settings.publish_timeout_s,
        )
        self._journals = self._open_journals(self.store)
        self.recovery = JournalRecovery(
            self.catalog,
            coordination,
            self.membership,
            Replay(self.catalog, coordination, self.store, self.entries),
            self._journals,
            self._home.id,
        )
        record = self._journals.describe(self.membership.broker)
        self._registration = JournalRegistration(coordination, self.membership, record)

    def _make_writers(self) -> None:
        """What takes messages, on a journal of this life."""
        clock, timeout_s = self.clock, self.settings.publish_timeout_s
        self.journal = self._journals.create(self.membership.broker)
        self.commit = GroupCommit(self.journal, clock, self.membership.valid)
        self.flusher = Flusher(self.entries)
        self.ownership = Ownership(self.catalog, self.store, self.membership, self.budget, self._dirty)
        self.mover = SegmentMover(self.catalog, self.roster, self.ownership, self.commit, self.flusher, timeout_s)
        local, forwarder = LocalAppender(self.commit, timeout_s), Forwarder(self.peers, timeout_s)
        owners = OwnerAppender(self.catalog, self.ownership, self.roster, local, forwarder)
        self._identities = Identities(self.membership.broker)
        remote = RemoteAppender(self.catalog, self.ownership, owners, self._identities, clock, timeout_s)
        self.publisher = Publisher(self.ownership, local, remote, self._ids)
        self.imports = self._make_imports()
        self.receiver = ForwardReceiver(self.catalog, self.ownership, local)

    def _make_imports(self) -> Imports:
        settings = self.settings
        records = ImportRecords(self.catalog, self._coordination, self.membership)
        return Imports(
            self.catalog,
            records,
            self.roster,
            self.membership,
            Claims(self.uploads.find, self.uploads.claim),
            Importing(
                self.catalog, records, self.publisher, self.store, self.budget, self._import_reader, settings.home
            ),
            self.clock,
            settings,
        )

    def _make_readers(self) -> None:
        """What reads, and dispatches."""
        clock, timeout_s = self.clock, self.settings.publish_timeout_s
        self.loads = Loads(self.catalog, self.membership.broker, clock)
        self.everywhere = Everywhere(
            self.catalog,
            self.ownership,
            self.roster,
            self.membership,
            self.peers,
            self.reader,
            self.flusher,
            self.loads,
            clock,
            timeout_s,
        )
        self.lender = Lender(self.catalog, self.ownership, self.reader, clock, self.check_ready)
        self.succession = Succession(self._coordination, self.roster, self.membership)
        self._readables = Readables(
            self.catalog, self.ownership, self.roster, self.membership, self.reader, self.peers, clock
        )
        self.dispatcher = Dispatcher(
            self.catalog,
            self.succession,
            Cursors(self._coordination),
            self._readables,
            self.commit,
            clock,
            timeout_s,
        )
        self.payloads = Payloads(
            self.store.payloads,
            self.uploads.claim,
            self.uploads.link,
            self._readables.every,
            clock,
            timeout_s,
        )
        self.subscriptions = SubscriptionAdmin(
            self._coordination, self.succession, self.dispatcher, self._readables, self.everywhere, clock
        )
        self._handover = Handover(self.dispatcher, self.succession, self.membership, clock)

    def _make_keepers(self) -> None:
        """What changes segments, and keeps house."""
        self._drain = Drain(self.catalog, self.roster, self.membership, self.loads, self.mover)
        self.planner = Planner(self.catalog, self._coordination)
        sealer = Sealer(self.catalog, self.ownership, self.commit, self.flusher, self.clock)
        replacer = Replacer(self.catalog, self.roster, self.ownership, sealer, self.mover, self.clock)
        self.reshaper = Reshaper(self.catalog, self.ownership, sealer, replacer)
        self._roller = Roller(self.catalog, self.planner)
        self.flusher.grown = self._roller.grown
        self._upkeep = Upkeep(
            self.settings,
            self.clock,
            self.catalog,
            self.budget,
            self.cache,
            self.flusher,
            self.dispatcher,
            self.commit,
        )

    def _make_leader(self) -> Leader:
        reports = Reports(self.catalog, self.roster, self.peers, self.membership.broker, self.loads)
        evening = Evening(self.catalog, self.roster, reports, self.peers, self.clock)
        self.scaler = Scaler(self.catalog, self.roster, reports, self.planner, evening, self.election, self.clock)
        deletions = Deletions(self.catalog, self.delete_topic, self.clock)
        uploads = UploadSweep(
            self.catalog,
            self._coordination,
            self.store.payloads,
            self.clock,
            self.settings.upload_grace_s,
            self.election.leader_compare,
        )
        chores = (
            Chore("ending deletions", deletions.end, DELETIONS_S, self.clock),
            Chore("balancing", partial(_balance, reports, self.scaler, evening), BALANCE_S, self.clock),
            Chore("sweep of uploads", uploads.records, UPLOADS_S, self.clock),
            Chore("sweep of payloads", uploads.folders, SWEEP_S, self.clock),
            Chore("sweep", self.admin.sweep, SWEEP_S, self.clock),
        )
        return Leader(
            self.catalog,
            self.roster,
            self._coordination,
            self.election,
            self.recovery,
            evening,
            reports,
            chores,
            self.clock,
        )


async def _balance(reports: Reports, scaler: Scaler, evening: Evening) -> None:
    await reports.ask()
    await scaler.scale()
    await evening.even()

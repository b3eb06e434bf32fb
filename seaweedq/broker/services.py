"""The services of a broker, in groups by the phase of its life from which they exist. broker/wiring builds them."""

from dataclasses import dataclass, field

from seaweedq.access.accounts import Accounts
from seaweedq.broker.access.callers import Callers
from seaweedq.broker.audit.audit import Audit
from seaweedq.broker.audit.topic import AuditTopic
from seaweedq.broker.cluster_level import ClusterLevel
from seaweedq.broker.drain import Drain
from seaweedq.broker.imports.reader_process import StartReader, no_reader
from seaweedq.broker.imports.service import Imports
from seaweedq.broker.journal_registration import JournalRegistration
from seaweedq.broker.leader.autoscaler import Autoscaler
from seaweedq.broker.leader.leader import Leader
from seaweedq.broker.leader.limit_split import LimitSplit
from seaweedq.broker.leader.rebalancer import Rebalancer
from seaweedq.broker.letters.letters import DeadLetters
from seaweedq.broker.level_rise import LevelGuard, LevelRise
from seaweedq.broker.load.cluster_loads import Reports
from seaweedq.broker.load.histories import Histories
from seaweedq.broker.load.meters import Loads
from seaweedq.broker.log.entry_writer import EntryWriter
from seaweedq.broker.log.memory_budget import Budget
from seaweedq.broker.log.reader import GroupCache, Reader
from seaweedq.broker.log.segment_log import SegmentLog
from seaweedq.broker.maintenance import Maintenance
from seaweedq.broker.publish.forward_receiver import ForwardReceiver
from seaweedq.broker.publish.forwarder import Identities
from seaweedq.broker.publish.publisher import Publisher
from seaweedq.broker.read.fetcher import Fetcher
from seaweedq.broker.read.file_pages import FilePages
from seaweedq.broker.read.local_positions import LocalPositions
from seaweedq.broker.read.owner_search import OwnerFinder
from seaweedq.broker.read.read_server import ReadServer
from seaweedq.broker.read.remote_reader import ReadableSegments
from seaweedq.broker.read.topic_positions import TopicPositions
from seaweedq.broker.recovery.journal_recovery import JournalRecovery
from seaweedq.broker.recovery.requested import RequestedRecoveries
from seaweedq.broker.reshape.chain_roller import Roller
from seaweedq.broker.reshape.change_requests import ChangeRequests
from seaweedq.broker.reshape.planner import Planner
from seaweedq.broker.reshape.reshaper import Reshaper
from seaweedq.broker.retention.expiry import Expiry
from seaweedq.broker.retention.files import TopicFiles
from seaweedq.broker.retention.marks import SegmentMarks
from seaweedq.broker.retention.restored import Restored
from seaweedq.broker.retention.retention import Retention
from seaweedq.broker.rpc.client import Peers
from seaweedq.broker.rpc.peer_gate import PeerGate
from seaweedq.broker.rpc.peer_keys import MakeKeys, make_keys
from seaweedq.broker.rpc.peer_trust import PeerTrust
from seaweedq.broker.streams.subscription_streams import SubscriptionStreams
from seaweedq.broker.streams.topic_streams import TopicStreams
from seaweedq.broker.subscriptions.admin import Seeking, SubscriptionAdmin
from seaweedq.broker.subscriptions.assignment import Assignment
from seaweedq.broker.subscriptions.dispatcher import Dispatcher, Handoff
from seaweedq.broker.subscriptions.lag import LagMeter
from seaweedq.broker.subscriptions.relaying import DispatcherFinder, RelayedWaits, WaitReports
from seaweedq.broker.suspicion.greeter import Greeter
from seaweedq.broker.suspicion.greetings import Greetings
from seaweedq.broker.suspicion.marks import Marks
from seaweedq.broker.suspicion.own_revocations import OwnRevocations
from seaweedq.broker.suspicion.revoker import Revoker
from seaweedq.broker.topic_deletion import TopicClosing, TopicDeletion
from seaweedq.broker.topics.catalog import Catalog
from seaweedq.broker.topics.cluster_quota import ClusterQuota
from seaweedq.broker.topics.cluster_view import ClusterView
from seaweedq.broker.topics.ownership import Ownership
from seaweedq.broker.topics.segment_mover import SegmentMover
from seaweedq.broker.topics.tombstones import Tombstones
from seaweedq.broker.topics.topic_admin import TopicAdmin
from seaweedq.broker.uploads.message_payloads import Payloads
from seaweedq.broker.uploads.service import Uploads
from seaweedq.clock import Clock, Ids
from seaweedq.concurrency.pools import Pools
from seaweedq.coordination.election import Election
from seaweedq.coordination.interface import Coordination
from seaweedq.coordination.membership import Membership
from seaweedq.coordination.roster import Roster
from seaweedq.coordination.thread_loop import Aside, StartAside
from seaweedq.journal.interface import Journals, JournalSetup
from seaweedq.settings import Settings
from seaweedq.storage.counting import Counted


@dataclass(frozen=True)
class Environment:
    """The backends that a broker's process chose for it, and how it and others reach each other: clients at `url`,
    brokers at `peer_url` if there is one.

    `secret` is the setting by which brokers of the cluster know each other; an empty one matches nothing. `make_keys`
    makes the keys of its secrets, which takes a while. `import_reader` starts the reader of an import. `aside` runs
    what must go on while the event loop stands still; None runs it on the loop. `pools` are the threads of the process,
    for its metrics. `revoked` remembers over all lives of the process which of its leases others have ended.
    """

    settings: Settings
    store: Counted
    coordination: Coordination
    journals: JournalSetup
    clock: Clock
    ids: Ids
    peers: Peers
    url: str
    revoked: OwnRevocations
    secret: str = ""
    import_reader: StartReader = no_reader
    aside: StartAside | None = Aside
    pools: Pools = field(default_factory=Pools)
    peer_url: str = ""
    make_keys: MakeKeys = make_keys


@dataclass(frozen=True)
class Core:
    """The services that exist from the beginning: views of the cluster, and memory."""

    callers: Callers
    accounts: Accounts
    audit: Audit
    catalog: Catalog
    tombstones: Tombstones
    quota: ClusterQuota
    roster: Roster
    level: ClusterLevel
    trust: PeerTrust
    gate: PeerGate
    budget: Budget
    cache: GroupCache
    reader: Reader


@dataclass(frozen=True)
class Joined:
    """The services of a member of the cluster that need no journal. `cluster` is the cluster's id."""

    cluster: str
    view: ClusterView
    membership: Membership
    election: Election
    entries: EntryWriter
    topics: TopicAdmin
    uploads: Uploads
    journals: Journals
    recovery: JournalRecovery
    registration: JournalRegistration
    rise: LevelRise
    guard: LevelGuard


@dataclass(frozen=True)
class Publishing:
    """The services that take messages, and hand on those of other brokers' segments."""

    ownership: Ownership
    publisher: Publisher
    receiver: ForwardReceiver
    identities: Identities


@dataclass(frozen=True)
class Reading:
    """The services that read segments wherever they are, and let other brokers read."""

    local_positions: LocalPositions
    positions: TopicPositions
    readables: ReadableSegments
    server: ReadServer
    fetcher: Fetcher
    finder: OwnerFinder
    files: FilePages


@dataclass(frozen=True)
class Subscribing:
    """The services that dispatch subscriptions, and decide which broker does."""

    assignment: Assignment
    dispatcher: Dispatcher
    admin: SubscriptionAdmin
    seeking: Seeking
    handoff: Handoff
    waits: RelayedWaits
    reports: WaitReports
    finder: DispatcherFinder
    meter: LagMeter


@dataclass(frozen=True)
class Reshaping:
    """The services that move, split, merge and roll segments."""

    mover: SegmentMover
    planner: Planner
    reshaper: Reshaper
    roller: Roller


@dataclass(frozen=True)
class Leading:
    """The services that work while this broker leads, and the one that works for another one that does."""

    reports: Reports
    rebalancer: Rebalancer
    autoscaler: Autoscaler
    histories: Histories
    leader: Leader
    restored: Restored
    expiry: Expiry
    retention: Retention
    retained: TopicFiles
    marks: SegmentMarks
    requested: RequestedRecoveries
    limits: LimitSplit


@dataclass(frozen=True)
class Suspecting:
    """The services that find brokers that seem dead, end their leases, and tell others that this one lives."""

    greetings: Greetings
    greeter: Greeter
    marks: Marks
    revoker: Revoker


@dataclass(frozen=True)
class Messaging:
    """The log, and the services that take, read, dispatch and move messages."""

    log: SegmentLog
    loads: Loads
    publishing: Publishing
    reading: Reading
    subscribing: Subscribing
    reshaping: Reshaping


@dataclass(frozen=True)
class Serving(Messaging):
    """The services of a broker that has a journal."""

    letters: DeadLetters
    audit: AuditTopic
    streams: TopicStreams
    subscription_streams: SubscriptionStreams
    payloads: Payloads
    imports: Imports
    changes: ChangeRequests
    closing: TopicClosing
    deletion: TopicDeletion
    leading: Leading
    suspecting: Suspecting
    drain: Drain
    maintenance: Maintenance

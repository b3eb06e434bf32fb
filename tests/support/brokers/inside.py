"""What tests reach of a broker's inside, each part under one name.

Nothing else in the tests says where in a broker a part is: a part that moves changes this module alone.
"""

from seaweedq.access.limits import Accounts
from seaweedq.broker.access.callers import Callers
from seaweedq.broker.audit import Audit, AuditTopic
from seaweedq.broker.broker import Broker
from seaweedq.broker.cluster.accepted_loss import AcceptedLoss
from seaweedq.broker.cluster.balancing import Autoscaler
from seaweedq.broker.cluster.leader import Leader
from seaweedq.broker.cluster.level_upgrade import LevelUpgrade
from seaweedq.broker.cluster.limit_split import LimitSplit
from seaweedq.broker.cluster.revoker import Revoker
from seaweedq.broker.cluster.suspecting import Prober, Responder
from seaweedq.broker.context import ClusterView
from seaweedq.broker.imports.importing import Importing
from seaweedq.broker.imports.writing import Writing
from seaweedq.broker.load import Histories, Loads, Reports
from seaweedq.broker.log.entry_writer import EntryWriter
from seaweedq.broker.log.flusher import Flusher, Log
from seaweedq.broker.log.group_commit import GroupCommit
from seaweedq.broker.log.memory_budget import Budget
from seaweedq.broker.log.open_segment import DirtySegments
from seaweedq.broker.log.reader import Reader
from seaweedq.broker.publish.forwarder import ForwardReceiver, Identities
from seaweedq.broker.publish.publisher import Publisher
from seaweedq.broker.read.positions import LocalPositions, TopicPositions
from seaweedq.broker.read.readable_segments import ReadableSegments
from seaweedq.broker.recovery.journal_recovery import JournalRecovery, JournalRegistration, RequestedRecoveries
from seaweedq.broker.reshape.planning import Planner, Roller
from seaweedq.broker.reshape.reshaper import Reshaper
from seaweedq.broker.reshape.segment_mover import SegmentMover
from seaweedq.broker.retention.files import EmptyEntries
from seaweedq.broker.retention.retention import Retention
from seaweedq.broker.retention.topic_deletion import TopicDeletion
from seaweedq.broker.rpc.peer_keyring import PeerKeyring
from seaweedq.broker.streams.streaming import SubscriptionStreams
from seaweedq.broker.streams.topic_streams import TailWatches, TopicStreams
from seaweedq.broker.subscriptions.admin import SubscriptionAdmin
from seaweedq.broker.subscriptions.assignment import Assignment
from seaweedq.broker.subscriptions.dead_lettering import DeadLetters
from seaweedq.broker.subscriptions.dispatcher import Dispatcher
from seaweedq.broker.subscriptions.lag import LagMeter
from seaweedq.broker.subscriptions.subscribing import RelayedWaits
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.topics.cluster_quota import ClusterQuota
from seaweedq.broker.topics.ownership import Ownership
from seaweedq.broker.topics.topic_admin import TopicAdmin
from seaweedq.broker.uploads.uploads import Uploads
from seaweedq.coordination.cluster_level import ClusterLevel
from seaweedq.coordination.election import Election
from seaweedq.coordination.membership import Membership
from seaweedq.coordination.roster import Roster
from seaweedq.journal.interface import Journal, Journals


def accounts(broker: Broker) -> Accounts:
    return broker.accounts


def audit(broker: Broker) -> Audit:
    return broker.audit


def budget(broker: Broker) -> Budget:
    return broker.budget


def callers(broker: Broker) -> Callers:
    return broker.callers


def catalog(broker: Broker) -> Catalog:
    return broker.catalog


def level(broker: Broker) -> ClusterLevel:
    return broker.level


def quota(broker: Broker) -> ClusterQuota:
    return broker.context.quota


def reader(broker: Broker) -> Reader:
    return broker.log.reader


def roster(broker: Broker) -> Roster:
    return broker.roster


def keyring(broker: Broker) -> PeerKeyring:
    return broker.keyring


def cluster_id(broker: Broker) -> str:
    return broker.context.cluster


def election(broker: Broker) -> Election:
    return broker.context.election


def entry_writer(broker: Broker) -> EntryWriter:
    return broker.context.entries


def journals(broker: Broker) -> Journals:
    return broker.context.journals


def membership(broker: Broker) -> Membership:
    return broker.context.membership


def recovery(broker: Broker) -> JournalRecovery:
    return broker.recovery.journals


def registration(broker: Broker) -> JournalRegistration:
    return broker.recovery.registration


def level_upgrade(broker: Broker) -> LevelUpgrade:
    return broker.leadership.upgrade


def topic_admin(broker: Broker) -> TopicAdmin:
    return broker.topics


def uploads(broker: Broker) -> Uploads:
    return broker.uploading.uploads


def cluster_view(broker: Broker) -> ClusterView:
    return broker.context.view


def audit_topic(broker: Broker) -> AuditTopic:
    return broker.audit_topic


def deletion(broker: Broker) -> TopicDeletion:
    return broker.deletion


def imports(broker: Broker) -> Importing:
    return broker.importing


def writes(broker: Broker) -> Writing:
    return broker.writing


def autoscaler(broker: Broker) -> Autoscaler:
    return broker.leadership.autoscaler


def leader(broker: Broker) -> Leader:
    return broker.leadership.leader


def losses(broker: Broker) -> AcceptedLoss:
    return broker.leadership.losses


def limit_split(broker: Broker) -> LimitSplit:
    return broker.leadership.limits


def empty_entries(broker: Broker) -> EmptyEntries:
    return broker.retaining.empty_entries


def requested_recoveries(broker: Broker) -> RequestedRecoveries:
    return broker.recovery.requested


def retention(broker: Broker) -> Retention:
    return broker.retaining.retention


def dead_letters(broker: Broker) -> DeadLetters:
    return broker.dead_lettering.letters


def loads(broker: Broker) -> Loads:
    return broker.load.loads


def group_commit(broker: Broker) -> GroupCommit:
    return broker.log.commit


def dirty_segments(broker: Broker) -> DirtySegments:
    return broker.log.dirty


def flusher(broker: Broker) -> Flusher:
    return broker.log.flusher


def journal(broker: Broker) -> Journal:
    return broker.log.journal


def segment_log(broker: Broker) -> Log:
    return broker.log


def identities(broker: Broker) -> Identities:
    return broker.publishing.identities


def ownership(broker: Broker) -> Ownership:
    return broker.publishing.ownership


def publisher(broker: Broker) -> Publisher:
    return broker.publishing.publisher


def forward_receiver(broker: Broker) -> ForwardReceiver:
    return broker.publishing.receiver


def local_positions(broker: Broker) -> LocalPositions:
    return broker.reading.local_positions


def positions(broker: Broker) -> TopicPositions:
    return broker.reading.positions


def readables(broker: Broker) -> ReadableSegments:
    return broker.reading.readables


def mover(broker: Broker) -> SegmentMover:
    return broker.reshaping.mover


def planner(broker: Broker) -> Planner:
    return broker.reshaping.planner


def reshaper(broker: Broker) -> Reshaper:
    return broker.reshaping.reshaper


def roller(broker: Broker) -> Roller:
    return broker.reshaping.roller


def watches(broker: Broker) -> TailWatches:
    return broker.streaming.watches


def streams(broker: Broker) -> TopicStreams:
    return broker.streaming.topics


def subscription_admin(broker: Broker) -> SubscriptionAdmin:
    return broker.subscribing.admin


def assignment(broker: Broker) -> Assignment:
    return broker.subscribing.assignment


def dispatcher(broker: Broker) -> Dispatcher:
    return broker.subscribing.dispatcher


def lag_meter(broker: Broker) -> LagMeter:
    return broker.subscribing.meter


def relayed_waits(broker: Broker) -> RelayedWaits:
    return broker.subscribing.waits


def subscription_streams(broker: Broker) -> SubscriptionStreams:
    return broker.streaming.subscriptions


def prober(broker: Broker) -> Prober:
    return broker.suspecting.prober


def responder(broker: Broker) -> Responder:
    return broker.suspecting.responder


def revoker(broker: Broker) -> Revoker:
    return broker.suspecting.revoker


def reports(broker: Broker) -> Reports:
    return broker.load.reports


def histories(broker: Broker) -> Histories:
    return broker.load.histories


def topic(broker: Broker, name: str) -> Topic:
    """A topic as the broker knows it. Raises TopicNotFound."""
    return catalog(broker).topic(name)

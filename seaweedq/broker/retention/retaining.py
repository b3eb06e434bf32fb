"""Retaining: the leader takes what policies say is due, and ends what has expired."""

from seaweedq.broker.context import Context
from seaweedq.broker.log.flusher import Log
from seaweedq.broker.publish.publisher import Publishing
from seaweedq.broker.read.reading import Reading
from seaweedq.broker.retention.empty_entries import EmptyEntries
from seaweedq.broker.retention.files import TopicFiles
from seaweedq.broker.retention.payloads import RetainedPayloads
from seaweedq.broker.retention.restored_coordination_repair import MissingSegments, RestoredCoordinationRepair
from seaweedq.broker.retention.retention import Retention, Scans
from seaweedq.broker.retention.rounds import Rounds
from seaweedq.broker.retention.segment_removal import SegmentRemoval
from seaweedq.broker.retention.subscription_expiry import SubscriptionExpiry
from seaweedq.broker.service import Service
from seaweedq.broker.subscriptions.subscribing import Subscribing


class Retaining(Service):
    """The `retention` of topics and the `expiry` of subscriptions, which the leader has done now and then (no task here
    does it); the `empty_entries` that it asks owners for; the confirmation of a coordination that was `restored`."""

    def __init__(
        self, context: Context, log: Log, publishing: Publishing, reading: Reading, subscribing: Subscribing
    ) -> None:
        view, store, coordination, settings = context.view, context.store, context.coordination, context.settings
        catalog, clock, ownership = context.catalog, context.clock, publishing.ownership
        self.empty_entries = EmptyEntries(
            view, ownership, log.commit, log.flusher, context.peers, settings.publish_timeout_s
        )
        self.files = TopicFiles(catalog, coordination, store, self.empty_entries)
        rounds = Rounds(coordination, store, context.election, clock)
        payloads = RetainedPayloads(
            catalog, coordination, store.payloads, rounds, reading.positions, settings.upload_grace_s
        )
        removal = SegmentRemoval(catalog, coordination, rounds, self.files, clock)
        scans = Scans(catalog, self.files, reading.positions)
        self.retention = Retention(view, rounds, scans, self.files, payloads, removal, settings.retention_grace_s)
        self.expiry = SubscriptionExpiry(catalog, coordination, subscribing.admin, rounds, clock, settings.checkpoint_s)
        missing = MissingSegments(catalog, ownership, reading.readables, context.entries, store)
        self.restored = RestoredCoordinationRepair(catalog, store, rounds, missing, clock)

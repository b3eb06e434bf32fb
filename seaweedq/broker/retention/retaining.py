"""Retaining: the leader takes what policies say is due, and ends what has expired."""

from seaweedq.broker.context import Context
from seaweedq.broker.log.log import Log
from seaweedq.broker.log.marker import Marker
from seaweedq.broker.publish.publishing import Publishing
from seaweedq.broker.read.reading import Reading
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
from seaweedq.broker.service import Service
from seaweedq.broker.subscriptions.subscribing import Subscribing


class Retaining(Service):
    """The `retention` of topics and the `expiry` of subscriptions, which the leader has done now and then (no task here
    does it); the `marks` that it asks owners for; and the confirmation of a coordination that was `restored`."""

    def __init__(
        self, context: Context, log: Log, publishing: Publishing, reading: Reading, subscribing: Subscribing
    ) -> None:
        view, store, coordination, settings = context.view, context.store, context.coordination, context.settings
        catalog, clock, ownership = context.catalog, context.clock, publishing.ownership
        marker = Marker(log.commit, log.flusher, clock)
        self.marks = SegmentMarks(view, ownership, marker, context.peers, settings.publish_timeout_s)
        self.files = TopicFiles(catalog, coordination, store, self.marks)
        rounds = Rounds(coordination, store, context.election, clock)
        payloads = RetainedPayloads(
            catalog, coordination, store.payloads, rounds, reading.positions, settings.upload_grace_s
        )
        taken = Taken(self.files, payloads, Burial(catalog, coordination, rounds, self.files, clock))
        looks = Looks(catalog, self.files, reading.positions)
        self.retention = Retention(view, rounds, looks, taken, settings.retention_grace_s)
        self.expiry = Expiry(catalog, coordination, subscribing.admin, rounds, clock, settings.checkpoint_s)
        lost = LostSegments(catalog, ownership, reading.readables, context.entries, store)
        self.restored = Restored(catalog, store, rounds, lost, clock)

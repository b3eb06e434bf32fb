"""Streaming: messages that are sent as they come, of topics and of subscriptions."""

from seaweedq.broker.context import Context
from seaweedq.broker.read.reading import Reading
from seaweedq.broker.service import Service
from seaweedq.broker.streams.subscription_streams import SubscriptionStreams
from seaweedq.broker.streams.tail_watch import TailWatches
from seaweedq.broker.streams.topic_streams import TopicStreams
from seaweedq.broker.subscriptions.subscribing import Subscribing
from seaweedq.broker.uploads.uploading import Uploading


class Streaming(Service):
    """The streams of `topics`, which all end with their watches, and those of `subscriptions`."""

    def __init__(self, context: Context, reading: Reading, subscribing: Subscribing, uploading: Uploading) -> None:
        catalog, readables = context.catalog, reading.readables
        self.watches = TailWatches(catalog, readables)
        self.topics = TopicStreams(catalog, readables, reading.positions, context.tombstones, self.watches)
        self.subscriptions = SubscriptionStreams(
            subscribing.admin, subscribing.dispatcher, subscribing.finder, uploading.payloads, context.peers
        )

    def begin_stop(self) -> None:
        """Ends all streams, also those that begin later."""
        self.watches.end()

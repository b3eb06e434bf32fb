"""Publishing: the services that take messages, and hand on those of other brokers' segments."""

from seaweedq.broker.context import Context
from seaweedq.broker.log.log import Log
from seaweedq.broker.publish.forwarder import Forwarder, ForwardReceiver, Identities
from seaweedq.broker.publish.local_append import LocalAppender
from seaweedq.broker.publish.publisher import Publisher
from seaweedq.broker.publish.remote_append import RemoteAppender
from seaweedq.broker.service import Service
from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.topics.ownership import Ownership
from seaweedq.broker.topics.restored_coordination import RestoredCoordination


class Publishing(Service):
    """The owners of segments, the `publisher`, and the `receiver` of the rows that other brokers hand on."""

    def __init__(self, context: Context, log: Log) -> None:
        catalog, timeout_s = context.catalog, context.settings.publish_timeout_s
        self.restored = RestoredCoordination(context.coordination, context.store, context.clock)
        self.ownership = Ownership(catalog, context.store, context.membership, context.budget, log.dirty, self.restored)
        self.identities = Identities(context.broker, catalog.is_open)
        local, forwarder = LocalAppender(log.commit), Forwarder(context.peers, timeout_s)
        remote = RemoteAppender(
            catalog, self.ownership, context.roster, local, forwarder, self.identities, context.clock
        )
        self.publisher = Publisher(self.ownership, log.commit, local, remote, context.ids, context.clock, timeout_s)
        self.receiver = ForwardReceiver(catalog, self.ownership, local, self.publisher.deadline)

    def forget(self, topic: Topic) -> None:
        """Forgets the identities under which rows of the topic are handed on."""
        self.identities.forget(topic)

"""Auditing: the audit's events become messages of a topic, if the settings say so."""

from seaweedq.broker.audit.audit import Audit
from seaweedq.broker.audit.topic import AuditTopic
from seaweedq.broker.context import Context
from seaweedq.broker.publish.publishing import Publishing
from seaweedq.broker.service import Service, Tasks
from seaweedq.broker.topics.topic_admin import TopicAdmin


class Auditing(Service):
    """Writes the events of this broker into the audit's `topic`."""

    def __init__(self, context: Context, audit: Audit, admin: TopicAdmin, publishing: Publishing) -> None:
        self.topic = AuditTopic(
            audit, context.catalog, admin, publishing.publisher, context.broker, context.written_level
        )

    async def run(self) -> Tasks:
        """Publishes events."""
        return {"audit": self.topic.run()} if self.topic.audit.mode == "topic" else {}

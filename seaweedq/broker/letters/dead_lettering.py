"""Dead-lettering: messages that were given too often, or that their consumer refused, go to another topic."""

from seaweedq.broker.context import Context
from seaweedq.broker.letters.letters import DeadLetters
from seaweedq.broker.letters.payload_copies import PayloadCopies
from seaweedq.broker.letters.target import LetterTopics
from seaweedq.broker.publish.publishing import Publishing
from seaweedq.broker.read.reading import Reading
from seaweedq.broker.service import Service, Tasks
from seaweedq.broker.subscriptions.subscribing import Subscribing
from seaweedq.broker.topics.topic_admin import TopicAdmin
from seaweedq.broker.uploads.uploading import Uploading


class DeadLettering(Service):
    """Moves the dead `letters` of the subscriptions that this broker dispatches, into `topics`."""

    def __init__(
        self,
        context: Context,
        admin: TopicAdmin,
        publishing: Publishing,
        reading: Reading,
        subscribing: Subscribing,
        uploading: Uploading,
    ) -> None:
        self.topics = LetterTopics(context.catalog, admin, context.callers)
        copies = PayloadCopies(uploading.payloads, context.store.payloads)
        self.letters = DeadLetters(
            context.view, subscribing.dispatcher, reading.readables, self.topics, publishing.publisher, copies
        )

    async def run(self) -> Tasks:
        """Moves dead letters."""
        return {"dead letters": self.letters.run()}

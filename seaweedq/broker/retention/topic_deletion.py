"""Deleting a topic: in coordination, at the brokers that own its segments, and on this broker.

broker/topics/topic_admin has the order of writes, and the state behind a crash. A deletion can be repeated at any
broker.
"""

from collections.abc import Awaitable, Callable

from seaweedq.broker.imports.importing import Importing
from seaweedq.broker.imports.writing import Writing
from seaweedq.broker.log.flusher import Log
from seaweedq.broker.read.positions import TopicPositions
from seaweedq.broker.reshape.reshaper import Reshaper
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.topics.topic_admin import TopicAdmin
from seaweedq.broker.uploads.uploads import Uploads
from seaweedq.errors import TopicBeingDeleted


def refuse_more(topic: Topic) -> None:
    """Closes the open segments of a topic that is being deleted or gone, and wakes all that wait for it."""
    reason = TopicBeingDeleted(f"topic {topic.name!r} is being deleted", topic=topic.name)
    for segment in topic.opened.values():
        segment.close(reason)
    topic.signal.wake()
    topic.moved.wake()


class TopicDeletion:
    """Deletes topics with their data, and ends this broker's part of one that another broker deletes."""

    def __init__(
        self,
        catalog: Catalog,
        admin: TopicAdmin,
        positions: TopicPositions,
        log: Log,
        reshaper: Reshaper,
        file_work: tuple[Importing, Writing],
        uploads: Uploads,
        check_generation: Callable[[], Awaitable[None]],
    ) -> None:
        self._catalog = catalog
        self._admin = admin
        self._positions = positions
        self._log = log
        self._reshaper = reshaper
        self._file_work = file_work
        self._uploads = uploads
        self._check_generation = check_generation

    async def delete(self, topic: Topic) -> None:
        """Deletes a topic. A caller that comes while a deletion is under way waits for it. Raises NeedsNewerBroker,
        Fenced."""
        async with topic.deleting:
            self._catalog.check_readable(topic.name)
            if self._catalog.get(topic.name) is not topic:
                return  # and its folder may be another one's now
            await self._admin.begin_delete(topic)
            await self._positions.close(topic, lambda: self.close(topic))
            await self._check_generation()  # from here on objects of the store go
            for works in self._file_work:
                await works.remove_topic(topic)
            await self._uploads.remove_topic(topic)
            await self._admin.finish_delete(topic)

    async def close(self, topic: Topic) -> None:
        """Waits until nothing of a topic that is being deleted is under way on this broker."""
        await self._reshaper.stop(topic)
        await self._log.commit.wait_until_idle()
        for segment in list(topic.opened.values()):
            await self._log.flusher.abandon(segment)
            segment.drop_flushed(segment.end)
            self._log.dirty.discard(segment)

"""The records of uploads in coordination: written, looked up, and changed by comparing their revision."""

from collections.abc import AsyncIterator, Callable

from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.uploads.rules import incarnation_of
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Coordination, Entry, Put
from seaweedq.coordination.records import UploadRecord
from seaweedq.coordination.transactions import entries
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import NotReady, UploadNotFound

PAGE = 200  # records read at a time


class UploadRecords:
    """All of them."""

    def __init__(self, catalog: Catalog, coordination: Coordination) -> None:
        self._catalog = catalog
        self._coordination = coordination

    async def write(self, topic: Topic, upload: str, record: UploadRecord) -> None:
        """Write a new one, unless the topic is being deleted: none comes behind the deletion's look at them. Raises
        TopicBeingDeleted."""
        put = Put(key_of(topic, upload), keys.UPLOADS.encode(record))
        there = keys.TOPICS.key(topic.name)
        self._catalog.check(topic)
        while not await self._coordination.commit([Compare(put.key, 0), Compare(there, topic.revision)], [put]):
            await self._catalog.look(topic.name)
            self._catalog.check(topic)

    async def look(self, topic: Topic, upload: str) -> Versioned[UploadRecord]:
        """One of this very topic, whatever its state, and its revision. Raises UploadNotFound, and NotReady where it is
        of a topic of that name that this broker has not heard of yet."""
        incarnation = incarnation_of(upload)
        if incarnation != topic.record.incarnation:
            if incarnation is not None and incarnation > topic.record.incarnation:
                await self._catalog.look(topic.name)
                if self._catalog.find(topic.name) is not topic:
                    raise NotReady(f"topic {topic.name!r} has just been changed; try again")
            raise not_found(topic, upload)
        there = await self._coordination.get(key_of(topic, upload))
        if there is None:
            raise not_found(topic, upload)
        return keys.UPLOADS.read(there)

    async def change(
        self,
        topic: Topic,
        upload: str,
        decide: Callable[[UploadRecord], UploadRecord],
        found: Versioned[UploadRecord] | None = None,
    ) -> Versioned[UploadRecord]:
        """Bring a record to what `decide` makes of it, as it is now (pure; what it raises, this raises). `found` saves
        a look. Raises UploadNotFound."""
        while True:
            found = found or await self.look(topic, upload)
            wanted = decide(found.record)
            if wanted == found.record:
                return found
            put = Put(key_of(topic, upload), keys.UPLOADS.encode(wanted))
            changed = await self._coordination.commit([Compare(put.key, found.revision)], [put])
            if changed:
                return Versioned(wanted, changed)
            found = None

    def of(self, topic: Topic) -> AsyncIterator[Entry]:
        """Yields all of a topic's, a page at a time."""
        return entries(self._coordination, keys.UPLOADS.prefix(topic.name, topic.record.incarnation), limit=PAGE)


def key_of(topic: Topic, upload: str) -> str:
    """The key of an upload of a topic."""
    return keys.UPLOADS.key(topic.name, topic.record.incarnation, upload)


def not_found(topic: Topic, upload: str) -> UploadNotFound:
    """There is no such upload, or no more."""
    detail = f"topic {topic.name!r} has no upload {upload[:100]!r}, or no longer has it"
    return UploadNotFound(detail, topic=topic.name, upload_id=upload[:100])

"""The records of uploads in coordination: creation, lookup, and changes that compare the revision."""

from collections.abc import AsyncIterator, Callable

from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.uploads.rules import incarnation_of
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Coordination, Entry, Put
from seaweedq.coordination.records.uploads import UploadRecord
from seaweedq.coordination.records.versioned import Versioned
from seaweedq.coordination.transactions import entries
from seaweedq.errors import NotReady, UploadNotFound

PAGE = 200  # records read at a time


class UploadRecords:
    """The records of all topics' uploads."""

    def __init__(self, catalog: Catalog, coordination: Coordination) -> None:
        self._catalog = catalog
        self._coordination = coordination

    async def write(self, topic: Topic, upload: str, record: UploadRecord) -> None:
        """Writes a new record, unless the topic is being deleted: none is created after the deletion has listed them.
        Raises TopicBeingDeleted."""
        put = Put(key_of(topic, upload), keys.UPLOADS.encode(Versioned.new(record)))
        there = keys.TOPICS.key(topic.name)
        self._catalog.check(topic)
        while not await self._coordination.commit([Compare(put.key, 0), Compare(there, topic.revision)], [put]):
            await self._catalog.look(topic.name)
            self._catalog.check(topic)

    async def look(self, topic: Topic, upload: str) -> Versioned[UploadRecord]:
        """Returns a record of this very topic, whatever its state, with its revision. Raises UploadNotFound, and
        NotReady where it belongs to a topic of that name that this broker does not know yet, and NeedsNewerBroker."""
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
        return keys.UPLOADS.require(there)

    async def change(
        self,
        topic: Topic,
        upload: str,
        decide: Callable[[UploadRecord], UploadRecord],
        found: Versioned[UploadRecord] | None = None,
    ) -> Versioned[UploadRecord]:
        """Replaces a record by what `decide` makes of the present one (pure; its errors are raised here). `found` saves
        a lookup. Raises UploadNotFound."""
        while True:
            found = found or await self.look(topic, upload)
            wanted = decide(found.record)
            if wanted == found.record:
                return found
            changed = found.with_record(wanted)
            put = Put(key_of(topic, upload), keys.UPLOADS.encode(changed))
            if revision := await self._coordination.commit([Compare(put.key, found.revision)], [put]):
                return changed.stored(revision)
            found = None

    def of(self, topic: Topic) -> AsyncIterator[Entry]:
        """Yields all records of a topic, a page at a time."""
        return entries(self._coordination, keys.UPLOADS.prefix(topic.name, topic.record.incarnation), limit=PAGE)


def key_of(topic: Topic, upload: str) -> str:
    """Returns the key of an upload of a topic."""
    return keys.UPLOADS.key(topic.name, topic.record.incarnation, upload)


def not_found(topic: Topic, upload: str) -> UploadNotFound:
    """Returns the error for an upload that does not exist, or not any more."""
    detail = f"topic {topic.name!r} has no upload {upload[:100]!r}, or no longer has it"
    return UploadNotFound(detail, topic=topic.name, upload_id=upload[:100])

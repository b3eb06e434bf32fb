"""The records of imports: reads, creation while their topic exists, and changes that compare the revision."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Coordination, Delete, Put, entries, read_all
from seaweedq.coordination.membership import Membership
from seaweedq.coordination.records import ImportRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import NotReady

PAGE = 50


@dataclass(frozen=True, slots=True)
class ImportId:
    """The identity of an import."""

    topic: str
    incarnation: int
    upload_id: str

    @staticmethod
    def of(topic: Topic, upload_id: str) -> "ImportId":
        """Returns the import of an upload of a topic."""
        return ImportId(topic.name, topic.record.incarnation, upload_id)

    @property
    def key(self) -> str:
        """The key of its record."""
        return keys.IMPORTS.key(self.topic, self.incarnation, self.upload_id)


class ImportRecords:
    """Reads and writes the records of imports."""

    def __init__(self, catalog: Catalog, coordination: Coordination, membership: Membership) -> None:
        self._catalog = catalog
        self._coordination = coordination
        self._membership = membership

    async def read(self, where: ImportId) -> Versioned[ImportRecord] | None:
        """Returns the record as it is now. Raises NeedsNewerBroker."""
        there = await self._coordination.get(where.key)
        return keys.IMPORTS.require(there) if there else None

    async def create(self, topic: Topic, where: ImportId, record: ImportRecord) -> Versioned[ImportRecord]:
        """Creates the record, or returns the one of a faster broker. Raises NotReady, TopicBeingDeleted,
        TopicNotFound."""
        while True:
            topic_there = Compare(keys.TOPICS.key(topic.name), topic.revision)
            compares = [Compare(where.key, 0), topic_there, self._membership.compare()]
            held = Versioned.new(record)
            revision = await self._coordination.commit(compares, [Put(where.key, keys.IMPORTS.encode(held))])
            if revision:
                return held.stored(revision)
            if there := await self.read(where):
                return there
            if not self._membership.valid():
                raise NotReady("this broker's lease has expired")
            await self._catalog.load()
            topic = self._catalog.topic(where.topic)
            if topic.record.incarnation != where.incarnation:
                raise NotReady(f"topic {topic.name!r} was deleted and created again in the meantime")

    async def write(
        self, where: ImportId, held: Versioned[ImportRecord], record: ImportRecord
    ) -> Versioned[ImportRecord] | None:
        """Replaces a record. Returns None where another broker was faster, or the record is gone. A write whose answer
        was lost is found done when it is repeated."""
        wanted = held.with_record(record)
        value = keys.IMPORTS.encode(wanted)
        revision = await self._coordination.commit([Compare(where.key, held.revision)], [Put(where.key, value)])
        if revision:
            return wanted.stored(revision)
        there = await self._coordination.get(where.key)
        mine = there is not None and there.value == value and record.broker in (None, self._membership.broker)
        return wanted.stored(there.revision) if there and mine else None

    async def drop(self, where: ImportId, held: Versioned[ImportRecord]) -> None:
        """Removes the record, unless it has changed."""
        await self._coordination.commit([Compare(where.key, held.revision)], [Delete(where.key)])

    async def drop_all(self, topic: Topic) -> None:
        """Removes all records of a topic."""
        entries, _ = await read_all(self._coordination, keys.IMPORTS.prefix(topic.name, topic.record.incarnation))
        for start in range(0, len(entries), PAGE):
            await self._coordination.commit([], [Delete(entry.key) for entry in entries[start : start + PAGE]])

    async def all(self) -> AsyncIterator[tuple[ImportId, Versioned[ImportRecord]]]:
        """Yields the records of all topics that can be read."""
        async for entry in entries(self._coordination, keys.IMPORTS.prefix()):
            found = keys.IMPORTS.read(entry)
            if isinstance(found, Versioned):
                yield ImportId(*keys.IMPORTS.parse(entry.key)), found

"""The records of imports: read, created with their topic, changed by whoever compares what it saw."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Coordination, Delete, Put
from seaweedq.coordination.membership import Membership
from seaweedq.coordination.records import ImportRecord
from seaweedq.coordination.transactions import entries, read_all
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import NotReady

PAGE = 50


@dataclass(frozen=True, slots=True)
class Where:
    """Which import."""

    topic: str
    incarnation: int
    upload_id: str

    @staticmethod
    def of(topic: Topic, upload_id: str) -> "Where":
        """The import of an upload of a topic."""
        return Where(topic.name, topic.record.incarnation, upload_id)

    @property
    def key(self) -> str:
        """Its key."""
        return keys.IMPORTS.key(self.topic, self.incarnation, self.upload_id)


class ImportRecords:
    """Reads and writes them."""

    def __init__(self, catalog: Catalog, coordination: Coordination, membership: Membership) -> None:
        self._catalog = catalog
        self._coordination = coordination
        self._membership = membership

    async def read(self, where: Where) -> Versioned[ImportRecord] | None:
        """The record, read anew."""
        there = await self._coordination.get(where.key)
        return keys.IMPORTS.read(there) if there else None

    async def create(self, topic: Topic, where: Where, record: ImportRecord) -> Versioned[ImportRecord]:
        """Create it, or find the one that somebody else was faster with. Raises NotReady, TopicBeingDeleted,
        TopicNotFound."""
        while True:
            there = Compare(keys.TOPICS.key(topic.name), topic.revision)
            compares = [Compare(where.key, 0), there, self._membership.compare()]
            revision = await self._coordination.commit(compares, [Put(where.key, keys.IMPORTS.encode(record))])
            if revision:
                return Versioned(record, revision)
            if held := await self.read(where):
                return held
            if not self._membership.valid():
                raise NotReady("this broker's lease has expired")
            await self._catalog.load()
            topic = self._catalog.topic(where.topic)
            if topic.record.incarnation != where.incarnation:
                raise NotReady(f"topic {topic.name!r} was deleted and created again in the meantime")

    async def write(
        self, where: Where, held: Versioned[ImportRecord], record: ImportRecord
    ) -> Versioned[ImportRecord] | None:
        """Change it from what was held; None: somebody else did, or it is gone. A write whose answer was lost is found
        done when it is tried again."""
        value = keys.IMPORTS.encode(record)
        revision = await self._coordination.commit([Compare(where.key, held.revision)], [Put(where.key, value)])
        if revision:
            return Versioned(record, revision)
        there = await self._coordination.get(where.key)
        mine = there is not None and there.value == value and record.broker in (None, self._membership.broker)
        return Versioned(record, there.revision) if there and mine else None

    async def drop(self, where: Where, held: Versioned[ImportRecord]) -> None:
        """Remove it, unless it has changed."""
        await self._coordination.commit([Compare(where.key, held.revision)], [Delete(where.key)])

    async def drop_all(self, topic: Topic) -> None:
        """Remove all of a topic."""
        entries, _ = await read_all(self._coordination, keys.IMPORTS.prefix(topic.name, topic.record.incarnation))
        for start in range(0, len(entries), PAGE):
            await self._coordination.commit([], [Delete(entry.key) for entry in entries[start : start + PAGE]])

    async def all(self) -> AsyncIterator[tuple[Where, Versioned[ImportRecord]]]:
        """Those of all topics."""
        async for entry in entries(self._coordination, keys.IMPORTS.prefix()):
            yield Where(*keys.IMPORTS.parse(entry.key)), keys.IMPORTS.read(entry)

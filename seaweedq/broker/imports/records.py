"""The records of imports: their states, what follows a state, which broker continues an import, and their reads and
writes in coordination. docs/internals/by-reference.md ("Imports") has the states and the order of writes.
"""

import zlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

import msgspec

from seaweedq.broker.publish.batch_split import AppendedRows
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Coordination, Delete, Put, entries, read_all
from seaweedq.coordination.membership import Membership
from seaweedq.coordination.records import ImportedSegment, ImportProblem, ImportRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import NotReady
from seaweedq.segments.producers import IMPORT

PAGE = 50
SAVED_EVERY = 4  # batches; less than the requests of a producer that a key range remembers
KEPT_US = 24 * 3600 * 1_000_000  # after the expiry of its upload
NEXT: dict[str, frozenset[str]] = {
    "checking": frozenset({"running", "failed"}),
    "running": frozenset({"done", "failed"}),
    "done": frozenset(),
    "failed": frozenset(),
}


def producer_of(upload_id: str) -> str:
    """Returns the producer of an import. No client's producer has a name that begins so."""
    return f"{IMPORT}{upload_id}"


def with_state(record: ImportRecord, state: str, **changes: object) -> ImportRecord:
    """Returns the record in its next state. Raises ValueError for a state that cannot follow."""
    if state not in NEXT[record.state]:
        raise ValueError(f"an import cannot change from {record.state} to {state}")
    return msgspec.structs.replace(record, state=state, **changes)


def with_progress(record: ImportRecord, count: int, appended: Iterable[AppendedRows]) -> ImportRecord:
    """Returns the record once `count` more rows, the next ones of the file, are durable at the places in `appended`."""
    segments = {one.segment: one for one in record.segments}
    for rows in appended:
        first, size = rows.first, len(rows.indexes)
        new = ImportedSegment(rows.segment, first, first + size - 1, size)
        segments[rows.segment] = _together(segments.get(rows.segment), new)
    ordered = tuple(segments[number] for number in sorted(segments))
    return msgspec.structs.replace(record, rows_done=record.rows_done + count, segments=ordered)


def _together(old: ImportedSegment | None, new: ImportedSegment) -> ImportedSegment:
    if old is None:
        return new
    first, last = min(old.first_offset, new.first_offset), max(old.last_offset, new.last_offset)
    return ImportedSegment(new.segment, first, last, old.count + new.count)


def with_failure(record: ImportRecord, problem: ImportProblem) -> ImportRecord:
    """Returns the record of an import that has failed."""
    return with_state(record, "failed", problem=problem, broker=None)


def is_over(record: ImportRecord) -> bool:
    """Tells whether the import has ended."""
    return not NEXT[record.state]


def adopter(upload_id: str, brokers: Iterable[str]) -> str | None:
    """Returns the broker that continues an import which no broker works on, by rendezvous hashing."""
    return max(brokers, key=lambda broker: (zlib.crc32(f"{broker}/{upload_id}".encode()), broker), default=None)


def is_outlived(record: ImportRecord, now_us: int) -> bool:
    """Tells whether the record may be removed: nobody can import that upload again."""
    return is_over(record) and now_us > record.expires_us + KEPT_US


@dataclass(frozen=True, slots=True)
class ImportId:
    """The identity of an import."""

    topic: str
    incarnation: int
    upload_id: str

    @staticmethod
    def from_topic(topic: Topic, upload_id: str) -> "ImportId":
        """Returns the import of an upload of a topic."""
        return ImportId(topic.name, topic.record.incarnation, upload_id)

    @property
    def key(self) -> str:
        """Returns the key of its record."""
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
        """Replaces a record. Returns None if another broker was faster, or the record is gone. A write whose answer
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

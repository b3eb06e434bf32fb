"""The records of imports and of writes, which both are *file work*: their states, what follows a state, which broker
continues one, and their reads and writes in coordination. docs/internals/by-reference.md ("Imports", "Writes") has the
states and the order of writes.
"""

import hashlib
import zlib
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from seaweedq.broker.context import Context
from seaweedq.broker.publish.batch_split import AppendedRows
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.coordination.interface import Compare, Delete, Put, entries, read_all
from seaweedq.coordination.keys import TOPICS, KeyKind
from seaweedq.coordination.records import ImportedSegment, ImportProblem, ImportRecord, WriteRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import NotReady, TopicNotFound
from seaweedq.segments.producers import IMPORT, WRITE

Work = TypeVar("Work", bound=ImportRecord | WriteRecord)
PAGE = 50
SAVED_EVERY = 4  # batches; less than the requests of a producer that a key range remembers
DAY_US = 24 * 3600 * 1_000_000
KEPT_US = DAY_US  # an import, after the expiry of its upload
WRITER_KEPT_US, DRAWN_KEPT_US = 30 * DAY_US, DAY_US  # a writer, after its last write; one whose name was drawn
NEXT: dict[str, frozenset[str]] = {
    "checking": frozenset({"running", "failed"}),
    "running": frozenset({"done", "failed"}),
    "done": frozenset(),
    "failed": frozenset(),
}


def producer_of(name: str, record: ImportRecord | WriteRecord) -> tuple[str, int]:
    """Returns the producer of a work of this name, and the sequence of its first row. No client's producer has a name
    that begins so."""
    if isinstance(record, WriteRecord):
        return f"{WRITE}{name}.{record.nonce}", record.first
    return f"{IMPORT}{name}", 0


def with_state(record: Work, state: str, **changes: object) -> Work:
    """Returns the record in its next state. Raises ValueError for a state that cannot follow."""
    if state not in NEXT[record.state]:
        raise ValueError(f"the record of an import or write cannot change from state {record.state} to state {state}")
    return msgspec.structs.replace(record, state=state, **changes)


def with_progress(record: Work, count: int, appended: Iterable[AppendedRows]) -> Work:
    """Returns the record once `count` more rows, the next ones, are durable at the places in `appended`."""
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


def ended(record: Work, broker: str, now_us: int, problem: ImportProblem | None = None) -> Work:
    """Returns the record once all rows are durable, or the work has failed by this `problem`."""
    state = "done" if problem is None else "failed"
    if isinstance(record, WriteRecord):
        more = {"listed": None, "ended_us": now_us, "ended_by": broker}
        return with_state(record, state, problem=problem, broker=None, **more)
    return with_state(record, state, problem=problem, broker=None)


def is_over(record: ImportRecord | WriteRecord) -> bool:
    """Tells whether the work has ended."""
    return not NEXT[record.state]


def adopter(name: str, brokers: Iterable[str]) -> str | None:
    """Returns the broker that continues a work which no broker works on, by rendezvous hashing."""
    return max(brokers, key=lambda broker: (zlib.crc32(f"{broker}/{name}".encode()), broker), default=None)


def is_outlived(record: ImportRecord | WriteRecord, now_us: int) -> bool:
    """Tells whether the record may be removed: nobody can import that upload again, or the writer counts as gone."""
    if isinstance(record, WriteRecord):
        kept_us = DRAWN_KEPT_US if record.drawn else WRITER_KEPT_US
        return record.ended_us is not None and now_us > record.ended_us + kept_us
    return is_over(record) and now_us > record.expires_us + KEPT_US


def is_replaceable(record: WriteRecord) -> bool:
    """Tells whether a write of the same number may take the place of this one: it has failed, and taken nothing."""
    return record.state == "failed" and record.rows is None


def digest_of(uploads: Sequence[str]) -> str:
    """Returns the digest of the ids of some uploads, whatever their order."""
    return hashlib.sha256("\n".join(sorted(uploads)).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class WorkId:
    """The identity of an import, whose `name` is that of its upload, or of a writer's newest write."""

    topic: str
    incarnation: int
    name: str

    @staticmethod
    def from_topic(topic: Topic, name: str) -> "WorkId":
        """Returns the work of this name on a topic."""
        return WorkId(topic.name, topic.record.incarnation, name)

    def find_topic(self, catalog: Catalog) -> Topic:
        """Returns the topic as it is now. Raises TopicNotFound, also if it is another one by now, and
        TopicBeingDeleted."""
        topic = catalog.topic(self.topic)
        if topic.record.incarnation != self.incarnation:
            raise TopicNotFound(f"topic {self.topic!r} was deleted and created again", topic=self.topic)
        return topic


class WorkRecords(Generic[Work]):
    """Reads and writes the records of imports, or of writes."""

    def __init__(self, kind: KeyKind[Work], context: Context) -> None:
        self.kind = kind
        self._catalog = context.catalog
        self._coordination = context.coordination
        self._membership = context.membership
        self._changes = context.changes

    async def read(self, where: WorkId) -> Versioned[Work] | None:
        """Returns the record as it is now. Raises NeedsNewerBroker."""
        there = await self._coordination.get(self.key(where))
        return self.kind.require(there) if there else None

    async def page(self, topic: Topic, after: str | None, limit: int) -> tuple[Sequence[tuple[str, Work]], str | None]:
        """Returns at most `limit` records of a topic behind the name `after`, by name, and the last name if more
        follow. Those that cannot be read are left out."""
        prefix = self.kind.prefix(topic.name, topic.record.incarnation)
        found = await self._coordination.range(prefix, f"{prefix}{after}" if after else "", limit)
        read = [(self.kind.parse(one.key)[2], self.kind.read(one)) for one in found.entries]
        records = [(name, held.record) for name, held in read if isinstance(held, Versioned)]
        return records, read[-1][0] if found.more else None

    async def count(self, topic: Topic) -> int:
        """Returns the number of a topic's records."""
        return await self._coordination.count(self.kind.prefix(topic.name, topic.record.incarnation))

    async def back_up(self, where: WorkId, held: Versioned[Work]) -> None:
        """Has the store know a record of a kind that administrative changes have: before a row is taken, and before
        anybody is told of its end. Raises StoreUnavailable, Fenced."""
        if self.kind.backup == "both":
            await self._changes.put(held.revision, [Put(self.key(where), self.kind.encode(held))])

    def key(self, where: WorkId) -> str:
        """Returns the key of a record."""
        return self.kind.key(where.topic, where.incarnation, where.name)

    async def create(
        self, topic: Topic, where: WorkId, record: Work, before: Versioned[Work] | None = None
    ) -> Versioned[Work]:
        """Creates the record in place of the one `before`, or returns the one of a faster broker. Raises NotReady,
        TopicBeingDeleted, TopicNotFound."""
        key = self.key(where)
        while True:
            topic_there = Compare(TOPICS.key(topic.name), topic.revision)
            compares = [Compare(key, before.revision if before else 0), topic_there, self._membership.compare()]
            held = Versioned.new(record)
            revision = await self._coordination.commit(compares, [Put(key, self.kind.encode(held))])
            if revision:
                return held.stored(revision)
            there = await self.read(where)
            if there and (before is None or there.revision != before.revision):
                return there
            before = there
            if not self._membership.valid():
                raise NotReady("this broker's lease has expired")
            await self._catalog.load()
            topic = self._catalog.topic(where.topic)
            if topic.record.incarnation != where.incarnation:
                raise NotReady(f"topic {topic.name!r} was deleted and created again while the request was running")

    async def write(self, where: WorkId, held: Versioned[Work], record: Work) -> Versioned[Work] | None:
        """Replaces a record. Returns None if another broker was faster, or the record is gone. A write whose answer
        was lost is found done when it is repeated."""
        wanted, key = held.with_record(record), self.key(where)
        value = self.kind.encode(wanted)
        revision = await self._coordination.commit([Compare(key, held.revision)], [Put(key, value)])
        if revision:
            return wanted.stored(revision)
        there = await self._coordination.get(key)
        mine = there is not None and there.value == value and record.broker in (None, self._membership.broker)
        return wanted.stored(there.revision) if there and mine else None

    async def drop(self, where: WorkId, held: Versioned[Work]) -> None:
        """Removes the record, unless it has changed."""
        key = self.key(where)
        await self._coordination.commit([Compare(key, held.revision)], [Delete(key)])

    async def drop_all(self, topic: Topic) -> None:
        """Removes all records of a topic."""
        found, _ = await read_all(self._coordination, self.kind.prefix(topic.name, topic.record.incarnation))
        for start in range(0, len(found), PAGE):
            await self._coordination.commit([], [Delete(entry.key) for entry in found[start : start + PAGE]])

    async def all(self) -> AsyncIterator[tuple[WorkId, Versioned[Work]]]:
        """Yields the records of all topics that can be read."""
        async for entry in entries(self._coordination, self.kind.prefix()):
            found = self.kind.read(entry)
            if isinstance(found, Versioned):
                yield WorkId(*self.kind.parse(entry.key)), found

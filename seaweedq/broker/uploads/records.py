"""The records of uploads in coordination: creation, lookup, changes that compare the revision, the number of open ones,
and the removal of the objects that they stand for.

The number of open uploads of a topic is bounded, so that nobody fills the store with payloads that are never published.
A count reads all of a topic's upload records, so it is made at most every RECOUNT_S, more seldom if they are many, and
this broker's own uploads since are added. Before a request is refused the count is made again. So the limit is exact
for the uploads of one broker; several brokers may together exceed it by those that they begin between two counts.
Uploads for writes have a limit and a count of their own.

Only an object whose record says `removed`, which no publish can take back, or an object of a dead incarnation is
deleted.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakKeyDictionary

from msgspec import UNSET

from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.uploads import rules
from seaweedq.broker.uploads.rules import incarnation_of
from seaweedq.checks import reach
from seaweedq.clock import Clock
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Coordination, Entry, Page, Put, pages
from seaweedq.coordination.records import UploadRecord
from seaweedq.coordination.versioned import Unreadable, Versioned
from seaweedq.errors import NotReady, TooManyUploads, UploadConflict, UploadNotFound
from seaweedq.storage.interface import ObjectStore, PayloadStore

PAGE = 200  # records read at a time
COUNTED = 1000  # by a count, at a time: 5 ms
RECOUNT_S = 30.0
SHORT = 10_000  # records: a count of n times as many is made n times as seldom
FULL_S = 1.0  # between two counts that refuse requests
AT_ONCE = 16


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
            await self._catalog.refresh(topic.name)
            self._catalog.check(topic)

    async def require(self, topic: Topic, upload: str) -> Versioned[UploadRecord]:
        """Returns a record of this very topic, whatever its state, with its revision. Raises UploadNotFound, and
        NotReady if it belongs to a topic of that name that this broker does not know yet, and NeedsNewerBroker."""
        incarnation = incarnation_of(upload)
        if incarnation != topic.record.incarnation:
            if incarnation is not None and incarnation > topic.record.incarnation:
                await self._catalog.refresh(topic.name)
                if self._catalog.get(topic.name) is not topic:
                    raise NotReady(f"another request has just changed topic {topic.name!r}; try again")
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
        guard: Callable[[Topic, UploadRecord], Awaitable[Sequence[Compare]]] | None = None,
    ) -> Versioned[UploadRecord]:
        """Replaces a record by the one that `decide` returns for it (pure; its errors are raised here), if what `guard`
        returns holds then. `found` saves a lookup. Raises UploadNotFound."""
        while True:
            found = found or await self.require(topic, upload)
            wanted = decide(found.record)
            if wanted == found.record:
                return found
            changed = found.with_record(wanted)
            put = Put(key_of(topic, upload), keys.UPLOADS.encode(changed))
            more = await guard(topic, found.record) if guard else ()
            if revision := await self._coordination.commit([Compare(put.key, found.revision), *more], [put]):
                return changed.stored(revision)
            found = None

    async def unread(self, topic: Topic, record: UploadRecord) -> Sequence[Compare]:
        """Returns comparisons that no write is reading an upload. Raises UploadConflict if one may be."""
        if record.write is UNSET:
            return ()
        newest = NewestWrites(self._coordination)
        write = await newest.find(topic.name, topic.record.incarnation, record.write)
        if write.may_read:
            raise UploadConflict(
                f"the upload cannot be removed: it belongs to the write {record.write}, which has not "
                "ended and may still need the upload"
            )
        return (write.compare,)

    def pages(self, topic: Topic, limit: int = PAGE) -> AsyncIterator[Page]:
        """Yields all records of a topic, so many at a time."""
        return pages(self._coordination, keys.UPLOADS.prefix(topic.name, topic.record.incarnation), limit=limit)


class UploadsWrite(NamedTuple):
    """The relation of a write to its upload: whether a broker may be reading it, and when the write was settled (None
    if it is not), which holds while `compare` does."""

    may_read: bool
    settled_us: int | None
    compare: Compare


class NewestWrites:
    """The newest writes of writers, each read once."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination
        self._known: dict[str, Entry | None] = {}

    async def find(self, topic: str, incarnation: int, write: str) -> UploadsWrite:
        """Returns what the write `{writer}/{number}` is to its uploads."""
        writer, _, number = write.rpartition("/")
        key = keys.WRITES.key(topic, incarnation, writer)
        if key not in self._known:
            self._known[key] = await self._coordination.get(key)
        entry = self._known[key]
        if entry is None:
            return UploadsWrite(False, None, Compare(key, 0))
        held, compare = keys.WRITES.read(entry), Compare(key, entry.revision)
        if isinstance(held, Unreadable):
            return UploadsWrite(True, None, compare)
        newest = held.record
        return UploadsWrite(rules.may_read(newest, int(number)), rules.settled_us(newest, int(number)), compare)


def key_of(topic: Topic, upload: str) -> str:
    """Returns the key of an upload of a topic."""
    return keys.UPLOADS.key(topic.name, topic.record.incarnation, upload)


def not_found(topic: Topic, upload: str) -> UploadNotFound:
    """Returns the error for an upload that does not exist, or not any more."""
    detail = f"topic {topic.name!r} has no upload {upload[:100]!r}, or no longer has it"
    return UploadNotFound(detail, topic=topic.name, upload_id=upload[:100])


@dataclass(eq=False)
class _Count:
    """The count at `at_s` has found `found` among the `read` records; since then `since` were begun here, less those
    that ended; `begun` are under way."""

    at_s: float = float("-inf")
    read: int = 0
    found: int = 0
    since: int = 0
    begun: int = 0
    counting: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def total(self) -> int:
        return self.found + self.since + self.begun

    @property
    def slowness(self) -> float:
        """How much more seldom than a short one such a count is made: many records take as many times longer."""
        return max(1.0, self.read / SHORT)


class OpenQuota:
    """The approximate numbers of open uploads by topic: those for messages, or with `of_writes` those for writes."""

    def __init__(self, records: UploadRecords, clock: Clock, limit: int, of_writes: bool) -> None:
        self._records = records
        self._clock = clock
        self._limit = limit
        self._of_writes = of_writes
        self._counts: WeakKeyDictionary[Topic, _Count] = WeakKeyDictionary()

    @asynccontextmanager
    async def place(self, topic: Topic) -> AsyncIterator[None]:
        """Counts an upload that begins in this block, unless it fails. Raises TooManyUploads."""
        count = self._counts.setdefault(topic, _Count())
        if not (count.read and count.counting.locked()):  # else the count before it does meanwhile
            await self._recount(topic, count, RECOUNT_S)
        if count.total >= self._limit:
            await self._recount(topic, count, FULL_S)
        if count.total >= self._limit:
            what, use = ("open uploads for writes", "write") if self._of_writes else ("open uploads", "publish")
            detail = f"topic {topic.name!r} has {count.total} {what}, which is the limit: {use} or abort some"
            raise TooManyUploads(detail, limit=self._limit, retry_after_s=math.ceil(FULL_S * count.slowness))
        count.begun += 1
        try:
            yield
            count.since += 1
        finally:
            count.begun -= 1

    def ended(self, topic: Topic) -> None:
        """Counts an upload of the topic that is not open any more."""
        if topic in self._counts:
            self._counts[topic].since -= 1

    async def _recount(self, topic: Topic, count: _Count, every_s: float) -> None:
        async with count.counting:
            now_s = self._clock.monotonic_s()
            if now_s - count.at_s < every_s * count.slowness:
                return
            before, found, read = count.since, 0, 0
            async for page in self._records.pages(topic, COUNTED):
                read += len(page.entries)
                found += sum(self._counts_in(keys.UPLOADS.read(entry)) for entry in page.entries)
            count.read, count.found, count.since, count.at_s = read, found, count.since - before, now_s

    def _counts_in(self, held: Versioned[UploadRecord] | Unreadable) -> bool:
        if isinstance(held, Unreadable):
            return True
        return held.record.state == "open" and (held.record.write is not UNSET) == self._of_writes


async def clear(store: PayloadStore, record: UploadRecord) -> None:
    """Deletes the object and the parts of a removed upload. Its parts go first: without them nobody can make the
    object."""
    if record.parts is not None:
        await store.abort_parts(record.name, record.parts)
    await store.delete(record.name)


async def clear_folder(store: ObjectStore, topic: str, below: int, root: str = rules.FOLDER) -> int:
    """Deletes a topic's payloads of all incarnations below one, or the objects of such names below another `root`, a
    page at a time. Returns their number. Objects with other names stay."""
    gone, after = 0, ""
    while names := await store.list(rules.folder(topic, root), after, PAGE):
        after = names[-1]
        uploads = {name: rules.id_of(topic, name, root) for name in names}
        found = {name: rules.incarnation_of(upload) for name, upload in uploads.items() if upload}
        doomed = [name for name, incarnation in found.items() if incarnation is not None and incarnation < below]
        for start in range(0, len(doomed), AT_ONCE):
            await asyncio.gather(*map(store.delete, doomed[start : start + AT_ONCE]))
            reach("delete.payload")
        gone += len(doomed)
    return gone

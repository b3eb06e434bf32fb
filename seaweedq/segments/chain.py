"""The chain of one segment: a sequence of immutable entries, each created under its name by create-if-absent.

The next name is a function of the chain so far. Two brokers that both believe to own the segment try to create the same
name, and one of them learns that it has lost; no lease and no clock is trusted for that. A put whose answer is lost is
repeated with the same bytes until the store answers *created* or *exists*. On *exists* the nonce inside the object
tells its writer: this one (success) or another (Fenced). One put is in flight at a time.

Rows must be durable in a journal before they are appended to a chain; the callers ensure it (broker/log/flusher,
broker/recovery/replay).

Objects in the folder whose names are none of a chain's belong to somebody else, and are left out: a chain that lacks
an entry is known without them, and `seaweedq verify` names them.

A chain begins at its start: retention takes whole entries from its beginning (docs/internals/protocol.md, "Retention").
Names before the start, which may be there still or appear again, are left out before anything is checked.

For metrics, `ChainSizes` and `RemoteSizeHistory` tell the bytes of a segment's messages, and when they came, without a
request. They know the files that were written here, or listed by the store; a file's messages count as having
come with its first one. They never overestimate the age: the lag that is shown is real.
"""

import asyncio
import itertools
import logging
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO, TypeVar

import pyarrow.parquet as pq

from seaweedq.checks import require
from seaweedq.concurrency.deadline import Sleep
from seaweedq.concurrency.pools import Pool
from seaweedq.errors import ChainDamaged, Fenced, NeedsNewerBroker, StoreUnavailable
from seaweedq.segments.entry import EntryMetadata, EntryName, open_entry, segment_folder
from seaweedq.storage.file_cache import distrust
from seaweedq.storage.interface import ObjectStore, Pauses

MARKS = 512
T = TypeVar("T")
PAGE = 1_000
LAST_PAUSE_S = 5.0
BEGINNING = EntryName(0, 0)
logger = logging.getLogger(__name__)


@dataclass(slots=True)
class KnownEntry:
    """An entry: its size in bytes, and when its first message came, or later, in microseconds since 1970."""

    size: int
    arrival_us: int


class ChainSizes:
    """The entries of a chain that are known, which ends at `end`. Of those between that are not, each is as large as
    the one before. A flush adds an entry, whatever the number of those before: all metrics need is kept as sums."""

    def __init__(self, known: Mapping[EntryName, KnownEntry], end: int) -> None:
        self._names: list[EntryName] = []
        self._arrivals_us: list[int] = []
        self._before: list[int] = []  # the bytes of all entries before each
        self._last = 0  # the bytes of the last one
        self._end = end
        for name in sorted(known):
            self.append(name, known[name], end)

    def append(self, name: EntryName, entry: KnownEntry, end: int) -> None:
        """Adds an entry behind all others."""
        steps = name.sequence - self._names[-1].sequence if self._names else 0
        self._before.append(self._before[-1] + steps * self._last if self._names else 0)
        self._names.append(name)
        self._arrivals_us.append(entry.arrival_us)
        self._last, self._end = entry.size, end

    def size_since(self, offset: int) -> int:
        """Returns about how many bytes the entries have from an offset on; those before all known ones
        count as the known ones do."""
        if not self._names:
            return 0
        first, size = self._names[0].first_offset, self._before[-1] + self._last
        if offset < first:
            return int(size + (size / (self._end - first) * (first - offset) if self._end > first else 0))
        at = self._at(offset)
        low, below = self._names[at].first_offset, self._before[at]
        is_last = at == len(self._names) - 1
        high, above = (self._end, size) if is_last else (self._names[at + 1].first_offset, self._before[at + 1])
        share = min(1.0, (offset - low) / (high - low)) if high > low else 1.0
        return int(size - below - share * (above - below))

    def record_arrival(self, name: EntryName, time_us: int) -> None:
        """Records when an entry's first message came, in microseconds since 1970."""
        at = bisect_left(self._names, name)
        if at < len(self._names) and self._names[at] == name:
            self._arrivals_us[at] = time_us

    def arrival_us(self, offset: int) -> int | None:
        """Returns when the message at an offset came, or later; None if nothing is known."""
        return self._arrivals_us[max(0, self._at(offset))] if self._names else None

    def _at(self, offset: int) -> int:
        return bisect_right(self._names, offset, key=lambda name: name.first_offset) - 1


class RemoteSizeHistory:
    """The history of a segment that another broker owns: when its messages came, as far as its ends were heard and
    messages were read, at MARKS offsets at most; and the bytes of a message."""

    def __init__(self) -> None:
        self._marks: list[tuple[int, int]] = []
        self._rows = self._bytes = 0

    def record_arrival(self, offset: int, time_us: int) -> None:
        """Records when a message came, or later."""
        at = bisect_right(self._marks, offset, key=lambda mark: mark[0]) - 1
        if at >= 0 and self._marks[at][0] == offset:
            self._marks[at] = offset, min(time_us, self._marks[at][1])
            return
        insort(self._marks, (offset, time_us))
        if len(self._marks) > MARKS:
            self._marks = self._marks[::2]

    def record_size(self, rows: int, size_bytes: int) -> None:
        """Records the size of messages that were read."""
        self._rows, self._bytes = self._rows + rows, self._bytes + size_bytes

    def size_of_rows(self, rows: int) -> int:
        """Returns about how many bytes so many messages take; 0 if none was read yet."""
        return self._bytes * rows // self._rows if self._rows else 0

    def arrival_us(self, offset: int) -> int | None:
        """Returns when the message at an offset came, or later; None if nothing is known."""
        at = bisect_right(self._marks, offset, key=lambda mark: mark[0]) - 1
        return self._marks[max(0, at)][1] if self._marks else None


@dataclass(frozen=True, slots=True)
class ListedEntry:
    """An entry in a listing: its size in bytes, and the store's own time, in microseconds since 1970."""

    name: EntryName
    size: int
    modified_us: int


@dataclass(frozen=True, slots=True)
class EntryFacts:
    """The part of an entry's metadata that readers plan by."""

    schema_id: int
    max_timestamp_us: int


class Chain:
    """The entries of a segment, as far as this process knows them. `end` is the offset of the next row.

    `failing` is the last error of the put in flight; None if it has not failed. `start` is the first entry that counts.
    `first` is the first of these that `open` has found.
    A `sealed` chain has ended: its last entry has a seal, which retention may have taken since.
    `facts` are of the entries that were appended or opened here.
    `readers` are the threads in which entries are read, the store's own without it.
    """

    def __init__(
        self,
        store: ObjectStore,
        topic: str,
        segment: int,
        sleep: Sleep = asyncio.sleep,
        readers: Pool | None = None,
    ) -> None:
        self.folder = segment_folder(topic, segment)
        self.last: EntryMetadata | None = None
        self.first: EntryName | None = None
        self.sealed = False
        self.start = BEGINNING
        self.failing: StoreUnavailable | None = None
        self._first = BEGINNING  # the name of the first entry
        self._store = store
        self._readers = readers or store.readers
        self._sleep = sleep
        self.facts: dict[EntryName, EntryFacts] = {}
        self._names: list[EntryName] | None = None
        self._known: dict[EntryName, KnownEntry] = {}
        self._known_sizes: ChainSizes | None = None  # of the known entries
        self._sizing = asyncio.Lock()
        self._has_warned = False  # of objects that are no entries

    @property
    def next(self) -> EntryName:
        """Returns the only name that the next entry can have."""
        if self.last is None:
            return self.start if self.sealed else self._first
        return EntryName(self.last.sequence + 1, self.last.next_offset)

    @property
    def end(self) -> int:
        """Returns the offset after the last one in the chain."""
        return self.next.first_offset

    def raise_start(self, start: EntryName) -> None:
        """Leaves out the entries before `start`, unless it knows a later start."""
        if start.sequence > self.start.sequence:
            self.start = start
            if self._names is not None:
                self._names = [name for name in self._names if name.sequence >= start.sequence]
            self._known = {name: known for name, known in self._known.items() if name.sequence >= start.sequence}
            self._known_sizes = None
            self.facts = {name: facts for name, facts in self.facts.copy().items() if name >= start}

    async def open(self) -> None:
        """Finds the end, with at most a page and a bisection of listings, and reads the last entry's metadata. Raises
        ChainDamaged if nothing is left of a chain that has a start: its offsets must not be given out again."""
        listed, more = await self._page(self._place(self.start))
        page = [each.name for each in listed]
        name = await self._find_last(page, is_all=more is None)
        self.first = page[0] if page else name
        if name is None and self.start.sequence:  # retention keeps the newest entry
            raise ChainDamaged(
                f"{self.folder} has no files, although its first file should be number {self.start}; "
                "restore the files, or run `seaweedq cluster rebuild` if coordination was restored "
                "from a backup",
                name=self.folder,
            )
        self._names = None
        self.last = await self.read(self.metadata, name) if name else None
        self.sealed = self.sealed or (self.last is not None and self.last.seal is not None)
        self._record_listed(each for each in listed if each.name.sequence >= self.start.sequence)
        if more is None:
            with suppress(ChainDamaged):  # a caller that needs the names lists again, and gets the error
                names = [name for name in page if name.sequence >= self.start.sequence]
                self._check_dense(names)
                self._names = names

    def empty(self, end: EntryName) -> None:
        """Marks the chain as sealed and empty instead of `open`: retention has taken all entries, which `end` is
        behind."""
        self.start, self._names, self.sealed = end, [], True

    def begin(self, first: EntryName = BEGINNING) -> None:
        """Marks the chain as empty instead of `open`, for a segment that no broker can have written to yet; its first
        entry gets that name."""
        self._names, self._first = [], first

    async def append(self, metadata: EntryMetadata, data: bytes | memoryview) -> None:
        """Appends `data` as the next entry. Raises Fenced if another writer created it, ChainDamaged after a seal.

        If it is cancelled, the entry may exist or may still appear: the caller may only append the same bytes again.
        """
        name = EntryName(metadata.sequence, metadata.first_offset)
        require(name == self.next, "cannot append %s to %s, whose next file is %s", name, self.folder, self.next)
        if self.sealed:
            raise ChainDamaged(
                f"{self.folder} was sealed at offset {self.end}, so file {self.next} cannot be added", name=self.folder
            )
        pauses = Pauses(self._store.worked, self._sleep, LAST_PAUSE_S)
        while True:
            try:
                if await self._store.create(self.folder + str(self.next), data):
                    break
                await self._check_mine(metadata)
                break
            except StoreUnavailable as error:
                self.failing = error
                logger.warning("cannot store %s%s yet (%s); retrying", self.folder, self.next, error)
                await pauses.wait()
        self.failing = None
        self._store.worked.wake()
        known = self._known[name] = KnownEntry(memoryview(data).nbytes, metadata.appended_us)
        if self._known_sizes is not None:
            self._known_sizes.append(name, known, metadata.next_offset)
        if self._names is not None:
            self._names.append(self.next)
        self.facts[name] = EntryFacts(metadata.schema_id, metadata.max_timestamp_us)
        self.last, self.sealed = metadata, metadata.seal is not None

    async def names(self) -> list[EntryName]:
        """Returns all entries in order, as of `open` or, for a long chain, of the first call, together with those
        appended since. Raises ChainDamaged for a gap."""
        while self._names is None:
            last = self.last
            listed = await self._list(self._place(self.start))
            found = [n for n in listed if self.start.sequence <= n.sequence and n < self.next]
            if self.last is last:  # else an entry was appended meanwhile, which the listing may or may not have
                self._check_dense(found)
                self._names = found
        return self._names

    async def holder(self, offset: int) -> EntryMetadata:
        """Returns the metadata of an entry to whose tenure an offset of the chain belongs: all offsets from its `since`
        to its `next_offset` do. It is the last entry, without a request, if that is one. Raises ChainDamaged."""
        require(self.start.first_offset <= offset < self.end, "offset %d of %s is in no entry", offset, self.folder)
        if self.last and self.last.since <= offset:
            return self.last
        names = await self.names()
        at = bisect_right(names, offset, key=lambda name: name.first_offset) - 1  # of several the one with rows
        return await self.read(self.metadata, names[at])

    async def sizes(
        self, names: Sequence[EntryName], is_over: Callable[[], bool] = lambda: False
    ) -> dict[EntryName, int]:
        """Returns the sizes of entries in bytes. Unknown ones are listed, a page of entries a request, until it
        `is_over`: then some may be left out. Raises ChainDamaged if one no longer exists."""
        async with self._sizing:  # so that several who ask at once ask the store once
            unknown = next((name for name in names if name not in self._known), None)
            while unknown is not None:
                page, _ = await self._page(f"{self.folder}{unknown.sequence:08d}")
                self._record_listed(page)
                if unknown not in self._known:
                    raise _missing(f"{self.folder}{unknown}")
                unknown = next((name for name in names if name not in self._known), None)
                if is_over():
                    break
            return {name: self._known[name].size for name in names if name in self._known}

    def known_sizes(self) -> ChainSizes:
        """Returns the known sizes and times of the entries, without a request."""
        if self._known_sizes is None:
            self._known_sizes = ChainSizes(self._known, self.end)
        return self._known_sizes

    def record_arrival(self, name: EntryName, time_us: int) -> None:
        """Records when an entry's first message came, in microseconds since 1970."""
        if known := self._known.get(name):
            known.arrival_us = time_us
            if self._known_sizes is not None:
                self._known_sizes.record_arrival(name, time_us)

    def _record_listed(self, listed: Iterable[ListedEntry]) -> None:
        """Records sizes and times of entries that are not known better."""
        for each in listed:
            if each.name not in self._known:
                self._known[each.name] = KnownEntry(each.size, each.modified_us)
                self._known_sizes = None

    async def listed(self, first: EntryName = BEGINNING) -> list[ListedEntry]:
        """Lists the entries from `first` on with their sizes and the store's times, a page a request; and whatever has
        been appended meanwhile. Nothing is checked."""
        found, last = await self._page(self._place(first))
        while last:
            page, last = await self._page(last)
            found += page
        return found

    async def first_from(self, sequence: int) -> EntryName | None:
        """Returns the first entry that is there from a sequence on."""
        after, limit = f"{self.folder}{sequence:08d}", 1
        while page := await self._store.list(self.folder, after=after, limit=limit):
            if found := self._entries(page):
                return found[0]
            after, limit = page[-1], PAGE
        return None

    async def _page(self, after: str) -> tuple[list[ListedEntry], str | None]:
        """Returns the entries of a page, and the name behind which the next one begins, if there is one."""
        page = await self._store.listed(self.folder, after=after, limit=PAGE)
        self._entries([each.name for each in page])  # which warns of the others
        named = [(EntryName.from_object(each.name, self.folder), each) for each in page]
        found = [ListedEntry(name, each.size, each.modified_us) for name, each in named if name]
        return found, page[-1].name if len(page) == PAGE else None

    def _entries(self, listed: Sequence[str]) -> list[EntryName]:
        found = [name for each in listed if (name := EntryName.from_object(each, self.folder))]
        if len(found) < len(listed) and not self._has_warned:
            self._has_warned = True
            others = [each for each in listed if not EntryName.from_object(each, self.folder)]
            logger.warning("ignoring objects in %s that seaweedq did not write: %s", self.folder, others[:3])
        return found

    def _place(self, name: EntryName) -> str:
        """Returns the place in the folder behind which a listing begins with this entry."""
        return f"{self.folder}{name.sequence:08d}" if name.sequence else ""

    def metadata(self, name: EntryName) -> EntryMetadata:
        """Returns an entry's metadata. Blocks: call it in a thread."""
        file, parquet, metadata = self.entry(name)
        parquet.close()
        file.close()
        return metadata

    async def read(self, work: Callable[..., T], *arguments: object) -> T:
        """Calls a function that blocks on the store, in the threads for that."""
        return await self._readers.run(work, *arguments)

    def entry(self, name: EntryName) -> tuple[BinaryIO, pq.ParquetFile, EntryMetadata]:
        """Opens an entry for reading. Blocks: call it in a thread, and close both files."""
        path = self.folder + str(name)
        try:
            file = self._store.open(path)
        except FileNotFoundError as error:
            raise _missing(path) from error
        try:
            parquet, metadata = open_entry(file, path)
            self.facts[name] = EntryFacts(metadata.schema_id, metadata.max_timestamp_us)
            return file, parquet, metadata
        except BaseException as error:
            if isinstance(error, ChainDamaged):
                distrust(file)
            file.close()
            raise

    async def _check_mine(self, metadata: EntryMetadata) -> None:
        path = self.folder + str(self.next)
        try:
            there = await self.read(self.metadata, self.next)
        except (ChainDamaged, OSError) as error:
            raise StoreUnavailable(
                f"the file {path} exists but cannot be read, so it is unknown which broker wrote it"
            ) from error
        except NeedsNewerBroker as error:
            raise Fenced(
                f"a broker with a newer version of seaweedq wrote {path}, so this broker no longer owns the segment"
            ) from error
        if there.nonce != metadata.nonce:
            raise Fenced(f"broker {there.broker} wrote {path}, so this broker no longer owns the segment")

    async def _find_last(self, page: Sequence[EntryName], is_all: bool) -> EntryName | None:
        """Returns the last entry of the chain, given those of the first page."""
        last = page[-1] if page else None if is_all else await self.first_from(self.start.sequence)
        if is_all or last is None:
            return last
        low, step = last.sequence, PAGE
        while found := await self.first_from(low + step):  # gallop
            last, low, step = found, found.sequence, 2 * step
        high = low + step  # nothing at or above
        while high - low > PAGE:  # an entry at low, none from high on
            middle = (low + high) // 2
            if found := await self.first_from(middle):
                last, low = found, found.sequence
            else:
                high = middle
        rest = await self._list(self.folder + str(last))
        return rest[-1] if rest else last

    async def _list(self, after: str) -> list[EntryName]:
        found: list[EntryName] = []
        while True:
            page = await self._store.list(self.folder, after=after, limit=PAGE)
            found += self._entries(page)
            if len(page) < PAGE:
                return found
            after = page[-1]

    def _check_dense(self, names: Sequence[EntryName]) -> None:
        for before, after in itertools.pairwise(names):
            if after.sequence != before.sequence + 1 or after.first_offset < before.first_offset:
                raise ChainDamaged(
                    f"the files in {self.folder} have a gap or an overlap: {after} follows {before}",
                    name=self.folder + str(after),
                )
        last_counts = self.last is not None and self.last.sequence >= self.start.sequence
        if self.last and last_counts and (not names or names[-1].sequence != self.last.sequence):
            raise _missing(f"{self.folder}{EntryName(self.last.sequence, self.last.first_offset)}")


def _missing(path: str) -> ChainDamaged:
    return ChainDamaged(f"{path} does not exist, although the segment's chain includes it", name=path)

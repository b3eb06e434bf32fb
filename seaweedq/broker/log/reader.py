"""Reading a segment by offset: decoded row groups of its chain first, then its tail, in one order.

Rows that can be read are durable and stay readable: offsets below the tail's start are in the chain. The tail may be
flushed between two awaits, so each step looks anew where its offset stands now.

Row groups that are being decoded at a time take no more than the cache may, or DECODING_BYTES: else as many as there
are threads would be in memory beside it. Since a read may hang in the store, one that has waited ROOM_S for the others
goes ahead.

A read ends with what it has after READ_S: many small files on a slow store would take it longer than its caller
waits, each time anew.
"""

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from seaweedq.broker.log.intervals import runs_of
from seaweedq.broker.log.memory_budget import Budget
from seaweedq.broker.log.open_segment import OpenSegment, Tail, time_of
from seaweedq.clock import Clock
from seaweedq.concurrency.deadline import Deadline
from seaweedq.concurrency.futures import Signal, mark_retrieved
from seaweedq.errors import ChainDamaged, OffsetOutOfRange
from seaweedq.segments.chain import Chain
from seaweedq.segments.entry import ROW_GROUP_ROWS, EntryName, read_rows
from seaweedq.segments.layout import TIMESTAMP, TIMESTAMP_FIELD, Layout
from seaweedq.storage.file_cache import distrust

SCAN_BYTES = 64 * 1024 * 1024
DECODING_BYTES = 64 * 1024 * 1024
READ_S, ROOM_S = 1.0, 5.0
Pieces = list[tuple[int, pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class Group:
    """A decoded row group, whose first row has the offset `first`."""

    first: int
    rows: pa.RecordBatch

    @property
    def end(self) -> int:
        """One above the last offset."""
        return self.first + int(self.rows.num_rows)


class GroupCache:
    """Decoded row groups, counted in the budget. The least recently used ones go first.

    The newest one stays, also if it alone passes the limit: else each read of it would decode it anew, beside the
    copies that other reads hold.
    """

    def __init__(self, budget: Budget, limit_bytes: int) -> None:
        self._budget = budget
        self._limit = limit_bytes
        self._groups: OrderedDict[tuple[str, int, int], Group] = OrderedDict()
        self._decoding = 0  # bytes
        self._ended = Signal()  # a decoding

    @asynccontextmanager
    async def decoding(self, size: int, clock: Clock) -> AsyncIterator[None]:
        """Waits until a group of `size` bytes may be decoded beside the others; one alone always may."""
        if not self._has_room(size):
            async for _ in Deadline(clock, ROOM_S).attempts(self._ended):
                if self._has_room(size):
                    break
        self._decoding += size
        try:
            yield
        finally:
            self._decoding -= size
            self._ended.wake()

    def get(self, key: tuple[str, int, int]) -> Group | None:
        """Returns a group by (folder, sequence, number in its entry), if it is cached."""
        group = self._groups.get(key)
        if group:
            self._groups.move_to_end(key)
        return group

    def put(self, key: tuple[str, int, int], group: Group) -> None:
        """Keeps a group in place of as many others as the limit demands."""
        if key in self._groups:
            return
        self._groups[key] = group
        self._budget.cached += group.rows.nbytes
        while self._budget.cached > self._limit and len(self._groups) > 1:
            self._evict()

    def shrink(self) -> None:
        """Drops everything, since the memory is needed."""
        while self._groups:
            self._evict()

    def _has_room(self, size: int) -> bool:
        return not self._decoding or self._decoding + size <= max(self._limit, DECODING_BYTES)

    def _evict(self) -> None:
        _, group = self._groups.popitem(last=False)
        self._budget.cached -= group.rows.nbytes


class Reader:
    """Reads rows of this broker's own segments, and of sealed ones."""

    def __init__(self, cache: GroupCache, clock: Clock) -> None:
        self._cache = cache
        self._clock = clock
        self._loading: dict[tuple[str, int, int], asyncio.Task[Group]] = {}

    async def read(self, segment: OpenSegment, offset: int, limit: int, max_bytes: int) -> Pieces:
        """Reads up to `limit` rows from `offset` on, about `max_bytes` at most but at least one row; fewer at the end,
        and after READ_S.

        Raises OffsetOutOfRange if `offset` is beyond the end, BelowRetention if retention has removed it.
        """
        segment.check_start(offset)
        tail = segment.tail
        if offset > tail.end:
            raise OffsetOutOfRange(
                f"offset {offset} is beyond the end of segment {segment.id}, which ends at offset {tail.end}",
                offset=offset,
                end_offset=tail.end,
            )
        if offset >= tail.start:
            return _of_tail(tail, offset, limit, max_bytes, first=True)
        pieces: Pieces = []
        patience = Deadline(self._clock, READ_S)
        while limit > 0 and offset < tail.end and not (pieces and patience.is_over):
            if offset >= tail.start:
                pieces += _of_tail(tail, offset, limit, max_bytes, first=not pieces)
                break
            group = await self._group(segment, offset)
            rows, size = _cut(group.rows.slice(offset - group.first, limit), max_bytes, at_least=0 if pieces else 1)
            if rows.num_rows == 0:
                break
            pieces.append((offset, rows))
            complete = offset + rows.num_rows in (group.end, offset + limit)
            offset, limit, max_bytes = offset + rows.num_rows, limit - rows.num_rows, max_bytes - size
            if not complete:
                break
        return pieces

    async def find(self, segment: OpenSegment, timestamp_us: int) -> int:
        """Finds the first offset whose `_timestamp` reaches this, or the end. Looks for the first entry whose running
        maximum reaches it by bisection, then in that entry for the first such row group, and in this for the row. An
        entry's running maximum may be that of a row which was in the tail yet, and is in one of the next."""
        with _readable(segment, None):
            names = await segment.chain.names()
            low, high = 0, len(names)
            while low < high:
                middle = (low + high) // 2
                metadata = await segment.chain.read(segment.chain.metadata, names[middle])
                low, high = (low, middle) if metadata.max_timestamp_us >= timestamp_us else (middle + 1, high)
            offset = names[low].first_offset if low < len(names) else segment.tail.start
            for name in names[low:]:
                offset, is_found = await segment.chain.read(find_in_entry, segment.chain, name, timestamp_us)
                if is_found:
                    return max(offset, segment.start)
        return await self._scan(segment, max(offset, segment.start), timestamp_us)

    async def _scan(self, segment: OpenSegment, offset: int, timestamp_us: int) -> int:
        """Finds the first row from `offset` on that reaches a time: in the tail, and in rows that were flushed
        meanwhile."""
        wanted = pa.scalar(timestamp_us, TIMESTAMP)
        while offset < segment.end:
            for first, rows in await self.read(segment, offset, ROW_GROUP_ROWS, SCAN_BYTES):
                at = pc.index(pc.greater_equal(rows.column(0), wanted), True).as_py()
                if at >= 0:
                    return first + int(at)
                offset = first + rows.num_rows
        return offset

    async def sizes_since(self, segment: OpenSegment, offset: int) -> tuple[int, int]:
        """Estimates how many bytes the rows from `offset` on take in files, by their share of rows, and in the tail, as
        in memory. Files whose sizes are not known after READ_S count as those that are."""
        size, measured, others = 0.0, 0, 0  # bytes and rows of files, rows of further ones
        patience = Deadline(self._clock, READ_S)
        with _readable(segment, None):
            names = await segment.chain.names()
            ends = [*(name.first_offset for name in names[1:]), segment.chain.end]
            wanted = {name: end for name, end in zip(names, ends, strict=False) if end > max(offset, name.first_offset)}
            known = await segment.chain.sizes([*wanted], lambda: patience.is_over)
            for name, end in wanted.items():
                count = end - max(offset, name.first_offset)
                if name in known:
                    size += known[name] * count / (end - name.first_offset)
                    measured += count
                else:
                    others += count
        size += size / measured * others if measured else 0
        unflushed = segment.tail.since(offset)
        tail = sum(rows.size_bytes * (rows.end - max(offset, rows.first)) / rows.rows.num_rows for rows in unflushed)
        return int(size), int(tail)

    async def _group(self, segment: OpenSegment, offset: int) -> Group:
        with _readable(segment, offset):
            names = await segment.chain.names()
            at = bisect_right(names, offset, key=lambda n: n.first_offset) - 1
            if at < 0:
                known = f"its first file is {names[0]}" if names else "it has none"
                folder = segment.chain.folder
                raise ChainDamaged(f"no file in {folder} contains offset {offset}: {known}", name=folder)
            name = names[at]
            number = (offset - name.first_offset) // ROW_GROUP_ROWS
            key = (segment.chain.folder, name.sequence, number)
            group = self._cache.get(key) or await self._loaded(segment, name, key)
            if not group.first <= offset < group.end:
                where = f"row group {number} of {segment.chain.folder}{name}"
                raise ChainDamaged(
                    f"{where} contains offsets {group.first} to {group.end}, not offset {offset}", name=str(name)
                )
            return group

    async def _loaded(self, segment: OpenSegment, name: EntryName, key: tuple[str, int, int]) -> Group:
        """Decodes a row group, once for all that ask meanwhile. It goes on when they have gone: a caller that asks
        again, since a slow store took longer than it waited, finds the group in the cache."""
        loading = self._loading.get(key)
        if loading is None:
            loading = self._loading[key] = asyncio.create_task(self._load(segment, name, key))
            loading.add_done_callback(mark_retrieved)
        return await asyncio.shield(loading)

    async def _load(self, segment: OpenSegment, name: EntryName, key: tuple[str, int, int]) -> Group:
        try:
            number, read = key[2], segment.chain.read
            file, parquet, stated = await read(segment.chain.entry, name)
            metadata = parquet.metadata
            size = metadata.row_group(number).total_byte_size if number < metadata.num_row_groups else 0
            async with self._cache.decoding(size, self._clock):
                of = segment.layout, stated.schema_id
                group = await read(load, file, parquet, segment.chain, name, number, *of)
                self._cache.put(key, group)
            if group.first == name.first_offset and group.rows.num_rows:
                segment.chain.record_arrival(name, time_of(group.rows, 0))
            return group
        finally:
            del self._loading[key]


@contextmanager
def _readable(segment: OpenSegment, offset: int | None) -> Iterator[None]:
    """Raises the error that closed the segment: missing files of one that is being deleted are no damage; nor are they
    once the start has risen above the offset."""
    segment.check_open()
    try:
        yield
    except ChainDamaged:
        segment.check_open()
        if offset is not None:
            segment.check_start(offset)
        raise


def load(
    file: BinaryIO,
    parquet: pq.ParquetFile,
    chain: Chain,
    name: EntryName,
    number: int,
    layout: Layout,
    schema_id: int,
) -> Group:
    """Decodes one row group of an opened entry, whose rows have the version `schema_id`, and closes the entry; all row
    groups but its last have ROW_GROUP_ROWS rows. Blocks: call it in a thread."""
    with file, parquet:
        try:
            return Group(name.first_offset + number * ROW_GROUP_ROWS, read_rows(parquet, number, layout, schema_id))
        except (pa.ArrowException, OSError) as error:
            distrust(file)
            raise ChainDamaged(
                f"row group {number} of {chain.folder}{name} cannot be read: {error}", name=f"{chain.folder}{name}"
            ) from error


def find_in_entry(chain: Chain, name: EntryName, timestamp_us: int) -> tuple[int, bool]:
    """Finds the first row of an entry whose `_timestamp` reaches this. Returns its offset and True, or the entry's end.
    Reads that column alone, of the row groups whose statistics do not tell. Blocks: call it in a thread."""
    file, parquet, _ = chain.entry(name)
    with file, parquet:
        try:
            return find_in_groups(parquet, name.first_offset, timestamp_us)
        except (pa.ArrowException, OSError) as error:
            distrust(file)
            raise ChainDamaged(f"{chain.folder}{name}: {error}", name=f"{chain.folder}{name}") from error


def find_in_groups(parquet: pq.ParquetFile, offset: int, timestamp_us: int) -> tuple[int, bool]:
    """As `find_in_entry`, of a file whose first row has this offset."""
    wanted = pa.scalar(timestamp_us, TIMESTAMP)
    column = parquet.schema_arrow.names.index(TIMESTAMP_FIELD.name)
    for number in range(parquet.num_row_groups):
        group = parquet.metadata.row_group(number)
        known = group.column(column).statistics
        if known is None or not known.has_min_max or known.max_raw >= timestamp_us:
            times = parquet.read_row_group(number, columns=[TIMESTAMP_FIELD.name], use_threads=False).column(0)
            at = pc.index(pc.greater_equal(times, wanted), True).as_py()
            if at >= 0:
                return offset + int(at), True
        offset += group.num_rows
    return offset, False


def _of_tail(tail: Tail, offset: int, limit: int, max_bytes: int, first: bool) -> Pieces:
    pieces: Pieces = []
    for buffered in tail.since(offset):
        rows = buffered.rows.slice(max(0, offset - buffered.first), limit)
        wanted = rows.num_rows
        rows, size = _cut(rows, max_bytes, at_least=1 if first and not pieces else 0)
        if rows.num_rows:
            pieces.append((max(offset, buffered.first), rows))
        limit, max_bytes = limit - rows.num_rows, max_bytes - size
        if rows.num_rows < wanted or limit <= 0:
            break
    return pieces


def _cut(rows: pa.RecordBatch, max_bytes: int, at_least: int) -> tuple[pa.RecordBatch, int]:
    """Returns the leading rows that take at most `max_bytes`, and their size, which takes longer than to slice."""
    size = rows.nbytes
    if size > max_bytes:
        rows = rows.slice(0, fitting(rows, max_bytes, at_least))
        size = rows.nbytes
    return rows, size


def unexpired(first: int, rows: pa.RecordBatch, now_us: int) -> Pieces:
    """Returns those of `rows` (offsets from `first`) whose `_expires` is not over."""
    over = expired(rows, now_us)
    if over is None:
        return [(first, rows)]
    alive = np.flatnonzero(~over).tolist()
    return [(first + low, rows.slice(low, high - low)) for low, high in runs_of(alive)]


def expired(rows: pa.RecordBatch, now_us: int) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
    """Returns for each row whether its `_expires` is over; None if that is so for none."""
    at = rows.schema.get_field_index("_expires")
    if at < 0:
        return None
    over = pc.less_equal(rows.column(at), pa.scalar(now_us, TIMESTAMP)).fill_null(False).to_numpy(zero_copy_only=False)
    return over if over.any() else None


def fitting(
    rows: pa.RecordBatch,
    max_bytes: int,
    at_least: int,
    size: Callable[[pa.RecordBatch], int] = lambda rows: int(rows.nbytes),
) -> int:
    """Counts the leading rows that take at most `max_bytes`, by halving; never below `at_least`. `size` is in bytes, by
    default in memory."""
    if size(rows) <= max_bytes:
        return int(rows.num_rows)
    low, high = at_least, rows.num_rows  # low fits (or is owed), high does not
    while low + 1 < high:
        middle = (low + high) // 2
        if size(rows.slice(0, middle)) <= max_bytes:
            low = middle
        else:
            high = middle
    return low

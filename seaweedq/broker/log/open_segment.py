"""An open segment: the state of a segment that this broker owns, with its tail and its producers.

All of it lives on the event loop; nothing here awaits, so that each method is one step. Rows come in through
`append_durable` (once the journal has them) and go out through `drop_flushed` (once the chain has them). The tail lies
between: rows that are durable in the journal and not yet in Parquet, in memory. Only its end grows, only its start
goes. All buffered rows know the commit that holds them, so that the journal can be released up to the oldest commit
that is still here.
"""

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from seaweedq.broker.log.entry_writer import Source
from seaweedq.broker.log.memory_budget import Budget
from seaweedq.checks import require
from seaweedq.concurrency.futures import Signal
from seaweedq.errors import BelowRetention, NotOwner, SeaweedqError
from seaweedq.segments.chain import Chain
from seaweedq.segments.entry import EntryName
from seaweedq.segments.frames import ProducerRange
from seaweedq.segments.producers import Duplicate, New, OutOfOrder, ProducerTables, Sequences


@dataclass(frozen=True, slots=True)
class BufferedRows:
    """Rows of one commit: their first offset, their size, their commit, when they came (monotonic), the version of
    their schema, and the contexts of their messages if the broker traces them."""

    first: int
    rows: pa.RecordBatch
    size_bytes: int
    commit: int
    at_s: float
    schema_id: int = 0
    contexts: tuple[str, ...] = ()

    @property
    def end(self) -> int:
        """One above the last offset."""
        return self.first + int(self.rows.num_rows)


def time_of(rows: pa.RecordBatch, at: int) -> int:
    """Returns the `_timestamp` of a row, in microseconds since 1970."""
    return int(rows.column(0)[at].value)


class Tail:
    """Dense rows from `start` to `end`."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.end = start
        self.size_bytes = 0
        self._buffered: deque[BufferedRows] = deque()

    def __len__(self) -> int:
        return len(self._buffered)

    def append(self, rows: BufferedRows) -> None:
        """Adds rows that have become durable. Raises InvariantViolated unless they begin where the tail ends."""
        require(rows.first == self.end, "rows from offset %d are added to a tail that ends at %d", rows.first, self.end)
        self._buffered.append(rows)
        self.end += rows.rows.num_rows
        self.size_bytes += rows.size_bytes

    def oldest(self) -> BufferedRows:
        """Returns the first rows; the tail must not be empty."""
        return self._buffered[0]

    def head(self, limit_bytes: int) -> list[BufferedRows]:
        """Returns the first rows, of one version, together at most `limit_bytes`, but those of one commit at least."""
        taken: list[BufferedRows] = []
        size = 0
        for rows in self._buffered:
            size += rows.size_bytes
            if taken and (size > limit_bytes or rows.schema_id != taken[0].schema_id):
                break
            taken.append(rows)
        return taken

    def drop(self, end: int) -> None:
        """Forgets the rows below `end`. Raises InvariantViolated unless rows that were added together end there."""
        while self._buffered and self._buffered[0].first < end:
            first = self._buffered[0]
            require(first.end <= end, "rows %d to %d of a tail are dropped up to %d", first.first, first.end, end)
            self.size_bytes -= self._buffered.popleft().size_bytes
        self.start = end

    def weigh(self, offset: int) -> tuple[int, int | None]:
        """Returns about how many bytes the rows from `offset` on take, by their share, and the `_timestamp` of the
        first one; None if there is none."""
        if offset >= self.end:
            return 0, None
        first = self._buffered[max(0, bisect_right(self._buffered, offset, key=lambda rows: rows.first) - 1)]
        time_us = time_of(first.rows, max(0, offset - first.first))
        return self.size_bytes * (self.end - max(offset, self.start)) // (self.end - self.start), time_us

    def since(self, offset: int) -> list[BufferedRows]:
        """Returns the rows that end above `offset`, in order. Looks from the end, where readers mostly are."""
        found: list[BufferedRows] = []
        end = self.end
        for rows in reversed(self._buffered):
            if end <= offset:
                break
            found.append(rows)
            end = rows.first
        return found[::-1]


class Waiter(msgspec.Struct, frozen=True, eq=False):
    """A request that waits for rows [row, row + count) of an append; `offset` gives the offset of the first one.

    `part` is where the part of the segment's range begins that the rows fall into.
    """

    row: int
    count: int
    offset: asyncio.Future[int]
    part: int
    sequences: Sequences | None = None


@dataclass(frozen=True, slots=True)
class InFlight:
    """A verdict: the same request is on its way to the journal; `offset` gives the offset of its first row."""

    offset: asyncio.Future[int]


Verdict = New | Duplicate | OutOfOrder | InFlight


class OpenSegment:
    """The state of one owned segment, or of a sealed one, which is only read and has no owner."""

    def __init__(
        self,
        source: Source,
        chain: Chain,
        producers: ProducerTables,
        budget: Budget,
        signal: Signal,
        dirty: Callable[["OpenSegment"], None],
    ) -> None:
        self.source = source
        self.owner = source.owner
        self.topic = source.topic
        self.id = source.segment
        self.layout = source.layout  # of the newest version that is known here
        self.chain = chain
        self.tail = Tail(chain.end)
        self.next = chain.end  # the offset to give out next; those from `end` on are on their way to the journal
        last = chain.last
        self.producers = producers
        self.max_timestamp_us = last.max_timestamp_us if last else 0
        self.closed: SeaweedqError | None = None
        self.empty_entry: tuple[int, int] | None = None  # the sequence of an entry to come, and the commit that says so
        self._pause: SeaweedqError | None = None
        self.paused_since_s: float | None = None  # monotonic: since when it takes nothing, for good
        self.taken_bytes = self.taken_messages = 0  # ever, by this broker
        self.signal = signal
        self._budget = budget
        self._dirty = dirty
        self._pending: dict[tuple[str, int], list[Waiter]] = {}  # by producer and part

    @property
    def sealed(self) -> bool:
        """Whether its chain has ended."""
        return self.chain.sealed

    @property
    def redirected(self) -> bool:
        """Whether its messages go to another segment, or another broker, as far as is known here."""
        return self.chain.sealed or isinstance(self.closed, NotOwner)

    @property
    def end(self) -> int:
        """One above the last durable offset."""
        return self.tail.end

    @property
    def start(self) -> int:
        """The first offset that retention has left."""
        return self.chain.start.first_offset

    def check_start(self, offset: int) -> None:
        """Raises BelowRetention for an offset below the start."""
        if offset < self.start:
            raise BelowRetention(
                f"retention has removed offset {offset} of segment {self.id}, which now begins at offset {self.start}",
                offset=offset,
                start_offset=self.start,
                segment=self.id,
            )

    def check_open(self) -> None:
        """Raises the error that closed the segment."""
        if self.closed:
            raise self.closed

    def close(self, reason: SeaweedqError) -> None:
        """Takes nothing more, and wakes all waiting readers. The tail's rows stay in the journal."""
        self.closed = reason
        self.signal.wake()

    def pause(self, reason: SeaweedqError) -> None:
        """Closes it for a while: the tail may still be flushed. A segment that is closed already stays as it is."""
        if self.closed is None:
            self._pause = reason
            self.close(reason)

    @property
    def paused(self) -> bool:
        """Whether it is paused, and nothing has closed it since."""
        return self.closed is not None and self.closed is self._pause

    def resume(self) -> None:
        """Takes messages again, since the move did not come about. Does nothing if something else has closed it."""
        if self.paused:
            self.closed = None
            self.signal.wake()

    def judge(self, part: int, sequences: Sequences, count: int) -> Verdict:
        """Returns the verdict on `count` rows of this request in a part. Pending ones count as if they were
        recorded."""
        verdict = self.producers.judge(part, sequences.producer, sequences.low, sequences.high, count)
        pending = self._pending.get((sequences.producer, part))
        if not pending or not isinstance(verdict, New):
            return verdict
        for known in pending:
            asked = known.sequences
            if asked and (asked.low, asked.high, known.count) == (sequences.low, sequences.high, count):
                return InFlight(known.offset)
        newest = max(known.sequences.high for known in pending if known.sequences)
        return New() if sequences.low > newest else OutOfOrder(newest)

    def add_pending(self, waiter: Waiter) -> None:
        """Notes that rows which were judged new are on their way."""
        if waiter.sequences:
            self._pending.setdefault((waiter.sequences.producer, waiter.part), []).append(waiter)

    def remove_pending(self, waiter: Waiter) -> None:
        """Notes that rows are durable and recorded, or have failed."""
        if waiter.sequences is None:
            return
        key = (waiter.sequences.producer, waiter.part)
        left = [known for known in self._pending[key] if known is not waiter]
        if left:
            self._pending[key] = left
        else:
            del self._pending[key]

    def append_durable(
        self, rows: BufferedRows, ranges: tuple[ProducerRange, ...], now_us: int, max_timestamp_us: int
    ) -> None:
        """Adds rows that the journal has: they are readable from now on."""
        for known in ranges:
            self.producers.record(
                known.part, known.producer, known.low, known.high, known.first_offset, known.count, now_us
            )
        self.max_timestamp_us = max(self.max_timestamp_us, max_timestamp_us)
        self.tail.append(rows)
        self._dirty(self)
        self.taken_bytes += rows.size_bytes
        self.taken_messages += rows.rows.num_rows
        self._budget.tails += rows.size_bytes
        self.signal.wake()

    def owe_entry(self, sequence: int, commit: int) -> None:
        """Records that the chain needs an entry of that sequence, rows or none, since the journal says so."""
        if self.chain.next.sequence <= sequence:
            self.empty_entry = (sequence, commit)
            self._dirty(self)

    @property
    def pin(self) -> int | None:
        """The oldest commit that is still needed; None if the chain has all."""
        pins = [self.tail.oldest().commit] if self.tail else []
        return min([*pins, self.empty_entry[1]] if self.empty_entry else pins, default=None)

    def weigh(self, offset: int) -> tuple[int, int | None]:
        """Returns about how many bytes the rows from `offset` on take, and when the first one came, or later; None
        where that is not known. It reads nothing."""
        if offset >= self.tail.start:
            return self.tail.weigh(offset)
        sizes = self.chain.known_sizes()
        return sizes.size_since(offset) + self.tail.size_bytes, sizes.arrival_us(offset)

    def drop_flushed(self, end: int) -> None:
        """Drops the rows below `end`, which the chain has, from the tail."""
        if self.empty_entry and self.chain.next.sequence > self.empty_entry[0]:
            self.empty_entry = None
        if self.tail and self.chain.last and (oldest := self.tail.oldest()).first == self.chain.last.first_offset:
            self.chain.record_arrival(EntryName(self.chain.last.sequence, oldest.first), time_of(oldest.rows, 0))
        before = self.tail.size_bytes
        self.tail.drop(end)
        self._budget.tails -= before - self.tail.size_bytes


class DirtySegments:
    """An ordered set of segments, so that flushes begin in an order that does not depend on addresses in memory."""

    def __init__(self) -> None:
        self._segments: dict[OpenSegment, None] = {}

    def __iter__(self) -> Iterator[OpenSegment]:
        """Goes over a copy: a flush or a publish may change the set meanwhile."""
        return iter(list(self._segments))

    def add(self, segment: OpenSegment) -> None:
        """Adds a segment that has got rows."""
        self._segments[segment] = None

    def discard(self, segment: OpenSegment) -> None:
        """Removes a segment, whether it has a tail or not."""
        self._segments.pop(segment, None)

    def prune(self) -> None:
        """Removes the segments without a tail, and without an empty entry to come."""
        self._segments = {segment: None for segment in self._segments if segment.pin is not None}

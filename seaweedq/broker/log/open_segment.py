"""A segment that this broker owns: its chain, its tail, its producers.

All of it lives on the event loop; nothing here awaits, so that each method is one step. Rows come in through
`durable` (after the journal has them) and go out through `flushed` (after the chain has them).
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from seaweedq.broker.log.entry_writer import Source
from seaweedq.broker.log.memory_budget import Budget
from seaweedq.broker.log.tail import Piece, Tail
from seaweedq.concurrency.signal import Signal
from seaweedq.errors import NotOwner, SeaweedqError
from seaweedq.segments.chain import Chain
from seaweedq.segments.entry import Seal
from seaweedq.segments.frames import ProducerRange
from seaweedq.segments.producers import Duplicate, New, OutOfOrder, ProducerTables, Sequences


@dataclass(frozen=True, slots=True)
class Waiting:
    """A verdict: the same request is on its way to the journal; `done` gives its fate."""

    done: asyncio.Future[int]


Verdict = New | Duplicate | OutOfOrder | Waiting


@dataclass(frozen=True, slots=True)
class _Pending:
    low: int
    high: int
    count: int
    done: asyncio.Future[int]


class OpenSegment:
    """State of one owned segment, or of a sealed one, which is only read and has no owner. Offsets from `tail.end` on
    are free. A `seal` stands in the next entry that holds all of the tail."""

    def __init__(
        self,
        source: Source,
        chain: Chain,
        producers: ProducerTables,
        owner: str | None,
        budget: Budget,
        signal: Signal,
        dirty: Callable[["OpenSegment"], None],
    ) -> None:
        self.source = source
        self.owner = owner
        self.topic = source.topic
        self.id = source.segment
        self.layout = source.layout
        self.chain = chain
        self.tail = Tail(chain.end)
        self.next = chain.end  # the offset to give out next; beyond `end` are those on their way to the journal
        last = chain.last
        self.producers = producers
        self.seal: Seal | None = None
        self.max_timestamp_us = last.max_timestamp_us if last else 0
        self.closed: SeaweedqError | None = None
        self._holding: SeaweedqError | None = None
        self.held_since_s: float | None = None  # monotonic: since when it takes nothing, for good
        self.taken_bytes = self.taken_messages = 0  # ever, by this broker
        self.signal = signal
        self._budget = budget
        self._dirty = dirty
        self._pending: dict[tuple[str, int], list[_Pending]] = {}  # by producer and part

    @property
    def sealed(self) -> bool:
        """Whether its chain has ended."""
        return self.chain.last is not None and self.chain.last.seal is not None

    @property
    def takes_elsewhere(self) -> bool:
        """Whether its messages go to another segment, or another broker, as far as is known."""
        return self.sealed or isinstance(self.closed, NotOwner)

    @property
    def end(self) -> int:
        """One above the last durable offset."""
        return self.tail.end

    def check_open(self) -> None:
        """Raises what closed the segment."""
        if self.closed:
            raise self.closed

    def close(self, reason: SeaweedqError) -> None:
        """Take nothing more; who waits is woken. What is in the tail stays in the journal."""
        self.closed = reason
        self.signal.wake()

    def hold(self, reason: SeaweedqError) -> None:
        """As `close`, for a while: the tail may still be flushed. One that is closed stays so."""
        if self.closed is None:
            self._holding = reason
            self.close(reason)

    @property
    def held(self) -> bool:
        """Whether it is held, and nothing has closed it since."""
        return self.closed is not None and self.closed is self._holding

    def reopen(self) -> None:
        """Take messages again, unless it was closed for another reason: the move did not come about."""
        if self.held:
            self.closed = None
            self.signal.wake()

    def judge(self, part: int, sequences: Sequences, count: int) -> Verdict:
        """What becomes of `count` rows of this request in a part: pending ones count as if they were recorded."""
        verdict = self.producers.judge(part, sequences.producer, sequences.low, sequences.high, count)
        pending = self._pending.get((sequences.producer, part))
        if not pending or not isinstance(verdict, New):
            return verdict
        for known in pending:
            if (known.low, known.high, known.count) == (sequences.low, sequences.high, count):
                return Waiting(known.done)
        newest = max(known.high for known in pending)
        return New() if sequences.low > newest else OutOfOrder(newest)

    def expect(self, part: int, sequences: Sequences, count: int, done: asyncio.Future[int]) -> None:
        """Rows judged new are on their way; `done` will be their first offset, or an error."""
        waiting = self._pending.setdefault((sequences.producer, part), [])
        waiting.append(_Pending(sequences.low, sequences.high, count, done))

    def settle(self, part: int, sequences: Sequences) -> None:
        """Rows are durable and recorded, or have failed: no longer pending."""
        key = (sequences.producer, part)
        left = [p for p in self._pending[key] if p.low != sequences.low]
        if left:
            self._pending[key] = left
        else:
            del self._pending[key]

    def durable(self, piece: Piece, ranges: tuple[ProducerRange, ...], now_us: int, max_timestamp_us: int) -> None:
        """The journal has these rows: they are readable from now on."""
        for known in ranges:
            self.producers.record(
                known.part, known.producer, known.low, known.high, known.first_offset, known.count, now_us
            )
        self.max_timestamp_us = max(self.max_timestamp_us, max_timestamp_us)
        self.tail.append(piece)
        self._dirty(self)
        self.taken_bytes += piece.size_bytes
        self.taken_messages += piece.rows.num_rows
        self._budget.tails += piece.size_bytes
        self.signal.wake()

    def flushed(self, end: int) -> None:
        """The chain has the rows below `end`."""
        before = self.tail.size_bytes
        self.tail.drop(end)
        self._budget.tails -= before - self.tail.size_bytes

"""Flushing: tails become entries of their chains.

Which tails are due is decided by `due`, a pure function of what is in memory and how old it is. `Flusher` carries it
out: take the head of the tail (all durable), encode in a thread, append to the chain, and only then let the tail go.
A crash before the append leaves the rows in the journal; between append and release, recovery finds them in
the chain and skips them. So nothing is lost or doubled, whichever step is the last.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from seaweedq.broker.log.entry_writer import EntryWriter
from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.errors import Fenced, NotReady
from seaweedq.failpoints import reach
from seaweedq.futures import mark_retrieved

ENTRY_BYTES = 64 * 1024 * 1024
SMALL_TAIL_AGE_S = 900.0
ABANDON_S = 5.0
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FlushLimits:
    """A topic's flush policy, defaults filled in. `patient`: the age is the default, so small tails may wait longer."""

    max_bytes: int
    min_bytes: int
    max_age_s: float
    patient: bool


@dataclass(frozen=True, slots=True)
class TailFacts:
    """What decides about one tail; `commit` is the oldest one that it pins."""

    size_bytes: int
    at_s: float
    commit: int
    limits: FlushLimits


def is_due(tail: TailFacts, now_s: float) -> bool:
    """By its own size or age. An age set by the user always wins over the leniency for small tails."""
    small = tail.limits.patient and tail.size_bytes < tail.limits.min_bytes
    age = max(tail.limits.max_age_s, SMALL_TAIL_AGE_S) if small else tail.limits.max_age_s
    return tail.size_bytes >= tail.limits.max_bytes or now_s - tail.at_s >= age


def due(
    tails: Mapping[OpenSegment, TailFacts], now_s: float, excess_bytes: int, unreleased_excess_bytes: int
) -> list[OpenSegment]:
    """The tails to flush now, most urgent first.

    `excess_bytes`: how far memory is over where flushing begins: the largest tails go until it is covered.
    `unreleased_excess_bytes`: how far the journal is over its bound: the tails that pin its oldest commits go.
    """
    chosen = [s for s, facts in tails.items() if is_due(facts, now_s)]
    by_age = sorted(tails, key=lambda s: tails[s].commit)
    chosen += _until(by_age, tails, unreleased_excess_bytes)
    by_size = sorted(tails, key=lambda s: -tails[s].size_bytes)
    chosen += _until(by_size, tails, excess_bytes)
    return list(dict.fromkeys(chosen))


def pinning(tails: Mapping[OpenSegment, TailFacts], below: int) -> list[OpenSegment]:
    """The tails that keep commits below `below` from being released."""
    return [segment for segment, facts in tails.items() if facts.commit < below]


def _until(order: Sequence[OpenSegment], tails: Mapping[OpenSegment, TailFacts], needed: int) -> Iterable[OpenSegment]:
    for segment in order:
        if needed <= 0:
            return
        needed -= tails[segment].size_bytes
        yield segment


class Flusher:
    """Carries flushes out, at most `workers` at a time, and as many that end a segment."""

    def __init__(self, entries: EntryWriter, workers: int = 2) -> None:
        self.flushes = 0
        self.grown: Callable[[OpenSegment], None] = lambda segment: None  # told of each chain that got an entry
        self._entries = entries
        self._places = asyncio.Semaphore(workers)
        self._urgent = asyncio.Semaphore(workers)  # for those that publishes wait for
        self._running: dict[OpenSegment, asyncio.Task[None]] = {}

    async def flush(self, segment: OpenSegment, patience_s: float | None = None) -> None:
        """Bring everything that is durable now into the chain. Raises Fenced; the segment is closed then.

        The work is a task of its own: whoever asked may go away, but bytes whose put is in doubt must be put again.
        Each time that an entry takes longer than `patience_s` because the store refuses it: StoreUnavailable.
        """
        goal = segment.end
        while segment.tail.start < min(goal, segment.end) or (segment.seal and not segment.sealed):
            task = self._running.get(segment)
            if task is None:
                task = self._running[segment] = asyncio.create_task(self._flush(segment))
                task.add_done_callback(mark_retrieved)
                task.add_done_callback(lambda _: self._running.pop(segment))
            await asyncio.wait([task], timeout=patience_s)
            if task.cancelled():
                segment.check_open()
                raise NotReady("the broker is stopping")
            if task.done():
                task.result()
            elif segment.chain.failing:
                raise segment.chain.failing

    def busy(self, segment: OpenSegment) -> bool:
        """Whether a flush of this segment is under way."""
        return segment in self._running

    async def abandon(self, segment: OpenSegment) -> None:
        """Stop working on a segment that is being deleted, but let a put under way end, so that it can be removed."""
        if task := self._running.get(segment):
            await asyncio.wait([task], timeout=ABANDON_S)
            task.cancel()
            await asyncio.wait([task])

    async def stop(self) -> None:
        """Abandon what is under way: its rows are in the journal."""
        for task in list(self._running.values()):
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _flush(self, segment: OpenSegment) -> None:
        async with self._places if segment.seal is None else self._urgent:
            if not segment.held:
                segment.check_open()
            pieces = segment.tail.head(ENTRY_BYTES)
            rows = [(piece.first, piece.rows) for piece in pieces]
            end = pieces[-1].end if pieces else segment.tail.start
            seal = segment.seal if end == segment.end else None
            try:
                await self._entries.append(
                    segment.source, segment.chain, rows, segment.producers, segment.max_timestamp_us, seal
                )
            except Fenced as error:
                logger.warning("segment %s of %s is lost to another broker: %s", segment.id, segment.topic, error)
                segment.close(error)
                raise
            reach("flush.release")
            segment.flushed(end)
            self.flushes += 1
            self.grown(segment)

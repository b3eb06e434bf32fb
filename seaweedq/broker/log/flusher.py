"""The log of one life of a broker: the journal that makes rows durable, and the flusher that brings them into chains.

`due` decides which tails are due; it is a pure function of what is in memory and how old that is. `Flusher` carries it
out: it takes the head of the tail (all durable, and of one version of the schema), encodes it in a thread, appends it
to the chain, and only then drops it from the tail. A crash before the append leaves the rows in the journal; between
append and release, recovery finds them in the chain and skips them. So nothing is lost or doubled, whichever step is
the last.

Order at a stop: nothing more is taken, the commits under way end, and then everything is flushed. What a stop does not
finish stays in the journal, and a recovery finds it there.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from seaweedq.broker.log.entry_writer import EntryWriter
from seaweedq.broker.log.group_commit import GroupCommit
from seaweedq.broker.log.memory_budget import Budget
from seaweedq.broker.log.open_segment import DirtySegments, OpenSegment
from seaweedq.broker.log.reader import GroupCache, Reader
from seaweedq.checks import reach
from seaweedq.clock import Clock, by_outcome
from seaweedq.concurrency.futures import mark_retrieved
from seaweedq.errors import Fenced, NotReady
from seaweedq.journal.interface import Journal
from seaweedq.segments.entry import Seal
from seaweedq.traces import Traces

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
    """The facts that decide about one tail; `commit` is the oldest one that it pins."""

    size_bytes: int
    at_s: float
    commit: int
    limits: FlushLimits


def is_due(tail: TailFacts, now_s: float) -> bool:
    """Decides by a tail's own size or age. An age set by the user always wins over the leniency for small tails."""
    small = tail.limits.patient and tail.size_bytes < tail.limits.min_bytes
    age = max(tail.limits.max_age_s, SMALL_TAIL_AGE_S) if small else tail.limits.max_age_s
    return tail.size_bytes >= tail.limits.max_bytes or now_s - tail.at_s >= age


def due(
    tails: Mapping[OpenSegment, TailFacts], now_s: float, excess_bytes: int, unreleased_excess_bytes: int
) -> list[OpenSegment]:
    """Returns the tails to flush now, most urgent first.

    `excess_bytes` says how far memory is over the size at which flushing begins: the largest tails go until it is
    covered. `unreleased_excess_bytes` says how far the journal is over its bound: the tails that pin its oldest commits
    go.
    """
    chosen = [s for s, facts in tails.items() if is_due(facts, now_s)]
    by_age = sorted(tails, key=lambda s: tails[s].commit)
    chosen += _until(by_age, tails, unreleased_excess_bytes)
    by_size = sorted(tails, key=lambda s: -tails[s].size_bytes)
    chosen += _until(by_size, tails, excess_bytes)
    return list(dict.fromkeys(chosen))


def pinning(tails: Mapping[OpenSegment, TailFacts], below: int) -> list[OpenSegment]:
    """Returns the tails that keep commits below `below` from being released."""
    return [segment for segment, facts in tails.items() if facts.commit < below]


def _until(order: Sequence[OpenSegment], tails: Mapping[OpenSegment, TailFacts], needed: int) -> Iterable[OpenSegment]:
    for segment in order:
        if needed <= 0:
            return
        needed -= tails[segment].size_bytes
        yield segment


class Flusher:
    """Carries flushes out, at most `workers` at a time, and as many seals. `grown` hears of each chain that grew,
    `fenced` of each segment in whose chain another broker has written."""

    def __init__(
        self,
        entries: EntryWriter,
        grown: Callable[[OpenSegment], None],
        fenced: Callable[[OpenSegment, Fenced], None],
        clock: Clock,
        workers: int = 2,
        traces: Traces | None = None,
    ) -> None:
        self.flushes = 0
        self.durations = by_outcome("ok", "failed")
        self._clock = clock
        self.fenced = fenced
        self._entries = entries
        self._traces = traces
        self._grown = grown
        self._ordinary = asyncio.Semaphore(workers)
        self._urgent = asyncio.Semaphore(workers)  # for seals, which publishes wait for
        self._running: dict[OpenSegment, asyncio.Task[None]] = {}

    async def flush(self, segment: OpenSegment, patience_s: float | None = None) -> None:
        """Brings everything that is durable now into the chain; an empty entry if one is owed. Raises
        Fenced; the segment is closed then.

        Raises StoreUnavailable each time that an entry takes longer than `patience_s` because the store refuses it.
        """
        goal = segment.end
        while segment.empty_entry or segment.tail.start < min(goal, segment.end):
            await self._write_entry(segment, None, patience_s)

    async def seal(self, segment: OpenSegment, seal: Seal) -> None:
        """Brings the whole tail into the chain and ends the chain with `seal`, which stands in the last entry.

        The segment must take nothing any more, and have nothing on its way to the journal. Raises Fenced; the segment
        is closed then. After any other error it may be called again, with the same seal, and goes on.
        """
        while not segment.sealed:
            await self._write_entry(segment, seal, None)

    async def _write_entry(self, segment: OpenSegment, seal: Seal | None, patience_s: float | None) -> None:
        """Writes one entry, or waits for the one that is under way, whoever began it.

        The work is a task of its own: the caller may go away, but bytes whose put is in doubt must be put again.
        """
        task = self._running.get(segment)
        if task is None:
            task = self._running[segment] = asyncio.create_task(self._flush(segment, seal))
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

    def is_flushing(self, segment: OpenSegment) -> bool:
        """Whether a flush of this segment is under way."""
        return segment in self._running

    async def abandon(self, segment: OpenSegment) -> None:
        """Stops working on a segment that is being deleted, but lets a put under way end, so that it can be removed."""
        if task := self._running.get(segment):
            await asyncio.wait([task], timeout=ABANDON_S)
            task.cancel()
            await asyncio.wait([task])

    async def stop(self) -> None:
        """Abandons the flushes that are under way: their rows are in the journal."""
        for task in list(self._running.values()):
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _flush(self, segment: OpenSegment, seal: Seal | None) -> None:
        async with self._urgent if seal else self._ordinary:
            if not segment.paused:
                segment.check_open()
            head = segment.tail.head(ENTRY_BYTES)
            rows = [(buffered.first, buffered.rows) for buffered in head]
            end = head[-1].end if head else segment.tail.start
            last = seal if end == segment.end else None
            began_s = self._clock.monotonic_s()
            try:
                first = head[0] if head else None
                layout = segment.layout.of(first.rows.schema, first.schema_id) if first else segment.layout
                source = replace(segment.source, layout=layout)
                writing = self._entries.append(
                    source, segment.chain, rows, segment.producers, segment.max_timestamp_us, last
                )
                if self._traces is None:
                    await writing
                else:
                    contexts, count = chain.from_iterable(one.contexts for one in head), end - segment.tail.start
                    about = {"segment": str(segment.id), "count": count}
                    await self._traces.around(writing, "flush", segment.topic, contexts, **about)
            except Exception as error:
                self.durations["failed"].add(self._clock.monotonic_s() - began_s)
                if isinstance(error, Fenced):
                    logger.warning(
                        "another broker has taken over segment %s of topic %s: %s", segment.id, segment.topic, error
                    )
                    segment.close(error)
                    if seal is None:  # who seals looks first whether another's seal is as good
                        self.fenced(segment, error)
                raise
            self.durations["ok"].add(self._clock.monotonic_s() - began_s)
            reach("flush.release")
            segment.drop_flushed(end)
            self.flushes += 1
            self._grown(segment)


class Log:
    """The journal, its group commit, the flusher, the segments that may have something to flush, and the reader of
    files with its cache.

    `valid` says whether this broker may acknowledge. `check_first` is awaited once, before the first commit is
    answered, and raises Fenced if coordination has a later history. `grown` is told of each segment that got a file,
    `fenced` of one that another broker has written.
    """

    def __init__(
        self,
        journal: Journal,
        valid: Callable[[], bool],
        entries: EntryWriter,
        budget: Budget,
        cache_bytes: int,
        clock: Clock,
        grown: Callable[[OpenSegment], None],
        fenced: Callable[[OpenSegment, Fenced], None],
        check_first: Callable[[], Awaitable[None]] | None = None,
        traces: Traces | None = None,
    ) -> None:
        self.journal = journal
        self.commit = GroupCommit(journal, clock, valid, check_first, traces)
        self.flusher = Flusher(entries, grown, fenced, clock, traces=traces)
        self.dirty = DirtySegments()
        self.cache = GroupCache(budget, cache_bytes)
        self.reader = Reader(self.cache, clock)

"""The group commit: one set of frames for all that waits, over all segments, made durable at once.

While one commit becomes durable the next one gathers. A journal with a window takes several at a time; their rows are
buffered, and their requests answered, in order. Offsets are given out when a commit is put together, not earlier, so a
commit that fails leaves no hole (only a journal that takes one at a time lets a commit fail and goes on). A request is
in one commit as a whole: on this broker it is all or nothing, also over a crash. After durability, and before a request
is answered, `may_acknowledge` is asked: a broker whose lease has run out must not say yes (its rows may or may not
survive, which is what 503 means).

The order behind durability: 1. rows join the tails, which pin the commit; 2. all futures are resolved; 3. behind their
callbacks `committed` rises and `wait_until_idle` ends. So an ack has pinned its commit before the commit can be
released.

Before all of that the first commit of a life is checked, once (`check_first`): is coordination's history still the
newest that the store knows? A rebuild of coordination puts its generation into the store first, and lists the journals
behind that. So it either finds this life's journal, and fences it, or the check finds the generation.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter

import pyarrow as pa

from seaweedq.broker.log.open_segment import BufferedRows, OpenSegment, Waiter
from seaweedq.checks import reach, require
from seaweedq.clock import Clock, by_outcome
from seaweedq.concurrency.futures import fail
from seaweedq.errors import JournalUnavailable, NotReady, Unavailable
from seaweedq.journal.interface import Journal
from seaweedq.segments.frames import Frame, FrameKind, ProducerRange
from seaweedq.segments.layout import Layout, mask_of, schema_id_of
from seaweedq.segments.producers import Sequences
from seaweedq.segments.rows import Single, newest_us, rows_of_singles
from seaweedq.segments.trace_headers import traceparents
from seaweedq.traces import Traces

COMMIT_BYTES = 32 * 1024 * 1024
CHECK_S = 0.2  # between two tries of the first commit's check
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Rows of one segment and their serialised form, on whose bytes they stand; the newest `_timestamp` among them, and
    the version of their schema."""

    rows: pa.RecordBatch
    payload: pa.Buffer
    max_timestamp_us: int
    schema_id: int

    @staticmethod
    def encode(rows: pa.RecordBatch, newest: int | None = None) -> "EncodedRows":
        """Serialises rows, once; `newest` is the newest `_timestamp` among them, if it is known. The result stands on
        the new bytes, so that the request's own buffers can go."""
        payload, schema = rows.serialize(), rows.schema
        own = pa.ipc.read_record_batch(payload, schema)
        return EncodedRows(own, payload, newest_us(rows) if newest is None else newest, schema_id_of(schema))

    def raised(self, layout: Layout, topic: str, keeps: bool = False) -> "EncodedRows":
        """Returns the rows in the version of a topic's layout. Raises NotReady for rows of a later one, and
        SchemaMismatch if a field that has a value was dropped; such rows stay as they are if `keeps`."""
        if self.schema_id == layout.schema_id:
            return self
        if keeps and layout.dropped_value(self.rows) is not None:
            return self
        layout.check_values(self.rows, topic)
        return EncodedRows.encode(layout.raised(self.rows))


@dataclass(frozen=True, slots=True)
class Append:
    """Rows for one segment, and all who wait for some of them: whole, as the group commit gets it."""

    segment: OpenSegment
    encoded: EncodedRows
    waiters: Sequence[Waiter]

    def succeed(self, first_offset: int) -> None:
        """Tells the waiters the offsets of their rows."""
        for waiter in self.waiters:
            if waiter.sequences is not None:
                self.segment.remove_pending(waiter)
            if not waiter.offset.done():
                waiter.offset.set_result(first_offset + waiter.row)

    def fail(self, error: Exception) -> None:
        """Tells the waiters why their rows were not taken, or why nobody knows."""
        for waiter in self.waiters:
            self.segment.remove_pending(waiter)
            fail(waiter.offset, error)


@dataclass(slots=True)
class _Singles:
    """The messages of one segment that came alone, and will be appended together."""

    messages: list[Single] = field(default_factory=list)
    waiters: list[Waiter] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Commit:
    """All that goes into one commit: appends, and other frames with the futures of the commit's number.

    `added` requests and frames, the first ones of all, are done with once this commit is.
    """

    appends: Sequence[Append]
    others: Sequence[tuple[Frame, asyncio.Future[int]]]
    added: int

    def fail(self, error: Exception) -> None:
        """Fails all futures that wait for the commit."""
        for append in self.appends:
            append.fail(error)
        for _, number in self.others:
            fail(number, error)


class GroupCommit:
    """Gathers, writes, answers. `run` is its loop; everything else may be called at any time on the event loop."""

    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        may_acknowledge: Callable[[], bool],
        check_first: Callable[[], Awaitable[None]] | None = None,
        traces: Traces | None = None,
    ) -> None:
        self.committed = -1  # the number of the last commit whose waiters have all been told
        self.commits = 0
        self.messages = self.size_bytes = 0  # made durable
        self.durations = by_outcome("ok", "failed")
        self._journal = journal
        self._clock = clock
        self._may_acknowledge = may_acknowledge
        self._check_first = check_first
        self._traces = traces
        self._requests: deque[tuple[int, Sequence[Append]]] = deque()  # each with its place among all that was added
        self._singles: dict[OpenSegment, _Singles] = {}
        self._others: list[tuple[Frame, asyncio.Future[int]]] = []
        self._wake = asyncio.Event()
        self._full = asyncio.Event()  # while the requests that wait are as much as a commit takes
        self._waiting_bytes = 0
        self._added = 0  # how many requests and frames there ever were, and how many of the first are done with
        self._processed = 0
        self._round = asyncio.Event()
        self._closed = False

    def append(self, appends: Sequence[Append]) -> None:
        """Takes the appends of one request into one commit. Their waiters get their offsets once the commit is durable.

        Sequences count as pending from here on: the caller must have judged them in the same step, without an await in
        between. Raises NotReady once closed; then nothing is pending.
        """
        self._requests.append((self._count(), appends))
        self._add_waiting_bytes(sum(append.encoded.payload.size for append in appends))
        for append in appends:
            for waiter in append.waiters:
                append.segment.add_pending(waiter)

    def append_single(
        self, segment: OpenSegment, part: int, message: Single, sequences: Sequences | None
    ) -> asyncio.Future[int]:
        """Takes one message, as `append`, together with the others that wait for the segment. Returns its offset."""
        self._count()
        waiting = self._singles.get(segment)
        if waiting is None:
            waiting = self._singles[segment] = _Singles()
        offset: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        waiter = Waiter(len(waiting.messages), 1, offset, part, sequences)
        waiting.waiters.append(waiter)
        waiting.messages.append(message)
        if sequences is not None:
            segment.add_pending(waiter)
        return offset

    def append_frame(self, frame: Frame) -> asyncio.Future[int]:
        """Takes a frame that is not rows (acks). Returns the number of its commit once that is durable.

        The future's callbacks run before that commit can be released. Ask `check_lease` before anybody is answered.
        """
        self._count()
        number: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._others.append((frame, number))
        return number

    def check_lease(self) -> None:
        """Raises NotReady if this broker may not acknowledge."""
        if not self._may_acknowledge():
            raise NotReady("this broker's lease has expired; the outcome of the request is unknown")

    async def wait_until_idle(self) -> None:
        """Waits until everything added before is durable or has failed, and all who waited for it were told."""
        goal = self._added
        while self._processed < goal:
            await self._round.wait()

    async def finish(self) -> None:
        """Waits as `wait_until_idle`, and makes sure that commits which failed come back in no recovery. Raises
        JournalUnavailable."""
        await self.wait_until_idle()
        await self._journal.discard_failed()

    def close(self) -> None:
        """Takes nothing more. All that was added before is still committed."""
        self._closed = True

    async def run(self) -> None:
        """Commits for ever. At its end (cancelled, fenced) all waiters get NotReady, and nothing more is taken.

        Raises Fenced, and other errors that end a journal: alone, since all commits under way fail for the same reason.
        """
        flying: deque[asyncio.Task[None]] = deque()
        try:
            async with asyncio.TaskGroup() as flights:
                while True:
                    if not self._is_waiting():
                        self._wake.clear()
                        await self._wake.wait()
                    await self._journal.pace(self._full)
                    if self._journal.window == 1:
                        await self._commit(self._next_commit(), None)
                        continue
                    while flying and (flying[0].done() or len(flying) >= self._journal.window):
                        await asyncio.wait([flying.popleft()])
                    before = flying[-1] if flying else None
                    flying.append(flights.create_task(self._commit(self._next_commit(), before)))
        except ExceptionGroup as ended:
            raise ended.exceptions[0] from None
        finally:
            self._closed = True
            while self._is_waiting():
                self._next_commit().fail(NotReady("the broker is stopping"))
            self._end(self._added)

    def _count(self) -> int:
        """Counts one more to be committed. Raises NotReady once closed."""
        if self._closed:
            raise NotReady("the broker is stopping")
        self._added += 1
        self._wake.set()
        return self._added

    def _add_waiting_bytes(self, size_bytes: int) -> None:
        """Counts so many more bytes of requests that wait for a commit."""
        self._waiting_bytes += size_bytes
        (self._full.set if self._waiting_bytes >= COMMIT_BYTES else self._full.clear)()

    def _is_waiting(self) -> bool:
        return bool(self._requests or self._singles or self._others)

    def _next_commit(self) -> _Commit:
        """Takes as many requests as fit in a commit, all single messages, all other frames."""
        singles, self._singles = self._singles, {}
        others, self._others = self._others, []
        appends: list[Append] = []
        for segment, waiting in singles.items():
            try:
                rows = rows_of_singles(waiting.messages, segment.layout)
                encoded = EncodedRows.encode(rows, max(one.timestamp_us for one in waiting.messages))
            except Exception as error:  # nothing of them is appended
                for waiter in waiting.waiters:
                    segment.remove_pending(waiter)
                    fail(waiter.offset, error)
            else:
                appends.append(Append(segment, encoded, waiting.waiters))
        size = 0
        while self._requests:
            _, request = self._requests[0]
            more = sum(append.encoded.payload.size for append in request)
            if size and size + more > COMMIT_BYTES:
                break
            size += more
            appends += request
            self._requests.popleft()
        if size:
            self._add_waiting_bytes(-size)
        return _Commit(appends, others, self._requests[0][0] - 1 if self._requests else self._added)

    async def _commit(self, taken: _Commit, before: asyncio.Task[None] | None) -> None:
        """Makes it durable, and answers once `before` has been answered. However it ends, all futures end."""
        now_us, began_s = self._clock.now_us(), self._clock.monotonic_s()
        try:
            frames = _assign(taken.appends, now_us)
        except Exception as error:  # no offset was given out
            taken.fail(error)
            if before is not None:  # the next commit waits for this one
                await _answered(before)
            self._end(taken.added)
            return
        reach("commit.append")
        contexts: list[tuple[str, ...]] = [()] * len(frames)
        try:
            writing = self._journal.append([*frames, *map(itemgetter(0), taken.others)])
            if self._traces is not None:
                contexts = [traceparents(append.encoded.rows) for append in taken.appends]
                count = sum(frame.count for frame in frames)
                writing = self._traces.around(writing, "commit", "", chain.from_iterable(contexts), count=count)
            number = await writing
            if before is not None:
                await _answered(before)
            if self._check_first is not None:
                await self._check_history(self._check_first)
        except JournalUnavailable as error:
            self.durations["failed"].add(self._clock.monotonic_s() - began_s)
            for append in taken.appends:
                append.segment.next = append.segment.end
            taken.fail(error)
            self._end(taken.added)
            return
        except BaseException as error:
            if isinstance(error, Exception):
                self.durations["failed"].add(self._clock.monotonic_s() - began_s)
            taken.fail(error if isinstance(error, Exception) else NotReady("the broker is stopping"))
            raise
        reach("commit.durable")
        at_s = self._clock.monotonic_s()
        self.commits += 1
        self.durations["ok"].add(at_s - began_s)
        try:
            for append, frame, of_rows in zip(taken.appends, frames, contexts, strict=True):
                rows, size = append.encoded.rows, append.encoded.payload.size
                buffered = BufferedRows(frame.first_offset, rows, size, number, at_s, frame.schema_id, of_rows)
                append.segment.append_durable(buffered, frame.ranges, now_us, append.encoded.max_timestamp_us)
                self.messages += frame.count
                self.size_bytes += size
        except Exception as error:  # ends this life: a recovery brings the rows from the journal into their chains
            taken.fail(error)
            raise
        for _, committed in taken.others:
            if not committed.done():
                committed.set_result(number)
        try:
            self.check_lease()
        except NotReady as error:
            for append in taken.appends:
                append.fail(error)
        else:
            for append, frame in zip(taken.appends, frames, strict=True):
                append.succeed(frame.first_offset)
        self._end(taken.added, number)

    async def _check_history(self, check: Callable[[], Awaitable[None]]) -> None:
        """Does `check_first`, until the store answers: those who wait have limits of their own. Raises Fenced."""
        reach("commit.first")
        while True:
            try:
                await check()
            except Unavailable as error:
                logger.warning("the first write to this broker's journal waits until the store answers: %s", error)
                await asyncio.sleep(CHECK_S)
            else:
                self._check_first = None
                return

    def _end(self, added: int, number: int | None = None) -> None:
        """Moves on, but behind the callbacks of the futures that were just resolved.

        asyncio runs callbacks in the order in which they were scheduled. An ack pins its commit, and counts, in such a
        callback: only then may `committed` let the commit be released, and `wait_until_idle` say that all is told.
        """
        asyncio.get_running_loop().call_soon(self._finish_round, added, number)

    def _finish_round(self, added: int, number: int | None) -> None:
        self.committed = self.committed if number is None else number
        self._processed = added
        self._round.set()
        self._round = asyncio.Event()


async def _answered(before: asyncio.Task[None]) -> None:
    """Waits until the commit before has been answered. Raises its error: one that failed takes all later ones with
    it."""
    await asyncio.wait([before])
    before.result()


def _assign(appends: Sequence[Append], now_us: int) -> list[Frame]:
    """Gives out offsets, dense in each segment, and makes the frames. Raises InvariantViolated; no error leaves an
    offset given out."""
    frames: list[Frame] = []
    after: dict[OpenSegment, int] = {}
    for append in appends:
        segment, encoded, last = append.segment, append.encoded, append.waiters[-1]
        count = encoded.rows.num_rows
        require(
            segment.next >= segment.tail.end,
            "segment %s of %r gives out offset %d, and its tail ends at %d",
            *(segment.id, segment.topic, segment.next, segment.tail.end),
        )
        require(
            count == last.row + last.count > 0,
            "an append to segment %s of %r has %d rows, and its waiters wait for %d",
            *(segment.id, segment.topic, count, last.row + last.count),
        )
        first = after.get(segment, segment.next)
        ranges = []
        for waiter in append.waiters:
            if known := waiter.sequences:
                place = first + waiter.row, waiter.count, waiter.part
                ranges.append(ProducerRange(known.producer, known.low, known.high, *place))
        frames.append(
            Frame(
                kind=FrameKind.ROWS,
                topic=segment.topic,
                segment=segment.id,
                first_offset=first,
                count=count,
                columns=mask_of(encoded.rows),
                schema_id=encoded.schema_id,
                ranges=tuple(ranges),
                append_time_us=now_us,
                payload=encoded.payload,
                term=segment.source.term,
            )
        )
        after[segment] = first + count
    for segment, offset in after.items():
        segment.next = offset
    return frames

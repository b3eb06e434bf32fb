"""The group commit: one set of frames for all that waits, over all segments, made durable at once.

While one commit becomes durable the next one gathers; a journal with a window takes several at a time, which are worked
in and answered in order. Offsets are given out when a commit is put together, not earlier, so a commit that fails
leaves no hole (only a journal that takes one at a time lets a commit fail and goes on). A request is in one commit as a
whole: on this broker it is all or nothing, also over a crash. After durability, and before anybody is answered,
`may_acknowledge` is asked: a broker whose lease has run out must not say yes (its rows may or may not survive, which is
what 503 means).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.broker.log.tail import Piece
from seaweedq.clock import Clock
from seaweedq.errors import JournalUnavailable, NotReady
from seaweedq.failpoints import reach
from seaweedq.futures import fail, resolve
from seaweedq.journal.interface import Journal
from seaweedq.segments.frames import Frame, FrameKind, ProducerRange
from seaweedq.segments.layout import mask_of
from seaweedq.segments.producers import Sequences
from seaweedq.segments.rows import Single, rows_of_singles
from seaweedq.segments.schema import schema_id

COMMIT_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Claim:
    """Somebody waits for rows [row, row + count) of a request's share: `done` gives the first one's offset.

    `part` is where the part of the segment's range begins that the rows fall into.
    """

    row: int
    count: int
    done: asyncio.Future[int]
    part: int
    sequences: Sequences | None = None


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows for one segment and their serialised form, on which they stand; the newest `_timestamp` among them."""

    batch: pa.RecordBatch
    payload: pa.Buffer
    max_timestamp_us: int

    @staticmethod
    def of(batch: pa.RecordBatch) -> "Rows":
        """Serialise once; the rows then stand on those bytes, so that the request's own buffers can go."""
        payload = batch.serialize()
        return Rows.on(pa.ipc.read_record_batch(payload, batch.schema), payload)

    @staticmethod
    def on(batch: pa.RecordBatch, payload: pa.Buffer) -> "Rows":
        """Rows that stand on `payload` already."""
        return Rows(batch, payload, pc.max(batch.column(0)).value)


@dataclass(slots=True)
class Part:
    """Rows of a request for one segment. `first` is set when durable."""

    segment: OpenSegment
    rows: pa.RecordBatch
    payload: pa.Buffer
    max_timestamp_us: int
    claims: Sequence[Claim] = ()
    first: int = -1

    @staticmethod
    def of(segment: OpenSegment, rows: Rows) -> "Part":
        """These rows for this segment."""
        return Part(segment, rows.batch, rows.payload, rows.max_timestamp_us)


@dataclass(slots=True)
class _Request:
    number: int
    parts: Sequence[Part]
    size_bytes: int
    done: asyncio.Future[None]


@dataclass(slots=True)
class _Singles:
    """The accumulator of one segment."""

    messages: list[Single] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Other:
    """A frame that is not rows; `durable` is called with its commit's number before anybody is answered."""

    frame: Frame
    durable: Callable[[int], None]
    done: asyncio.Future[None]


class GroupCommit:
    """Gathers, writes, answers. `run` is its loop; everything else may be called at any time on the event loop."""

    def __init__(self, journal: Journal, clock: Clock, may_acknowledge: Callable[[], bool]) -> None:
        self.committed = -1  # the number of the last commit that was worked in
        self.commits = 0
        self.messages = self.size_bytes = 0  # made durable
        self._journal = journal
        self._clock = clock
        self._may_acknowledge = may_acknowledge
        self._requests: deque[_Request] = deque()
        self._singles: dict[OpenSegment, _Singles] = {}
        self._others: list[_Other] = []
        self._wake = asyncio.Event()
        self._added = 0  # how many were ever given, and how many of the first of them are done with
        self._processed = 0
        self._round = asyncio.Event()
        self._closed = False

    def add(self, parts: Sequence[Part]) -> asyncio.Future[None]:
        """A request's parts, in one commit. The future ends when they are durable, or raises."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._requests.append(_Request(self._count(), parts, sum(p.payload.size for p in parts), done))
        return done

    def add_single(
        self, segment: OpenSegment, part: int, message: Single, sequences: Sequences | None
    ) -> asyncio.Future[int]:
        """One message; the future gives its offset."""
        self._count()
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        waiting = self._singles.get(segment)
        if waiting is None:
            waiting = self._singles[segment] = _Singles()
        waiting.claims.append(Claim(len(waiting.messages), 1, done, part, sequences))
        waiting.messages.append(message)
        return done

    def add_frame(self, frame: Frame, durable: Callable[[int], None]) -> asyncio.Future[None]:
        """A frame that is not rows (acks). `durable` gets the number of its commit before that can be released."""
        self._count()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._others.append(_Other(frame, durable, done))
        return done

    async def quiet(self) -> None:
        """Wait until everything added before is durable or has failed."""
        goal = self._added
        while self._processed < goal:
            await self._round.wait()

    def close(self) -> None:
        """Take nothing more; what was added before is still committed."""
        self._closed = True

    async def run(self) -> None:
        """Commit for ever. When it ends (cancelled, fenced), whoever waits gets NotReady, and nothing more is taken.

        Raises Fenced, and what else ends a journal: alone, since all commits under way fail for the same reason.
        """
        try:
            await self._run()
        except ExceptionGroup as ended:
            raise ended.exceptions[0] from None
        finally:
            self._closed = True
            requests, others = self._take()
            self._fail([*requests, *self._requests], others, NotReady("the broker is stopping"))
            self._requests.clear()
            self._end_round(self._added)

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as flights:
            flying: deque[asyncio.Task[None]] = deque()
            while True:
                if not self._waiting():
                    self._wake.clear()
                    await self._wake.wait()
                await self._journal.pace()
                requests, others = self._take()
                done = self._requests[0].number - 1 if self._requests else self._added
                if self._journal.window == 1:
                    await self._commit(requests, others, None)
                    self._end_round(done)
                    continue
                while flying and (flying[0].done() or len(flying) >= self._journal.window):
                    await asyncio.wait([flying.popleft()])
                before = flying[-1] if flying else None
                flying.append(flights.create_task(self._fly(requests, others, done, before)))

    async def _fly(
        self, requests: list[_Request], others: list[_Other], done: int, before: asyncio.Task[None] | None
    ) -> None:
        await self._commit(requests, others, before)
        self._end_round(done)

    def _end_round(self, done: int) -> None:
        self._processed = done
        self._round.set()
        self._round = asyncio.Event()

    def _count(self) -> int:
        """One more to be committed: its number. Raises NotReady once closed."""
        if self._closed:
            raise NotReady("the broker is stopping")
        self._added += 1
        self._wake.set()
        return self._added

    def _waiting(self) -> bool:
        return bool(self._requests or self._singles or self._others)

    def _take(self) -> tuple[list[_Request], list[_Other]]:
        """As many requests as fit in a commit, all singles, all other frames."""
        singles, self._singles = self._singles, {}
        others, self._others = self._others, []
        requests = [
            request for segment, waiting in singles.items() if (request := _request_of_singles(segment, waiting))
        ]
        size = 0
        while self._requests and (size == 0 or size + self._requests[0].size_bytes <= COMMIT_BYTES):
            request = self._requests.popleft()
            size += request.size_bytes
            requests.append(request)
        return requests, others

    async def _commit(self, requests: list[_Request], others: list[_Other], before: asyncio.Task[None] | None) -> None:
        """Make them durable, and answer once `before` has been answered."""
        now_us = self._clock.now_us()
        frames = self._assign(requests, now_us) + [other.frame for other in others]
        reach("commit.append")
        try:
            number = await self._journal.append(frames)
            if before is not None:
                await asyncio.wait([before])
                before.result()  # one that failed takes all later ones with it
        except JournalUnavailable as error:
            for part in _parts(requests):
                part.segment.next = part.segment.end
            self._fail(requests, others, error)
            return
        except BaseException as error:
            self._fail(requests, others, error if isinstance(error, Exception) else NotReady("the broker is stopping"))
            raise
        reach("commit.durable")
        self.commits += 1
        self._work_in(requests, frames, number, now_us)
        for other in others:
            other.durable(number)
        self.committed = number
        self._answer(requests, others)

    def _assign(self, requests: list[_Request], now_us: int) -> list[Frame]:
        """Give out offsets, dense in each segment, and make the frames."""
        frames = []
        for part in _parts(requests):
            part.first = part.segment.next
            part.segment.next += part.rows.num_rows
            frames.append(_frame(part, now_us))
        return frames

    def _work_in(self, requests: list[_Request], frames: list[Frame], number: int, now_us: int) -> None:
        at_s = self._clock.monotonic_s()
        for part, frame in zip(_parts(requests), frames, strict=False):
            piece = Piece(part.first, part.rows, part.payload.size, number, at_s)
            part.segment.durable(piece, frame.ranges, now_us, part.max_timestamp_us)
            self.messages += part.rows.num_rows
            self.size_bytes += part.payload.size

    def _answer(self, requests: list[_Request], others: list[_Other]) -> None:
        if not self._may_acknowledge():
            self._fail(
                requests, others, NotReady("this broker's lease has run out; what became of the request is unknown")
            )
            return
        for request in requests:
            for claim, offset in _settled(request):
                resolve(claim.done, offset)
            resolve(request.done, None)
        for other in others:
            resolve(other.done, None)

    def _fail(self, requests: list[_Request], others: list[_Other], error: Exception) -> None:
        for request in requests:
            for claim, _ in _settled(request):
                fail(claim.done, error)
            fail(request.done, error)
        for other in others:
            fail(other.done, error)


def _parts(requests: list[_Request]) -> Iterator[Part]:
    return (part for request in requests for part in request.parts)


def _request_of_singles(segment: OpenSegment, waiting: _Singles) -> _Request | None:
    """The accumulated messages as one part; where they cannot be put together, whoever waits is told."""
    try:
        part = Part.of(segment, Rows.of(rows_of_singles(waiting.messages, segment.layout)))
    except Exception as error:
        for claim in waiting.claims:
            if claim.sequences:
                segment.settle(claim.part, claim.sequences)
            fail(claim.done, error)
        return None
    part.claims = waiting.claims
    return _Request(0, [part], part.payload.size, asyncio.get_running_loop().create_future())


def _frame(part: Part, now_us: int) -> Frame:
    ranges = tuple(
        ProducerRange(c.sequences.producer, c.sequences.low, c.sequences.high, part.first + c.row, c.count, c.part)
        for c in part.claims
        if c.sequences
    )
    return Frame(
        kind=FrameKind.ROWS,
        topic=part.segment.topic,
        segment=part.segment.id,
        first_offset=part.first,
        count=part.rows.num_rows,
        columns=mask_of(part.rows),
        schema_id=schema_id(part.segment.layout.values),
        ranges=ranges,
        append_time_us=now_us,
        payload=part.payload,
    )


def _settled(request: _Request) -> Iterator[tuple[Claim, int]]:
    """The claims of a request whose fate is known, each with its first offset."""
    for part in request.parts:
        for claim in part.claims:
            if claim.sequences:
                part.segment.settle(claim.part, claim.sequences)
            yield claim, part.first + claim.row

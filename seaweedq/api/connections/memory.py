"""The memory of requests and answers: bodies that are still coming, decoding, and answers that clients do not take.

A body that is still coming takes memory in steps as its bytes arrive, so that a client which announces much and sends
nothing holds nothing. A head that has come in part, and requests that wait for their turn on a connection, count as
bodies do. All of them together hold at most a quarter of the budget, and at least one largest body, so that any body
can come whole. A body whose next step does not fit makes the slowest of the slow ones go (408); if none is slow it goes
itself (503), with all that it holds: else bodies that came by half would hold the memory for ever. The last one there
is never refused, since nobody else would ever make room for it.

The bodies of one principal's requests hold at most half of what is free for all of them. Free is the budget less what
others hold, so that the first principal leaves as much as it takes, and each further one half of the rest. This holds
if more than one principal is there, or requests are anonymous as well; all of those together count as one. The first
body of a principal is never refused, nor are small ones. The decoded form counts as well, and the memory that its
decoder may need meanwhile: a few hundred bytes become 16 MiB.

Tiny messages become 20 times as large while they are decoded, and a compressed body any number of times. Decoders
reserve what they may make, together half of the budget, and for each caller its fair share: small publishes must find
room beside them. A request without room waits for those that decode now. While nobody decodes, a request that is its
caller's only one goes ahead: else a large body could never be decoded while tails fill the budget. Any other one
without a fair share is refused, since its caller's requests would wait for one another.

A server writes an answer to a buffer and forgets it; if its client does not read, the buffer stays. All such buffers
together hold a quarter of the budget. A connection that takes no byte of its answer for answer_timeout_s ends. Once the
quarter is used up, the slowest of the slow readers go first; if none is slow, a large answer is refused (503) before it
is written. The first large one is never refused, nor are small ones.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pyarrow as pa

from seaweedq.api.problems import Refusals
from seaweedq.broker.log import Budget
from seaweedq.clock import Clock
from seaweedq.concurrency.futures import mark_retrieved
from seaweedq.errors import Overloaded
from seaweedq.rows import bodies
from seaweedq.segments.ipc_bounds import may_expand

STEP_BYTES = 64 * 1024
WINDOW_S = 5
SLOW_BYTES_PER_S = 64 * 1024
LOOK_S = 0.2  # how long the slow ones of the last look count: a look reads every body
SMALL_BYTES = 64 * 1024  # of a body: smaller ones count for no share
T = TypeVar("T")
SAME_SIZE = 5  # copies of the body that a decoder may hold
MEMBER_BYTES = 200  # of a member of a JSON object, as Python holds it
LINE_BYTES = 180  # of a bare value
ARROW_SIZE = 20  # of short strings: five bytes in Arrow become columns and texts
WINDOW_BYTES = 4 * 1024 * 1024  # of a decompressor, beside its output
LARGE_BYTES = 64 * 1024  # smaller answers are never refused
THREAD_BYTES = 256 * 1024  # larger ones are made in a thread: 8 MiB of JSON take the loop 15 ms
TICK_S = 1.0


class IncompleteBody:
    """One body that is still coming. `dismiss` is called once, when it has to go; it holds nothing from then on. One
    that is streamed holds no more than `most_bytes`."""

    __slots__ = ("_arrived", "_began_s", "_most", "_total", "dismiss", "dismissed", "held", "step_bytes")

    def __init__(
        self, dismiss: Callable[[], None], most_bytes: int | None = None, step_bytes: int = STEP_BYTES
    ) -> None:
        self.dismiss = dismiss
        self.step_bytes = step_bytes
        self.dismissed = False
        self._total = 0
        self._most = most_bytes
        self.held = 0
        self._began_s: float | None = None
        self._arrived: deque[tuple[int, int]] = deque()  # bytes by whole second, of the last WINDOW_S

    def count(self, size: int, now_s: float) -> None:
        """Counts bytes that came now."""
        if self._began_s is None:
            self._began_s = now_s
        self._total += size
        second = int(now_s)
        if self._arrived and self._arrived[-1][0] == second:
            self._arrived[-1] = second, self._arrived[-1][1] + size
            return
        self._arrived.append((second, size))
        while self._arrived[0][0] < second - WINDOW_S:
            self._arrived.popleft()

    @property
    def need(self) -> int:
        """How many bytes it has to hold, for those that came so far."""
        return self._total if self._most is None else min(self._total, self._most)

    def brought(self, now_s: float) -> int:
        """Returns how many bytes came within the last WINDOW_S, and the fraction of a second before."""
        return sum(size for second, size in self._arrived if second >= int(now_s) - WINDOW_S)

    def is_slow(self, now_s: float) -> bool:
        """Whether it is old enough to be judged, and brought less than a slow one may."""
        old = self._began_s is not None and now_s - self._began_s >= WINDOW_S
        return old and self.brought(now_s) < SLOW_BYTES_PER_S * WINDOW_S


class IncompleteBodies:
    """All of them, with their share of the budget. `largest_bytes` is the largest body that may come."""

    def __init__(self, budget: Budget, largest_bytes: int, now: Callable[[], float]) -> None:
        self.limit_bytes = max(budget.limit_bytes // 4, largest_bytes)
        self._budget = budget
        self._now = now
        self._bodies: dict[IncompleteBody, None] = {}
        self._slow: list[IncompleteBody] = []  # by the last look, the slowest at the end
        self._looked_s = float("-inf")

    def __len__(self) -> int:
        return len(self._bodies)

    def add(self, body: IncompleteBody, size: int) -> None:
        """Counts `size` bytes of a body that have just come, and has it hold as many steps as they need. Raises
        Overloaded if there is no room; then it holds nothing."""
        now_s = self._now()
        body.count(size, now_s)
        need = body.need - body.held
        if need <= 0 or body.dismissed:
            return
        step = -(-need // body.step_bytes) * body.step_bytes
        if not (body.held and len(self._bodies) == 1):
            self._make_room(body, step, now_s)
        if not body.dismissed:
            self._bodies[body] = None
            body.held += step
            self._budget.incomplete += step

    def release(self, body: IncompleteBody) -> None:
        """Releases a body's memory: it has come whole, or was given up."""
        if body in self._bodies:
            del self._bodies[body]
            self._budget.incomplete -= body.held
            body.held = 0

    def _make_room(self, body: IncompleteBody, step: int, now_s: float) -> None:
        while self._budget.incomplete + step > self.limit_bytes and not body.dismissed:
            slow = self._slowest(now_s)
            if slow is None:
                held, limit = self._budget.incomplete, self._budget.limit_bytes
                self.release(body)
                raise Overloaded(
                    f"all requests that are still arriving use {held} bytes of memory together; the limit is "
                    f"{self.limit_bytes} bytes, a part of memory_budget_bytes={limit}; try again",
                    budget_bytes=limit,
                )
            self.release(slow)
            slow.dismissed = True
            slow.dismiss()
        try:
            self._budget.check(step)
        except Overloaded:
            self.release(body)
            raise

    def _slowest(self, now_s: float) -> IncompleteBody | None:
        """Returns the slowest body of the slow ones, None if there is none."""
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            slow = [(body.brought(now_s), n, body) for n, body in enumerate(self._bodies) if body.is_slow(now_s)]
            self._slow = [body for _, _, body in sorted(slow, reverse=True)]
        while self._slow:
            body = self._slow.pop()
            if body in self._bodies and body.is_slow(now_s):
                return body
        return None


class FairMemory:
    """The bytes that principals hold, by their keys. `parties` returns how many principals there are."""

    def __init__(self, budget: Budget, parties: Callable[[], int] = lambda: 1) -> None:
        self._budget = budget
        self._parties = parties
        self._held: dict[str, int] = {}

    def held(self, key: str | None) -> int:
        """Returns how many bytes a principal's requests hold."""
        return self._held.get(key, 0) if key is not None else 0

    def has_room(self, key: str | None, size: int) -> bool:
        """Returns whether a principal's requests may hold so many bytes more. None is a request without a share."""
        held = self.held(key)
        if not held or self._parties() < 2:
            return True
        return 2 * (held + size) <= held + self._budget.limit_bytes - self._budget.held

    def claim(self, key: str, size: int) -> None:
        """Counts bytes of a body, before the budget does. Raises Overloaded."""
        if not self.has_room(key, size):
            raise self.refusal(key, size)
        self.add(key, size)

    def refusal(self, key: str | None, size: int) -> Overloaded:
        """Returns the error for bytes without room."""
        return Overloaded(
            f"requests of this principal use {self.held(key)} bytes of memory; with {size} more, "
            "they would use more than half of the free part of "
            f"memory_budget_bytes={self._budget.limit_bytes}; try again",
            budget_bytes=self._budget.limit_bytes,
        )

    def add(self, key: str | None, size: int) -> None:
        """Counts bytes for which there is room."""
        if key is not None and size:
            self._held[key] = self._held.get(key, 0) + size

    def release(self, key: str | None, size: int) -> None:
        """Forgets bytes that are held no more."""
        if key is None or not size:
            return
        left = self._held[key] - size
        if left:
            self._held[key] = left
        else:
            del self._held[key]

    def __len__(self) -> int:
        return len(self._held)


def needed(media: str, content: bytes, bare: bool, limit_bytes: int) -> int:
    """Returns how many bytes the decoding of a body may need: an estimate, measured for the worst bodies of
    clients. `limit_bytes` bounds what Arrow data may be, decompressed."""
    if media == bodies.ARROW:
        if may_expand(pa.py_buffer(content)):
            return SAME_SIZE * limit_bytes
        return ARROW_SIZE * len(content)
    if media not in (bodies.JSON, bodies.NDJSON):
        return SAME_SIZE * len(content)
    small = LINE_BYTES * content.count(b"\n") if bare else MEMBER_BYTES * content.count(b":")
    return SAME_SIZE * len(content) + small


def needed_to_decompress(limit_bytes: int) -> int:
    """Returns how many bytes the decoding of a compressed body may need that becomes at most `limit_bytes`: a window of
    zstd, which the body itself chooses, holds all of them once more."""
    return 2 * limit_bytes + WINDOW_BYTES


class DecodingMemory:
    """The memory that decoders hold of the budget, and of their callers' shares."""

    def __init__(self, budget: Budget, fair: FairMemory) -> None:
        self._budget = budget
        self._fair = fair
        self._changed = asyncio.Event()

    async def run(self, caller: str | None, own: int, size: int, work: Callable[..., T], *arguments: object) -> T:
        """Calls `work` in a thread as soon as there is room for `size` bytes, and returns its result. The request holds
        `own` bytes already; without a `caller` it has no share. Raises Overloaded.

        They are held until the thread has ended, also if nobody waits any more, since a thread cannot be cancelled.
        Clients that go while their bodies are decoded, and come again, would get memory without bound.
        """
        while not self._may_begin(caller, own, size):
            if not self._budget.decoding:
                raise self._fair.refusal(caller, size)
            self._changed.clear()
            await self._changed.wait()
        return await self._run(caller, size, work, *arguments)

    async def run_at_once(self, size: int, work: Callable[..., T], *arguments: object) -> T:
        """As `run`, without waiting: for a request that nobody can refuse any more."""
        return await self._run(None, size, work, *arguments)

    async def _run(self, caller: str | None, size: int, work: Callable[..., T], *arguments: object) -> T:
        call = asyncio.get_running_loop().run_in_executor(None, work, *arguments)
        self._budget.decoding += size
        self._fair.add(caller, size)

        def release(_: Any = None) -> None:
            """Releases the memory, once the thread has ended and its error is free."""
            self._budget.decoding -= size
            self._fair.release(caller, size)
            self._changed.set()

        try:
            return await asyncio.shield(call)
        finally:
            call.add_done_callback(mark_retrieved)
            if call.done():
                release()  # now: the request goes on without a pause, and counts its own memory
            else:
                call.add_done_callback(release)
            del call  # an error refers to this frame, and the call to the error

    def _may_begin(self, caller: str | None, own: int, size: int) -> bool:
        has_share = self._fair.has_room(caller, size)
        if self._budget.decoding:
            return has_share and self._fits(size)
        return has_share or self._fair.held(caller) <= own

    def _fits(self, size: int) -> bool:
        return self._budget.decoding + size <= self._budget.limit_bytes // 2 and self._budget.fits(size)


class UnreadBuffer:
    """The answers that one connection has not taken yet. `left` returns how many bytes they are, `cut` ends the
    connection."""

    __slots__ = ("cut", "held", "last_left", "left", "pace", "taken_s")
    pace: IncompleteBody

    def __init__(self, left: Callable[[], int], cut: Callable[[], None]) -> None:
        self.left = left
        self.cut = cut
        self.held = 0
        self.last_left = 0
        self.taken_s = 0.0


class UnreadAnswers:
    """All of them. Their memory counts from when a connection's buffer is full until it is empty again."""

    def __init__(self, budget: Budget, clock: Clock, timeout_s: float, refusals: Refusals) -> None:
        self.limit_bytes = budget.limit_bytes // 4
        self._budget = budget
        self._clock = clock
        self._timeout_s = timeout_s
        self._refusals = refusals
        self._pending: dict[UnreadBuffer, None] = {}
        self._making = asyncio.Lock()
        self._to_make = 0  # bytes of rows that wait for their turn
        self._ticking = False

    def __len__(self) -> int:
        return len(self._pending)

    def begin(self, unread: UnreadBuffer) -> None:
        """Counts the unread bytes of a connection."""
        now_s = self._clock.monotonic_s()
        unread.held = unread.last_left = unread.left()
        unread.taken_s = now_s
        unread.pace = IncompleteBody(unread.cut)
        unread.pace.count(0, now_s)
        self._pending[unread] = None
        self._budget.answers += unread.held
        if not self._ticking:
            self._ticking = True
            asyncio.get_running_loop().call_later(TICK_S, self._again)

    def end(self, unread: UnreadBuffer) -> None:
        """Releases it: the connection has taken nearly all, or is gone."""
        if unread in self._pending:
            del self._pending[unread]
            self._budget.answers -= unread.held

    def renew(self, unread: UnreadBuffer) -> None:
        """Gives a connection time anew, to take the reason why its answer ends."""
        unread.taken_s = self._clock.monotonic_s()

    def admit(self, size: int) -> None:
        """Makes room for an answer that is about to be written. Raises Overloaded."""
        if not self.has_room(size):
            raise self.refusal()

    async def made(self, size: int, maker: Callable[[], Awaitable[Callable[[], T]]]) -> T | None:
        """Returns an answer of about `size` bytes, made by the function that `maker` returns; None if there is no room,
        without asking `maker`: it may sign a link for each message. Large ones are made in a thread, so that other
        requests go on, and one at a time, so that each finds the one before it counted.

        Those that wait for their turn hold their rows. Beyond `limit_bytes` of these an answer is made at once: that
        holds the loop up, and no further rows are read meanwhile."""
        if size < THREAD_BYTES or self._to_make + size > self.limit_bytes:
            return (await maker())() if self.has_room(size) else None
        self._to_make += size
        try:
            async with self._making:
                return await asyncio.to_thread(await maker()) if self.has_room(size) else None
        finally:
            self._to_make -= size

    def has_room(self, size: int) -> bool:
        """Returns whether there is room for an answer, if need be after the slowest of the slow readers were ended."""
        if size < LARGE_BYTES or self._fits(size):
            return True
        now_s = self._clock.monotonic_s()
        slow = [one for one in self._pending if one.pace.is_slow(now_s)]
        for one in sorted(slow, key=lambda one: one.pace.brought(now_s)):
            if not self._fits(size):
                self._cut(one, "slow_reader", "the client reads slowly, and other requests need the memory")
        return self._fits(size)

    def refusal(self) -> Overloaded:
        """Returns the error for an answer without room, and counts it."""
        detail = (
            f"answers that clients have not read yet use {self._budget.answers} bytes of memory, "
            f"but may use at most {self.limit_bytes} of "
            f"memory_budget_bytes={self._budget.limit_bytes}; try again"
        )
        self._refusals.note("answers", detail)
        return Overloaded(detail, budget_bytes=self._budget.limit_bytes)

    def _fits(self, size: int) -> bool:
        if self._budget.answers + size <= self.limit_bytes:
            return True
        return self._budget.answers == sum(one.held for one in self._pending if one.held < LARGE_BYTES)

    @contextmanager
    def streaming(self, size: int) -> Iterator[None]:
        """Holds the bytes on their way to a client while an answer is streamed. Raises Overloaded."""
        self.admit(size)
        self._budget.answers += size
        try:
            yield
        finally:
            self._budget.answers -= size

    def tick(self) -> None:
        """Counts the bytes taken since the last tick, and ends connections that took none for too long."""
        now_s = self._clock.monotonic_s()
        for one in list(self._pending):
            left = one.left()
            if left < one.last_left:
                one.taken_s = now_s
                one.pace.count(one.last_left - left, now_s)
            elif now_s - one.taken_s >= self._timeout_s:
                detail = f"the client read no byte of its answer for answer_timeout_s={self._timeout_s:g}"
                self._cut(one, "unread_answer", detail)
            one.last_left = left

    def _cut(self, unread: UnreadBuffer, reason: str, detail: str) -> None:
        if unread not in self._pending:  # its connection had other answers, and one of these has ended it
            return
        self._refusals.note(reason, detail)
        self.end(unread)
        unread.cut()

    def _again(self) -> None:
        self.tick()
        self._ticking = bool(self._pending)
        if self._ticking:
            asyncio.get_running_loop().call_later(TICK_S, self._again)

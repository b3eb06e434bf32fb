"""Counts answers that clients have not taken yet, and ends those that nobody takes.

A server writes an answer to a buffer and forgets it; where its client does not read, the buffer stays. All such buffers
together hold a share of the budget. A connection that takes no byte of its answer for answer_timeout_s ends. Once the
share is used up, the slowest of the slow readers go first; where none is slow, a large answer is refused (503) before
it is written. The first one is never refused.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from seaweedq.api.bodies.incomplete_bodies import Incomplete
from seaweedq.api.refusals import Refusals
from seaweedq.broker.log import Budget
from seaweedq.clock import Clock
from seaweedq.errors import Overloaded

R = TypeVar("R")

LARGE_BYTES = 64 * 1024  # smaller answers are never refused
THREAD_BYTES = 256 * 1024  # larger ones are made in a thread: 8 MiB of JSON take the loop 15 ms
TICK_S = 1.0


class Unread:
    """The answers that one connection has not taken yet. `left` tells how many bytes they are, `cut` ends the
    connection."""

    __slots__ = ("cut", "held", "last_left", "left", "pace", "taken_s")
    pace: Incomplete

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
        self._pending: dict[Unread, None] = {}
        self._making = asyncio.Lock()
        self._to_make = 0  # bytes of rows that wait for their turn
        self._ticking = False

    def __len__(self) -> int:
        return len(self._pending)

    def begin(self, unread: Unread) -> None:
        """Counts what a connection has not taken."""
        now_s = self._clock.monotonic_s()
        unread.held = unread.last_left = unread.left()
        unread.taken_s = now_s
        unread.pace = Incomplete(unread.cut)
        unread.pace.note(0, now_s)
        self._pending[unread] = None
        self._budget.answers += unread.held
        if not self._ticking:
            self._ticking = True
            asyncio.get_running_loop().call_later(TICK_S, self._again)

    def end(self, unread: Unread) -> None:
        """Releases it: the connection has taken nearly all, or is gone."""
        if unread in self._pending:
            del self._pending[unread]
            self._budget.answers -= unread.held

    def admit(self, size: int) -> None:
        """Makes room for an answer that is about to be written. Raises Overloaded."""
        if not self.has_room(size):
            raise self.refusal()

    async def made(self, size: int, maker: Callable[[], Awaitable[Callable[[], R]]]) -> R | None:
        """Returns an answer of about `size` bytes that `maker` returns what makes; None where there is no room, for
        which it is not asked: it may sign a link for each message. Large ones are made in a thread, so that other
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
                self._cut(one, "slow_reader", "a client that reads slowly, while others need the memory")
        return self._fits(size)

    def refusal(self) -> Overloaded:
        """Returns the error for an answer without room, and counts it."""
        detail = (
            f"answers that clients have not taken yet hold {self._budget.answers} bytes and may hold "
            f"{self.limit_bytes} of memory_budget_bytes={self._budget.limit_bytes}; try again"
        )
        self._refusals.note("answers", detail)
        return Overloaded(detail, budget_bytes=self._budget.limit_bytes)

    def _fits(self, size: int) -> bool:
        return not self._budget.answers or self._budget.answers + size <= self.limit_bytes

    @contextmanager
    def streaming(self, size: int) -> Iterator[None]:
        """Holds what is on its way to a client while an answer is streamed. Raises Overloaded."""
        self.admit(size)
        self._budget.answers += size
        try:
            yield
        finally:
            self._budget.answers -= size

    def tick(self) -> None:
        """Looks how much was taken since the last tick, and ends those of which nothing was for too long."""
        now_s = self._clock.monotonic_s()
        for one in list(self._pending):
            left = one.left()
            if left < one.last_left:
                one.taken_s = now_s
                one.pace.note(one.last_left - left, now_s)
            elif now_s - one.taken_s >= self._timeout_s:
                detail = f"nothing of an answer was taken for answer_timeout_s={self._timeout_s:g}"
                self._cut(one, "unread_answer", detail)
            one.last_left = left

    def _cut(self, unread: Unread, reason: str, detail: str) -> None:
        self._refusals.note(reason, detail)
        self.end(unread)
        unread.cut()

    def _again(self) -> None:
        self.tick()
        self._ticking = bool(self._pending)
        if self._ticking:
            asyncio.get_running_loop().call_later(TICK_S, self._again)

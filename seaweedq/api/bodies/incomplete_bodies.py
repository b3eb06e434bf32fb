"""Shares memory among the bodies that are still coming. Pure, but for the clock that is passed in.

A body takes memory in steps as its bytes arrive, so that a client which announces much and sends nothing holds nothing.
A head that has come in part, and requests that wait for their turn on a connection, count as bodies do. All of them
together hold at most a quarter of the budget, and at least one largest body, so that any body can come whole. Whoever
asks for a step that does not fit makes the slowest of the slow ones go (408); where none is slow it goes itself (503),
with all that it holds: else bodies that came by half would hold the memory for ever. The last one there is never
refused, since nobody else would ever make room for it.
"""

from collections import deque
from collections.abc import Callable
from typing import NoReturn

from seaweedq.broker.log import Budget
from seaweedq.errors import Overloaded

STEP_BYTES = 64 * 1024
WINDOW_S = 5
SLOW_BYTES_PER_S = 64 * 1024
LOOK_S = 0.2  # how long the slow ones of the last look count: a look reads every body


class Incomplete:
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

    def note(self, size: int, now_s: float) -> None:
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
        self._bodies: dict[Incomplete, None] = {}
        self._slow: list[Incomplete] = []  # by the last look, the slowest at the end
        self._looked_s = float("-inf")

    def __len__(self) -> int:
        return len(self._bodies)

    def take(self, body: Incomplete, size: int) -> None:
        """Counts `size` bytes of a body that have just come, and has it hold as many steps as they need. Raises
        Overloaded where there is no room; then it holds nothing."""
        now_s = self._now()
        body.note(size, now_s)
        need = body.need - body.held
        if need > 0 and not body.dismissed:
            self._step(body, -(-need // body.step_bytes) * body.step_bytes, now_s)

    def leave(self, body: Incomplete) -> None:
        """Releases what a body holds: it has come whole, or was given up."""
        if body in self._bodies:
            del self._bodies[body]
            self._budget.incomplete -= body.held
            body.held = 0

    def _step(self, body: Incomplete, step: int, now_s: float) -> None:
        if not (body.held and len(self._bodies) == 1):
            self._make_room(body, step, now_s)
        if not body.dismissed:
            self._bodies[body] = None
            body.held += step
            self._budget.incomplete += step

    def _make_room(self, body: Incomplete, step: int, now_s: float) -> None:
        while self._budget.incomplete + step > self.limit_bytes and not body.dismissed:
            slow = self._slowest(now_s)
            if slow is None:
                self._refuse(body)
            else:
                self.leave(slow)
                slow.dismissed = True
                slow.dismiss()
        try:
            self._budget.check(step)
        except Overloaded:
            self.leave(body)
            raise

    def _refuse(self, body: Incomplete) -> NoReturn:
        held = self._budget.incomplete
        self.leave(body)
        raise Overloaded(
            f"requests that are still coming hold {held} bytes and may hold {self.limit_bytes} of "
            f"memory_budget_bytes={self._budget.limit_bytes}; try again",
            budget_bytes=self._budget.limit_bytes,
        )

    def _slowest(self, now_s: float) -> Incomplete | None:
        """Returns the slowest body of the slow ones, None where there is none."""
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            slow = [(body.brought(now_s), n, body) for n, body in enumerate(self._bodies) if body.is_slow(now_s)]
            self._slow = [body for _, _, body in sorted(slow, reverse=True)]
        while self._slow:
            body = self._slow.pop()
            if body in self._bodies and body.is_slow(now_s):
                return body
        return None

"""Timeouts of many futures by one timer: a timer for each costs more than the wait for most of them."""

import asyncio
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Any

from seaweedq.concurrency.deadline import Deadline
from seaweedq.concurrency.futures import fail


class Timeouts:
    """Fails futures at their deadlines, each with what `error` makes of its deadline.

    Futures end nearly in the order in which they come. So those that have ended are dropped from the front as others
    come, and what is held is little more than what still waits.
    """

    def __init__(self, error: Callable[[Deadline], Exception]) -> None:
        self._error = error
        self._waiting: deque[tuple[asyncio.Future[Any], Deadline]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._next_s = inf  # the end of the deadline for which the timer is set

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, future: asyncio.Future[Any], deadline: Deadline) -> None:
        """Fails a future at a deadline, unless it has ended by then."""
        waiting = self._waiting
        while waiting and waiting[0][0].done():
            waiting.popleft()
        waiting.append((future, deadline))
        if deadline.end_s < self._next_s:
            self._set_timer(deadline)

    def _set_timer(self, deadline: Deadline) -> None:
        if self._timer:
            self._timer.cancel()
        self._next_s = deadline.end_s
        self._timer = asyncio.get_running_loop().call_later(deadline.left_s, self._look)

    def _look(self) -> None:
        """Fails those whose time is over, and sets the timer for the next one of the others."""
        self._timer, self._next_s = None, inf
        for future, deadline in self._waiting:
            if deadline.is_over:
                fail(future, self._error(deadline))
        self._waiting = deque(one for one in self._waiting if not one[0].done())
        if self._waiting:
            self._set_timer(min((deadline for _, deadline in self._waiting), key=lambda one: one.end_s))

"""Trying again until a deadline, and at once when something has changed.

A deadline measures with the `Clock` that it is given; pauses run on the event loop, so that both follow simulated time
where the loop and the clock do.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from math import inf
from typing import Protocol, Self, TypeVar

from seaweedq.clock import Clock
from seaweedq.concurrency.begun import Begun

T = TypeVar("T")


class Wake(Protocol):
    """Something that may change: `count` tells how often it has, and `wait` returns when it does."""

    @property
    def count(self) -> int: ...

    async def wait(self, timeout_s: float | None) -> None: ...


def _never() -> bool:
    return False


class Deadline:
    """The end of the time that something may take: `time_s` seconds from now, or earlier, once `cut_off` says so."""

    def __init__(self, clock: Clock, time_s: float, cut_off: Callable[[], bool] = _never) -> None:
        self.time_s = time_s
        self._clock = clock
        self.end_s = clock.monotonic_s() + time_s  # of that clock
        self._cut_off = cut_off

    @property
    def left_s(self) -> float:
        """The seconds that are left, never below 0."""
        return 0.0 if self._cut_off() else max(0.0, self.end_s - self._clock.monotonic_s())

    @property
    def is_over(self) -> bool:
        """Whether no time is left."""
        return self.left_s <= 0

    def shorten(self, time_s: float) -> None:
        """Brings the end forward to at most `time_s` seconds from now."""
        self.end_s = min(self.end_s, self._clock.monotonic_s() + time_s)

    async def bound(self, work: Awaitable[T]) -> T:
        """Returns what `work` gives, which is cancelled at the deadline; a coroutine that need not wait costs no timer.
        Raises TimeoutError."""
        if isinstance(work, Coroutine):
            begun: Begun[T] = Begun(work)
            if begun.is_over:
                return begun.result
            work = begun
        async with asyncio.timeout(self.left_s):
            return await work

    def attempts(self, wake: Wake | None = None, pause_s: float = inf) -> "Attempts":
        """Attempts until this deadline: `async for attempt in deadline.attempts(...)`."""
        return Attempts(self, wake, pause_s)

    async def retry(
        self,
        step: Callable[[], Awaitable[T]],
        on: type[Exception] | tuple[type[Exception], ...],
        wake: Wake | None = None,
        pause_s: float = inf,
    ) -> T:
        """Returns what `step` does, tried again after each error of the types `on`. The error that the last attempt
        raises is raised; every other error at once."""
        attempts = self.attempts(wake, pause_s)
        while True:
            await anext(attempts)
            try:
                return await step()
            except on:
                if attempts.is_last():
                    raise


class Attempts:
    """An async iterator that yields itself for every attempt, at least once, and ends when the deadline is over.

    Between two attempts it waits `pause_s` seconds, or until `wake` says that something has changed; a change during
    an attempt counts, then the next one follows at once. After a wait there is always one more attempt, so what came
    in the last moment is seen. `pause_s` may be set anew in the loop. What follows the loop treats the timeout.
    """

    def __init__(self, deadline: Deadline, wake: Wake | None, pause_s: float) -> None:
        self.deadline = deadline
        self.pause_s = pause_s
        self.woken = True  # the attempt follows a change; False: it follows a pause in which nothing has changed
        self._wake = wake
        self._begun = False
        self._last: bool | None = None
        self._seen = 0

    @property
    def has_changed(self) -> bool:
        """Whether `wake` has come since this attempt began."""
        return self._wake is not None and self._wake.count != self._seen

    def is_last(self) -> bool:
        """Whether no attempt follows this one. Decided when it is asked first, or else when the attempt ends."""
        if self._last is None:
            self._last = self.deadline.is_over
        return self._last

    def mark(self) -> None:
        """Lets changes before this moment not count, as if the attempt began here."""
        self._seen = self._wake.count if self._wake else 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Self:
        if self._begun:
            if self.is_last():
                raise StopAsyncIteration
            await self._pause()
        self._begun, self._last = True, None
        self.mark()
        return self

    async def _pause(self) -> None:
        if not self.has_changed:
            pause_s = min(self.pause_s, self.deadline.left_s)
            timeout_s = None if pause_s == inf else pause_s
            if self._wake:
                await self._wake.wait(timeout_s)
            else:
                await asyncio.sleep(pause_s)
        self.woken = self.has_changed

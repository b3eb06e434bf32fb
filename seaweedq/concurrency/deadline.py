"""Deadlines: work that is awaited within one or tried again until one, and many futures that one timer ends; and a
pause that an event cuts short.

A deadline measures with the `Clock` that it is given; pauses run on the event loop, so that both follow simulated time
if the loop and the clock do.

A coroutine is begun within the task that runs, so that one that need not wait costs no timer: `asyncio.timeout` takes
5.5 µs, which a publish would pay for its body, its rows and its segment; `EagerCoroutine` takes 0.8. Tasks of Python
3.12 can be begun in this way; those of 3.11 cannot.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from math import inf
from typing import Any, Generic, Protocol, Self, TypeVar

from seaweedq.clock import Clock
from seaweedq.concurrency.futures import fail

T = TypeVar("T")


class EagerCoroutine(Generic[T]):
    """A coroutine that has run to its first wait, or to its end; its error is raised here.

    One that `is_over` has a `result`. Any other must be awaited at once, by the same task, which gives its result.
    """

    __slots__ = ("_waits_for", "_work", "is_over", "result")
    result: T

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self.is_over = False
        try:  # as `_step` does: a call less for each body
            self._waits_for = work.send(None)
        except StopIteration as end:
            self.is_over, self.result = True, end.value

    def __await__(self) -> Generator[Any, Any, T]:
        while not self.is_over:
            try:
                sent = yield self._waits_for
            except BaseException as error:
                self._step(error)
            else:
                assert sent is None  # futures give their results to the coroutine themselves
                self._step(None)
        return self.result

    def _step(self, error: BaseException | None) -> None:
        try:
            self._waits_for = self._work.send(None) if error is None else self._work.throw(error)
        except StopIteration as end:
            self.is_over, self.result = True, end.value
        except BaseException:
            self._waits_for = error = None  # which refer to an error that refers to this frame
            raise


class Wake(Protocol):
    """Something that may change: `count` tells how often it has, and `wait` returns when it does."""

    @property
    def count(self) -> int: ...

    async def wait(self, timeout_s: float | None) -> None: ...


class Deadline:
    """The end of the time that something may take: `time_s` seconds from now, or earlier, once `cut_off` says so."""

    def __init__(self, clock: Clock, time_s: float, cut_off: Callable[[], bool] | None = None) -> None:
        self.time_s = time_s
        self._clock = clock
        self.end_s = clock.monotonic_s() + time_s  # of that clock
        self._cut_off = cut_off

    @property
    def left_s(self) -> float:
        """The seconds that are left, never below 0."""
        is_cut_off = self._cut_off is not None and self._cut_off()
        return 0.0 if is_cut_off else max(0.0, self.end_s - self._clock.monotonic_s())

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
            eager: EagerCoroutine[T] = EagerCoroutine(work)
            if eager.is_over:
                return eager.result
            work = eager
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
        if self._wake:
            self._seen = self._wake.count
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


Sleep = Callable[[float], Awaitable[None]]


async def sleep_unless(told: asyncio.Event, sleep: Sleep, seconds: float) -> bool:
    """Sleeps, until the event is set at the latest. Returns whether it was. Raises what `sleep` raises."""
    if told.is_set():
        return True
    slept, heard = asyncio.ensure_future(sleep(seconds)), asyncio.ensure_future(told.wait())
    try:
        await asyncio.wait({slept, heard}, return_when=asyncio.FIRST_COMPLETED)
        if slept.done():
            await slept
        return told.is_set()
    finally:
        slept.cancel()
        heard.cancel()

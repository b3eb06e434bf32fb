"""Futures that may end twice or that nobody waits for, signals that wake all, bounded gathering of results."""

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def resolve(future: asyncio.Future[T], value: T) -> None:
    """Sets the result, unless the future has ended already."""
    if not future.done():
        future.set_result(value)


def fail(future: asyncio.Future[T], error: BaseException) -> None:
    """Sets the error, unless the future has ended already. A waiting task gets it; asyncio never logs it as unseen."""
    if not future.done():
        future.set_exception(error)
        future.exception()


def mark_retrieved(future: asyncio.Future[T]) -> None:
    """Marks the error of an ended future or task as seen, so that asyncio does not log it if nobody waits.

    Is a done callback: `task.add_done_callback(mark_retrieved)`.
    """
    if not future.cancelled():
        future.exception()


def empty_frames(error: BaseException) -> None:
    """Drops the variables in the frames of an error, and of those behind it; its traceback is printed as before.

    An error that refers to its frames, and is referred to by one of them, stays until a full collection, with all of
    their variables: 500 bytes of a request held 25 MiB. All frames have to be over: one that is suspended would end.
    """
    seen, behind = set[int](), [error]
    while behind:
        one = behind.pop()
        if id(one) not in seen:  # two errors may be each other's cause
            seen.add(id(one))
            traceback.clear_frames(one.__traceback__)
            behind += filter(None, (one.__cause__, one.__context__))


class Signal:
    """Wakes everybody who waits. `count` tells how often it did, for waiters that take their time."""

    def __init__(self) -> None:
        self.count = 0
        self._waiters: dict[asyncio.Future[None], None] = {}  # in order: a set has that of addresses
        self._listeners: list[Callable[[], None]] = []

    def wake(self) -> None:
        """Lets everybody who waits look again."""
        self.count += 1
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        for listener in self._listeners:
            listener()

    def listen(self, listener: Callable[[], None]) -> None:
        """Calls `listener`, which does little and raises nothing, at each wake from now on."""
        self._listeners = [*self._listeners, listener]

    def unlisten(self, listener: Callable[[], None]) -> None:
        """Calls it no more."""
        self._listeners = [one for one in self._listeners if one != listener]

    async def wait(self, timeout_s: float | None) -> None:
        """Returns after the next wake, or after `timeout_s` seconds (None: no bound). A wake before the call does not
        count, so a caller looks first, and then waits without an await between (`Attempts` does)."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except TimeoutError:
            pass
        finally:
            self._waiters.pop(waiter, None)


A = TypeVar("A")


async def gather_bounded(limit: int, work: Callable[[A], Awaitable[T]], items: Iterable[A]) -> list[T]:
    """Returns the result of `work` for each item, in their order; at most `limit` run at once.

    The first error ends it all: nothing more begins, running work is cancelled and awaited, and the error is raised as
    it is, not in a group. A cancellation does the same, whatever the work makes of its own. So no task is left running.

    A task group would do, but that of Python 3.11 counts the error of a child as a cancellation of its caller, which
    nobody takes back: a timeout around it would then end with CancelledError. If the caller is cancelled and a child
    answers that with an error, it loses the cancellation.
    """
    given = list(items)
    results: dict[int, T] = {}
    waiting = iter(enumerate(given))

    async def run() -> None:
        for at, item in waiting:
            results[at] = await work(item)

    tasks = [asyncio.create_task(run()) for _ in range(min(limit, len(given)))]
    for task in tasks:
        task.add_done_callback(mark_retrieved)
    try:
        if tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        left = [task for task in tasks if task.cancel()]
        if left:
            await asyncio.wait(left)
    for task in sorted(tasks, key=left.__contains__):  # the errors that ended it, before those of cancelled ones
        task.result()
    return [results[at] for at in range(len(given))]

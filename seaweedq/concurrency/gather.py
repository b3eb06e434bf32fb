"""Working on many things at once, but only on so many."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from seaweedq.concurrency.futures import mark_retrieved

A = TypeVar("A")
T = TypeVar("T")


async def gather_bounded(limit: int, work: Callable[[A], Awaitable[T]], items: Iterable[A]) -> list[T]:
    """Returns what `work` gives for each item, in their order; at most `limit` run at once.

    The first error ends it all: nothing more begins, what runs is cancelled and awaited, and the error is raised as it
    is, not in a group. A cancellation does the same, whatever the work makes of its own. So no task is left running.

    A task group would do, but that of Python 3.11 counts the error of a child as a cancellation of its caller, which
    nobody takes back: a timeout around it would then end with CancelledError. Where the caller is cancelled and a child
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
    for task in sorted(tasks, key=left.__contains__):  # the errors that ended it, before those of what was cancelled
        task.result()
    return [results[at] for at in range(len(given))]

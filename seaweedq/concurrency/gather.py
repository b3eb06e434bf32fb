"""Working on many things at once, but only on so many."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

A = TypeVar("A")
T = TypeVar("T")


async def gather_bounded(limit: int, work: Callable[[A], Awaitable[T]], items: Iterable[A]) -> list[T]:
    """Returns what `work` gives for each item, in their order; at most `limit` run at once.

    The first error ends it all: nothing more begins, what runs is cancelled and awaited, and the error is raised as it
    is, not in a group. A cancellation does the same. So no task is left running.
    """
    given = list(items)
    results: dict[int, T] = {}
    waiting = iter(enumerate(given))

    async def run() -> None:
        for at, item in waiting:
            results[at] = await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(limit, len(given))):
                group.create_task(run())
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [results[at] for at in range(len(given))]

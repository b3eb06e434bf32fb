"""Futures that may end twice, and futures that nobody may wait for."""

import asyncio
from typing import TypeVar

T = TypeVar("T")


def resolve(future: asyncio.Future[T], value: T) -> None:
    """Sets the result, unless the future has ended already."""
    if not future.done():
        future.set_result(value)


def fail(future: asyncio.Future[T], error: BaseException) -> None:
    """Sets the error, unless the future has ended already. Whoever waits gets it; asyncio never logs it as unseen."""
    if not future.done():
        future.set_exception(error)
        future.exception()


def mark_retrieved(future: asyncio.Future[T]) -> None:
    """Marks the error of an ended future or task as seen, so that asyncio does not log it where nobody waits.

    Is a done callback: `task.add_done_callback(mark_retrieved)`.
    """
    if not future.cancelled():
        future.exception()

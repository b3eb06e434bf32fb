"""Futures that may end twice, futures that nobody may wait for, and errors that hold no memory."""

import asyncio
import traceback
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


def empty_frames(error: BaseException) -> None:
    """Drops what the frames of an error, and of those behind it, hold; its traceback is printed as before.

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

"""Ending futures that may have ended, or that nobody waits for."""

import asyncio
import gc
import traceback
from typing import Any

import pytest

from seaweedq.concurrency.futures import empty_frames, fail, mark_retrieved, resolve


async def test_the_first_end_counts() -> None:
    loop = asyncio.get_running_loop()
    given: asyncio.Future[int] = loop.create_future()
    resolve(given, 1)
    resolve(given, 2)
    fail(given, ValueError("late"))
    assert await given == 1
    refused: asyncio.Future[int] = loop.create_future()
    fail(refused, ValueError("first"))
    fail(refused, KeyError("second"))
    resolve(refused, 1)
    with pytest.raises(ValueError, match="first"):
        await refused
    gone: asyncio.Future[int] = loop.create_future()
    gone.cancel()
    resolve(gone, 1)
    fail(gone, ValueError())
    assert gone.cancelled()


async def test_an_error_that_nobody_waits_for_is_not_logged() -> None:
    loop = asyncio.get_running_loop()
    logged: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: logged.append(context))

    async def broken() -> None:
        raise ValueError

    forsaken: asyncio.Future[int] = loop.create_future()
    fail(forsaken, ValueError())
    task = asyncio.create_task(broken())
    task.add_done_callback(mark_retrieved)
    cancelled = asyncio.create_task(asyncio.sleep(60))
    cancelled.add_done_callback(mark_retrieved)
    cancelled.cancel()
    await asyncio.sleep(0.01)
    del forsaken, task, cancelled
    gc.collect()
    assert not logged


def test_errors_that_are_each_others_cause_are_emptied() -> None:
    def broken(error: Exception, cause: Exception) -> None:
        content = bytearray()
        if not content:
            raise error from cause

    first, second = ValueError(), KeyError()
    for error, cause in ((first, second), (second, first)):
        with pytest.raises(type(error)):
            broken(error, cause)
    empty_frames(first)
    for error in (first, second):
        assert error.__traceback__
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if frame.f_code is broken.__code__]
        assert frames
        assert not any("content" in frame.f_locals for frame in frames)

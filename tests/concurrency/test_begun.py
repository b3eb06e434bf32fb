"""Coroutines that are begun within the task that runs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from seaweedq.concurrency.begun import Begun


async def _at_once() -> int:
    return 7


async def _later(*events: asyncio.Event) -> int:
    for event in events:
        await event.wait()
    return len(events)


async def test_what_need_not_wait_is_over_at_once() -> None:
    begun = Begun(_at_once())
    assert begun.is_over
    assert begun.result == 7
    assert await begun == 7


async def test_what_waits_is_awaited_to_its_end() -> None:
    first, second = asyncio.Event(), asyncio.Event()

    async def waiting() -> int:
        begun = Begun(_later(first, second))
        assert not begun.is_over
        return await begun

    task = asyncio.create_task(waiting())
    for event in (first, second):
        await asyncio.sleep(0)
        assert not task.done()
        event.set()
    assert await task == 2


async def test_errors_come_out_where_they_are_raised() -> None:
    async def fails(wait: bool) -> None:
        if wait:
            await asyncio.sleep(0)
        raise LookupError

    with pytest.raises(LookupError):
        Begun(fails(False))
    begun = Begun(fails(True))
    with pytest.raises(LookupError):
        await begun


async def test_a_timeout_around_the_rest_ends_it_and_runs_its_ends() -> None:
    ended: list[str] = []

    @asynccontextmanager
    async def noted() -> AsyncIterator[None]:
        try:
            yield
        finally:
            await asyncio.sleep(0)
            ended.append("ended")

    async def hangs() -> None:
        async with noted():
            await asyncio.Event().wait()

    begun = Begun(hangs())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await begun
    assert ended == ["ended"]


async def test_a_coroutine_that_outlives_a_cancellation_goes_on() -> None:
    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return "done"

    async def waiting() -> str:
        return await Begun(stubborn())

    task = asyncio.create_task(waiting())
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "done"

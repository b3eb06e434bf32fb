"""Futures that may have ended or that nobody waits for, the order of a signal's waiters, and bounded gathering: order,
bound, and that nothing is left running.
"""

import asyncio
import gc
import traceback
from typing import Any

import pytest

from seaweedq.concurrency.futures import Signal, empty_frames, fail, gather_bounded, mark_retrieved, resolve


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


async def test_waits_end_in_their_order() -> None:
    signal, ended = Signal(), []

    async def wait(number: int) -> None:
        await signal.wait(None)
        ended.append(number)

    waits = [asyncio.create_task(wait(number)) for number in range(100)]
    await asyncio.sleep(0)
    signal.wake()
    await asyncio.gather(*waits)
    assert ended == list(range(100))


class Work:
    """Doubles numbers; counts what runs."""

    def __init__(self, fails=()):
        self.fails = fails
        self.running = self.most = self.begun = 0

    async def __call__(self, number):
        self.running += 1
        self.begun += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(0.001 * (number % 3))
            if number in self.fails:
                raise ValueError(number)
            if self.fails:
                await asyncio.sleep(60)
            return number * 2
        finally:
            self.running -= 1


async def test_results_have_the_order_of_the_items():
    work = Work()
    assert await gather_bounded(4, work, range(20)) == [2 * number for number in range(20)]
    assert work.most == 4


@pytest.mark.parametrize("limit", [1, 2, 50])
async def test_any_bound_does(limit):
    work = Work()
    assert await gather_bounded(limit, work, iter([3, 1, 2])) == [6, 2, 4]
    assert work.most == min(limit, 3)


async def test_nothing_to_do_is_nothing():
    assert await gather_bounded(4, Work(), []) == []


async def test_the_first_error_ends_it_all():
    work = Work(fails=(2,))
    with pytest.raises(ValueError, match=r"^2$"):
        await gather_bounded(3, work, range(20))
    assert (work.running, work.begun) == (0, 3), "the others are cancelled and awaited, nothing more begins"
    assert len(asyncio.all_tasks()) == 1


async def test_two_errors_at_once_are_one():
    async def work(number):
        raise ValueError(number)

    with pytest.raises(ValueError, match=r"^0$"):
        await gather_bounded(2, work, range(4))


async def test_a_cancellation_reaches_what_runs():
    work = Work(fails=(99,))
    gathering = asyncio.create_task(gather_bounded(3, work, range(20)))
    while work.begun < 3:
        await asyncio.sleep(0)
    gathering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gathering
    assert work.running == 0
    assert len(asyncio.all_tasks()) == 1


async def test_an_error_leaves_no_cancellation_so_a_timeout_around_it_is_one():
    async def fail_and_hang():
        async with asyncio.timeout(0.02):
            with pytest.raises(ValueError, match=r"^0$"):
                await gather_bounded(3, Work(fails=(0,)), range(3))
            await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        await fail_and_hang()


async def test_a_cancellation_is_not_lost_if_the_work_answers_with_an_error():
    async def work(number):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise ValueError(number) from None

    gathering = asyncio.create_task(gather_bounded(2, work, range(2)))
    await asyncio.sleep(0.001)
    gathering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gathering


async def test_work_that_is_cancelled_by_itself_cancels_whoever_waits_for_all():
    async def work(number):
        if number == 1:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await gather_bounded(2, work, range(4))

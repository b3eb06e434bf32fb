"""Deadlines, attempts and retries, on simulated time; coroutines that are begun within the task that runs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import wraps

import pytest

from seaweedq.concurrency.deadline import Deadline, EagerCoroutine
from seaweedq.concurrency.futures import Signal
from tests.support.brokers.simulated_loop import clock, simulate


def simulated(test):
    @wraps(test)
    def run(*args, **kwargs):
        simulate(test(*args, **kwargs))

    return run


def later(seconds, call):
    asyncio.get_running_loop().call_later(seconds, call)


@simulated
async def test_time_left_falls_to_zero():
    deadline = Deadline(clock(), 3.0)
    assert (deadline.left_s, deadline.is_over, deadline.time_s) == (3.0, False, 3.0)
    await asyncio.sleep(2)
    assert deadline.left_s == 1.0
    await asyncio.sleep(2)
    assert (deadline.left_s, deadline.is_over) == (0.0, True)


@simulated
async def test_cut_off_ends_the_time():
    stopping = False
    deadline = Deadline(clock(), 3.0, lambda: stopping)
    assert not deadline.is_over
    stopping = True
    assert deadline.is_over


@simulated
async def test_shorten_never_prolongs():
    deadline = Deadline(clock(), 10.0)
    deadline.shorten(4.0)
    await asyncio.sleep(1)
    deadline.shorten(9.0)
    assert deadline.left_s == 3.0


@simulated
async def test_attempts_pause_and_end_with_one_after_the_deadline():
    at = [clock().time() async for _ in Deadline(clock(), 2.5).attempts(pause_s=1.0)]
    assert at == [0.0, 1.0, 2.0, 2.5]


@simulated
async def test_no_time_at_all_is_one_attempt():
    assert len([attempt async for attempt in Deadline(clock(), 0.0).attempts(pause_s=1.0)]) == 1


@simulated
async def test_a_long_attempt_is_the_last():
    count = 0
    async for _ in Deadline(clock(), 2.0).attempts(pause_s=1.0):
        count += 1
        await asyncio.sleep(5)
    assert count == 1


@simulated
async def test_a_wake_begins_the_next_attempt():
    signal, at, woken = Signal(), [], []
    later(0.25, signal.wake)
    async for attempt in Deadline(clock(), 1.0).attempts(signal):
        at.append(clock().time())
        woken.append(attempt.woken)
    assert at == [0.0, 0.25, 1.0]
    assert woken == [True, True, False]


@simulated
async def test_a_wake_during_an_attempt_counts():
    signal, at = Signal(), []
    async for attempt in Deadline(clock(), 1.0).attempts(signal, 0.5):
        at.append(clock().time())
        if len(at) == 1:
            assert not attempt.has_changed
            signal.wake()
            assert attempt.has_changed
    assert at == [0.0, 0.0, 0.5, 1.0]


@simulated
async def test_a_wake_before_the_mark_does_not_count():
    signal, at = Signal(), []
    async for attempt in Deadline(clock(), 1.0).attempts(signal, 0.5):
        at.append(clock().time())
        signal.wake()
        attempt.mark()
        assert not attempt.has_changed
    assert at == [0.0, 0.5, 1.0]


@simulated
async def test_wakes_do_not_prolong():
    signal, count = Signal(), 0
    async for _ in Deadline(clock(), 1.0).attempts(signal, 0.5):
        count += 1
        signal.wake()
        await asyncio.sleep(0.3)
    assert count == 4


@simulated
async def test_whether_it_is_the_last_is_decided_once():
    at = []
    async for attempt in Deadline(clock(), 1.0).attempts(pause_s=0.5):
        at.append(clock().time())
        if not attempt.is_last():
            await asyncio.sleep(1)
            assert not attempt.is_last()
    assert at == [0.0, 1.0], "a look after the work that came after the last look"


@simulated
async def test_the_pause_may_grow():
    at = []
    async for attempt in Deadline(clock(), 10.0).attempts(pause_s=1.0):
        at.append(clock().time())
        attempt.pause_s *= 2
    assert at == [0.0, 2.0, 6.0, 10.0]


@simulated
async def test_break_leaves_out_what_treats_the_timeout():
    async for _ in Deadline(clock(), 1.0).attempts(pause_s=0.1):
        if clock().time() > 0.5:
            break
    else:
        pytest.fail("it was in time")


@simulated
async def test_retry_returns_what_comes_of_it():
    left = [ValueError("one"), KeyError("two")]

    async def step():
        if left:
            raise left.pop()
        return clock().time()

    assert await Deadline(clock(), 5.0).retry(step, (ValueError, KeyError), pause_s=1.0) == 2.0


@simulated
async def test_retry_raises_the_last_error():
    async def step():
        raise ValueError(clock().time())

    with pytest.raises(ValueError, match=r"^1.5$"):
        await Deadline(clock(), 1.5).retry(step, ValueError, pause_s=1.0)


@simulated
async def test_retry_raises_other_errors_at_once():
    async def step():
        raise KeyError(clock().time())

    with pytest.raises(KeyError, match=r"0.0"):
        await Deadline(clock(), 1.5).retry(step, ValueError, pause_s=1.0)


@simulated
async def test_retry_wakes_on_change():
    signal, ready = Signal(), []

    async def step():
        if not ready:
            raise ValueError
        return clock().time()

    def change():
        ready.append(True)
        signal.wake()

    later(0.25, change)
    assert await Deadline(clock(), 5.0).retry(step, ValueError, wake=signal) == 0.25


@simulated
async def test_a_waiter_that_is_cancelled_is_forgotten():
    signal = Signal()
    waiting = asyncio.create_task(signal.wait(None))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    signal.wake()
    assert signal.count == 1


@simulated
async def test_bound_work_ends_at_the_deadline_other_work_is_done_behind_it():
    async def slept(seconds):
        if seconds:
            await asyncio.sleep(seconds)
        return seconds

    deadline = Deadline(clock(), 3.0)
    assert await deadline.bound(slept(2)) == 2
    with pytest.raises(TimeoutError):
        await deadline.bound(slept(5))
    assert clock().time() == 3.0
    with pytest.raises(TimeoutError):
        await deadline.bound(asyncio.gather(slept(1)))
    assert await deadline.bound(slept(0)) == 0


async def _at_once() -> int:
    return 7


async def _later(*events: asyncio.Event) -> int:
    for event in events:
        await event.wait()
    return len(events)


async def test_what_need_not_wait_is_over_at_once() -> None:
    begun = EagerCoroutine(_at_once())
    assert begun.is_over
    assert begun.result == 7
    assert await begun == 7


async def test_what_waits_is_awaited_to_its_end() -> None:
    first, second = asyncio.Event(), asyncio.Event()

    async def waiting() -> int:
        begun = EagerCoroutine(_later(first, second))
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
        EagerCoroutine(fails(False))
    begun = EagerCoroutine(fails(True))
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

    begun = EagerCoroutine(hangs())
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
        return await EagerCoroutine(stubborn())

    task = asyncio.create_task(waiting())
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "done"

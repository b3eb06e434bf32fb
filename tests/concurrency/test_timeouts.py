"""Timeouts of many futures by one timer, on simulated time."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from functools import wraps

from seaweedq.concurrency.deadline import Deadline, Timeouts
from tests.support.brokers.simulated_loop import clock, simulate


def simulated(test: Callable[[], Coroutine[None, None, None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        simulate(test())

    return run


def _error(deadline: Deadline) -> Exception:
    return TimeoutError(f"{deadline.time_s:g} s")


def _future() -> asyncio.Future[int]:
    return asyncio.get_running_loop().create_future()


async def _ended_at(future: asyncio.Future[int]) -> float:
    await asyncio.wait([future])
    return clock().time()


@simulated
async def test_each_future_fails_at_its_own_deadline() -> None:
    timeouts, draw = Timeouts(_error), random.Random(1)
    times_s = [draw.choice([1.0, 2.5, 2.5, 3.0, 7.0]) for _ in range(50)]
    futures = [_future() for _ in times_s]
    for future, time_s in zip(futures, times_s, strict=True):
        timeouts.add(future, Deadline(clock(), time_s))
    assert await asyncio.gather(*map(_ended_at, futures)) == times_s
    assert [str(future.exception()) for future in futures] == [f"{time_s:g} s" for time_s in times_s]
    assert len(timeouts) == 0


@simulated
async def test_a_deadline_that_began_earlier_is_not_late() -> None:
    timeouts, first, second = Timeouts(_error), _future(), _future()
    early = Deadline(clock(), 5.0)
    await asyncio.sleep(4.0)
    timeouts.add(first, Deadline(clock(), 5.0))
    timeouts.add(second, early)
    assert await asyncio.gather(_ended_at(first), _ended_at(second)) == [9.0, 5.0]


@simulated
async def test_futures_that_ended_are_left_alone_and_let_go() -> None:
    timeouts = Timeouts(_error)
    stays = _future()
    timeouts.add(stays, Deadline(clock(), 30.0))
    for n in range(1000):
        ended = _future()
        timeouts.add(ended, Deadline(clock(), 30.0))
        ended.set_result(n)
        if n == 500:
            stays.cancel()
    assert len(timeouts) == 1
    await asyncio.sleep(31)
    assert len(timeouts) == 0

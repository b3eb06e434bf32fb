"""Asking a broker for as long as it lives."""

import asyncio

import pytest

from seaweedq.broker.rpc import client
from seaweedq.broker.rpc.client import ask_while
from seaweedq.clock import SystemClock
from seaweedq.concurrency.deadline import Deadline


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch):
    monkeypatch.setattr(client, "LOOK_S", 0.001)


def alive():
    pass


async def hangs(ended):
    try:
        await asyncio.sleep(60)
    finally:
        ended.append(True)


async def test_the_answer_comes():
    async def answers():
        await asyncio.sleep(0.01)
        return 7

    assert await ask_while(alive, answers()) == 7


async def test_an_error_of_the_call_is_raised():
    async def fails():
        raise ValueError("asked")

    with pytest.raises(ValueError, match="asked"):
        await ask_while(alive, fails())


async def test_one_that_has_gone_is_not_waited_for():
    looks, ended = [], []

    def gone():
        looks.append(True)
        if len(looks) == 3:
            raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        await ask_while(gone, hangs(ended))
    await asyncio.sleep(0)
    assert ended, "the call is cancelled"


async def test_the_time_may_be_over():
    ended = []
    with pytest.raises(TimeoutError):
        await ask_while(alive, hangs(ended), Deadline(SystemClock(), 0.01))
    await asyncio.sleep(0)
    assert ended


async def test_a_future_may_be_asked():
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.005, future.set_result, 3)
    assert await ask_while(alive, future) == 3


async def test_a_cancellation_cancels_the_call():
    ended = []
    asking = asyncio.create_task(ask_while(alive, hangs(ended)))
    await asyncio.sleep(0.005)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await asyncio.sleep(0)
    assert ended

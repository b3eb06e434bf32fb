"""Pauses between the tries of a put: they grow, and end early where another put works."""

import asyncio

import pytest

from seaweedq.concurrency.futures import Signal
from seaweedq.errors import StoreUnavailable
from seaweedq.segments.chain import Chain
from seaweedq.storage.endpoints import Endpoints
from seaweedq.storage.interface import SURE_S, Pauses
from seaweedq.storage.memory import MemoryStore
from tests.segments.test_chain_faults import entry
from tests.support.journal.held_store import Hands, settle


class Put:
    """A put that fails until told otherwise; `tries` are the times at which it was tried."""

    def __init__(self, hands: Hands, worked: Signal, last_s: float = 5.0) -> None:
        self.tries: list[float] = []
        self._hands = hands
        self._pauses = Pauses(worked, hands.sleep, last_s)
        self.task = asyncio.create_task(self._repeat())

    async def _repeat(self) -> None:
        while True:
            self.tries.append(self._hands.now_s)
            await self._pauses.wait()

    def pauses(self) -> list[float]:
        return [round(after - before, 2) for before, after in zip(self.tries, self.tries[1:], strict=False)]


async def passes(hands: Hands, seconds: float) -> None:
    for _ in range(round(seconds / 0.05)):
        await hands.turn(0.05)


async def test_without_a_success_they_double_up_to_the_last_one() -> None:
    hands = Hands()
    put = Put(hands, Signal())
    await passes(hands, 20)
    assert put.pauses()[:9] == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0], abs=0.06)
    put.task.cancel()


async def test_a_success_elsewhere_ends_a_long_one_at_once() -> None:
    hands, worked = Hands(), Signal()
    puts = [Put(hands, worked) for _ in range(3)]
    await passes(hands, 7)
    tried = [len(put.tries) for put in puts]
    worked.wake()
    await settle()
    assert [len(put.tries) for put in puts] == [count + 1 for count in tried]
    for put in puts:
        put.task.cancel()


async def test_a_put_that_fails_alone_is_not_tried_more_often_by_each_success() -> None:
    hands, worked = Hands(), Signal()
    put = Put(hands, worked)
    for _ in range(200):
        await hands.turn(0.05)
        worked.wake()
    assert min(put.pauses()[4:]) <= 0.1, "a long one was cut short"
    assert len(put.tries) <= 5 + 2 * 10 / SURE_S + 1
    put.task.cancel()


async def test_a_sleep_that_fails_is_no_end_of_a_pause() -> None:
    async def fails(_: float) -> None:
        raise RuntimeError("the clock broke")

    pauses = Pauses(Signal(), fails, 5.0)
    for _ in range(8):
        with pytest.raises(RuntimeError):
            await pauses.wait()


async def test_an_entry_of_one_chain_lets_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    hands, store = Hands(), MemoryStore()
    held, other = Chain(store, "t", 0, hands.sleep), Chain(store, "u", 0, hands.sleep)
    monkeypatch.setattr(store, "faults", store_is_away)
    appending = asyncio.create_task(held.append(*entry(held, "mine")))
    await passes(hands, 4)
    assert held.failing
    monkeypatch.setattr(store, "faults", lambda moment, name: None)
    await settle()
    assert not appending.done()
    await other.append(*entry(other, "mine"))
    await settle()
    assert appending.done()
    assert held.failing is None


async def test_several_endpoints_have_one_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = At(), At()
    monkeypatch.setattr(first, "faults", store_is_away)
    store = Endpoints([first, second])
    before = store.worked
    with pytest.raises(StoreUnavailable):
        await store.create("a", b"")
    assert store.endpoints[0] is second
    assert store.worked is before, "who pauses since the first one failed is woken by what works at the second"


class At(MemoryStore):
    """A store at an endpoint of its own."""

    endpoint: str | None = None

    async def close(self) -> None:
        pass


def store_is_away(moment: str, name: str) -> None:
    raise StoreUnavailable(f"{moment} {name}")

"""Pulls that wait at a broker which does not dispatch their subscription share one long poll. Pulls that queue at
brokers which do not dispatch their subscription count in what it shows, and in the metrics.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from seaweedq.broker.broker import Broker
from seaweedq.broker.subscriptions import subscribing
from seaweedq.broker.subscriptions.subscribing import DRY_S, RelayQueue
from seaweedq.clock import SystemClock
from seaweedq.concurrency.deadline import Deadline
from seaweedq.errors import NotOwner, Unavailable
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import DirectPeers, InLoop, in_loop, until
from tests.support.brokers.reshaped import TOPIC, at, make

WAITING, FIRST = 30, 6
S = f"{TOPIC}/subscriptions/s"


class Under:
    """The pulls that are at the dispatcher now, for another broker; `queued` have asked for a turn there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.all = self.queued = 0
        relay, turn = DirectPeers.relay, RelayQueue.turn

        async def counted(peers: DirectPeers, method: str, url: str, path: str, *arguments: Any) -> Any:
            is_pull = path.endswith("/pull")
            self.now += is_pull
            self.all += is_pull
            try:
                return await relay(peers, method, url, path, *arguments)
            finally:
                self.now -= is_pull

        def queueing(
            queue: RelayQueue, until: Deadline, check: Callable[[], None], consumer: str
        ) -> AbstractAsyncContextManager[float]:
            self.queued += 1
            return turn(queue, until, check, consumer)

        monkeypatch.setattr(DirectPeers, "relay", counted)
        monkeypatch.setattr(RelayQueue, "turn", queueing)


async def test_one_queued_behind_those_of_a_dead_dispatcher_waits_for_the_next() -> None:
    """Each of those told all others behind it, so that thousands who waited sent each other away."""
    queue, until_ = RelayQueue(), Deadline(SystemClock(), 30)
    first_leaves, later_ones = asyncio.Event(), list[asyncio.Task[float]]()

    def alive() -> None:
        pass

    async def first() -> None:
        try:
            async with queue.turn(until_, alive):
                await first_leaves.wait()
                raise Unavailable("it has died")
        finally:
            later_ones.extend(asyncio.create_task(another()) for _ in range(3))

    async def another() -> float:
        async with queue.turn(until_, alive) as left_s:
            return left_s

    before = [asyncio.create_task(first()), *(asyncio.create_task(another()) for _ in range(3))]
    await asyncio.sleep(0)
    first_leaves.set()
    assert [type(one) for one in await asyncio.gather(*before, return_exceptions=True)] == [
        Unavailable,
        *[NotOwner] * 3,
    ]
    assert all(left_s > 0 for left_s in await asyncio.gather(*later_ones))


def has_s(broker: Broker) -> bool:
    return inside.dispatcher(broker).has(inside.topic(broker, "t"), "s")


@asynccontextmanager
async def waiting(
    together: InLoop, under: Under, mode: str, consumers: list[str | None]
) -> AsyncIterator[tuple[httpx.AsyncClient, list[asyncio.Task[Any]]]]:
    """Pulls that wait for a message each, at the broker that does not dispatch; a client of the other one."""
    await make(together.brokers[0])
    async with at(together, together.brokers[0]) as http, at(together, together.brokers[1]) as other:
        assert (await http.put(S, json={"start": "earliest", "mode": mode})).status_code == 201
        await http.post(f"{S}/pull", json={})
        brokers = {has_s(one): one for one in together.brokers}
        here, there = (http, other) if brokers[False] is together.brokers[0] else (other, http)
        pulls = []
        for wave in (consumers[:FIRST], consumers[FIRST:]):  # who asks at the same time, queues in any order
            for consumer in wave:
                body = {"max_messages": 1, "wait_s": 30} | ({"consumer": consumer} if consumer else {})
                pulls.append(asyncio.create_task(here.post(f"{S}/pull", json=body)))
            await until(lambda: under.queued == len(pulls))
        await until(lambda: under.now >= 1)
        yield there, pulls
        for one in pulls:
            one.cancel()
        await asyncio.gather(*pulls, return_exceptions=True)


async def publish(http: httpx.AsyncClient, count: int) -> None:
    body = {"messages": [{"value": n} for n in range(count)]}
    assert (await http.post(f"{TOPIC}/messages", json=body)).status_code == 200


def answered(pulls: list[asyncio.Task[Any]]) -> list[int]:
    return [at for at, one in enumerate(pulls) if one.done()]


@pytest.mark.brokers
@pytest.mark.parametrize("mode", ["ordered", "shared"])
async def test_one_waits_there_for_all_and_the_longest_waiting_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Each had a connection, and two looks a second."""
    under = Under(monkeypatch)
    consumers = [None if mode == "ordered" else str(n) for n in range(WAITING)]
    async with in_loop(tmp_path) as together, waiting(together, under, mode, consumers) as (http, pulls):
        await asyncio.sleep(0.1)
        await until(lambda: under.now <= 2)  # a slow machine takes longer to tell all that there is nothing
        await publish(http, 3)
        await until(lambda: len(answered(pulls)) == 3)
        found = [(await pulls[at]).json()["messages"] for at in answered(pulls)]
        assert sorted(message["offset"] for messages in found for message in messages) == [0, 1, 2]
        assert max(answered(pulls)) < FIRST
        await asyncio.sleep(0.1)
        await until(lambda: under.now <= 2)  # a slow machine takes longer to tell all that there is nothing
        first = next(one for one in pulls if not one.done())
        first.cancel()
        await publish(http, WAITING - 4)
        await until(lambda: len(answered(pulls)) == WAITING)


@pytest.mark.brokers
async def test_who_comes_while_another_has_waited_for_long_asks_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each asked first: 5,000 that came at once took both brokers so long that one of them lost its lease. A lease that
    holds messages gets them again at once all the same."""
    under = Under(monkeypatch)
    async with in_loop(tmp_path) as together, waiting(together, under, "shared", [None]) as (there, pulls):
        here = next(broker for broker in together.brokers if not has_s(broker))
        async with at(together, here) as http:
            await publish(there, 1)
            assert (await pulls[0]).json()["messages"]
            await publish(there, 1)
            held = (await http.post(f"{S}/pull", json={"lease": "mine"})).json()["messages"]
            one = {"wait_s": 30, "max_messages": 1}
            first = asyncio.create_task(http.post(f"{S}/pull", json=one))
            await until(lambda: under.now == 1)
            await asyncio.sleep(DRY_S + 0.05)
            before = under.all
            more = [
                asyncio.create_task(http.post(f"{S}/pull", json={"wait_s": 30, "max_messages": 1})) for _ in range(9)
            ]
            pulls += [first, *more]
            again = await http.post(f"{S}/pull", json={"lease": "mine", "wait_s": 30})
            assert again.json()["messages"] == held
            assert under.all == before + 1
            await publish(there, 10)
            found = [(await one).json()["messages"] for one in [first, *more]]
            assert sorted(message["offset"] for messages in found for message in messages) == list(range(2, 12))


@pytest.mark.brokers
async def test_each_consumer_of_an_ordered_subscription_waits_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    under = Under(monkeypatch)
    async with in_loop(tmp_path) as together, waiting(together, under, "ordered", ["a", "a", "b"]) as (http, pulls):
        await until(lambda: under.now == 2)
        await publish(http, 2)
        await until(lambda: len(answered(pulls)) == 2)
        assert answered(pulls) == [0, 1], "the segment is a's"


@pytest.mark.brokers
async def test_a_pull_that_is_handed_on_costs_coordination_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each read the subscription's record for its mode, as often as anybody pulled."""
    monkeypatch.setattr(subscribing, "MODE_S", 600.0)
    under = Under(monkeypatch)
    async with in_loop(tmp_path) as together, waiting(together, under, "shared", ["a"]) as (http, pulls):
        await publish(http, 1)
        await until(lambda: len(answered(pulls)) == 1)
        read, get = [], together.coordination.get

        async def counted(key: str) -> Any:
            read.append(key)
            return await get(key)

        monkeypatch.setattr(together.coordination, "get", counted)
        async with at(together, *(one for one in together.brokers if not has_s(one))) as here:
            for _ in range(5):
                await publish(http, 1)
                answer = await here.post(f"{S}/pull", json={"max_messages": 1, "wait_s": 5})
                assert len(answer.json()["messages"]) == 1
        assert [key for key in read if key.startswith("subscriptions/")] == []


@pytest.mark.brokers
async def test_those_who_queue_follow_the_dispatcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    under = Under(monkeypatch)
    async with in_loop(tmp_path) as together, waiting(together, under, "shared", [None] * 5) as (_, pulls):
        (dispatching,) = [one for one in together.brokers if inside.dispatcher(one).names()]
        await together.crash(dispatching)
        (left,) = [one for one in together.brokers if one is not dispatching]
        async with asyncio.timeout(40), at(together, left) as here:
            await publish(here, 5)
            answers = await asyncio.gather(*pulls)
        assert sorted(message["offset"] for one in answers for message in one.json()["messages"]) == [0, 1, 2, 3, 4]


WAITING_ELSEWHERE = 6


async def shown(http: httpx.AsyncClient) -> tuple[int, int]:
    """The pulls that wait, and the consumers."""
    answer = (await http.get(S)).json()
    return answer["waiting_pulls"], answer["consumers"]


async def becomes(http: httpx.AsyncClient, wanted: tuple[int, int]) -> None:
    async with asyncio.timeout(30):
        while await shown(http) != wanted:
            await asyncio.sleep(0.1)


def queued(broker: Broker) -> int:
    """The pulls that queue at a broker."""
    return sum(one.total() for one in inside.relayed_waits(broker).queued().values())


def metrics(together: InLoop) -> tuple[int, int]:
    """The sums over all brokers, as of Prometheus."""
    found = [one for broker in together.brokers for one in inside.lag_meter(broker).furthest_behind(10)]
    return sum(one.waiting_pulls for one in found), sum(one.consumers for one in found)


def dispatches(broker: Broker) -> bool:
    """Whether the subscription is here, and will not be handed over."""
    preferred = inside.assignment(broker).preferred(inside.topic(broker, "t"), "s")
    return bool(inside.dispatcher(broker).names()) and preferred == inside.membership(broker).broker


@pytest.mark.brokers
@pytest.mark.parametrize("mode", ["shared", "ordered"])
async def test_those_who_wait_at_another_broker_are_counted_once(tmp_path: Path, mode: str) -> None:
    """Of six pulls that waited at another broker one was counted."""
    async with in_loop(tmp_path, 2) as together, at(together, together.brokers[0]) as http:
        await make(together.brokers[0])
        assert (await http.put(S, json={"mode": mode})).status_code == 201
        assert await shown(http) == (0, 0)
        await until(lambda: any(map(dispatches, together.brokers)), "it is with the preferred broker, and stays")
        (here,) = filter(dispatches, together.brokers)
        (away,) = [broker for broker in together.brokers if broker is not here]
        async with at(together, away) as beside, at(together, here) as near:

            def pulls(client: httpx.AsyncClient, consumer: str) -> asyncio.Task[Any]:
                return asyncio.create_task(client.post(f"{S}/pull", json={"wait_s": 20, "consumer": consumer}))

            waiting = [pulls(beside, f"c{n // 2}") for n in range(WAITING_ELSEWHERE)]
            waiting += [pulls(near, "c0"), pulls(near, "near")]
            await until(lambda: queued(away) == (5 if mode == "shared" else 3), "all but one of each queue there")
            await becomes(beside, (8, 4))
            assert metrics(together) == (8, 4)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            await becomes(beside, (0, 0))
            assert metrics(together) == (0, 0)

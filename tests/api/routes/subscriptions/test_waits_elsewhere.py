"""Pulls that queue at brokers which do not dispatch their subscription count in what it shows, and in the metrics."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from seaweedq.broker.broker import Broker
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import InLoop, in_loop, until
from tests.support.brokers.reshaped import TOPIC, at, make

S = f"{TOPIC}/subscriptions/s"
WAITING = 6


async def shown(http: httpx.AsyncClient) -> tuple[int, int]:
    """The pulls that wait, and the consumers."""
    answer = (await http.get(S)).json()
    return answer["waiting_pulls"], answer["consumers"]


async def becomes(http: httpx.AsyncClient, wanted: tuple[int, int]) -> None:
    async with asyncio.timeout(10):
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

            waiting = [pulls(beside, f"c{n // 2}") for n in range(WAITING)]
            waiting += [pulls(near, "c0"), pulls(near, "near")]
            await until(lambda: queued(away) == (5 if mode == "shared" else 3), "all but one of each queue there")
            await becomes(beside, (8, 4))
            assert metrics(together) == (8, 4)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            await becomes(beside, (0, 0))
            assert metrics(together) == (0, 0)

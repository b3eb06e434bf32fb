"""A broker whose watch brings no news still publishes to successors, and reads them."""

from pathlib import Path

import pytest

from tests.support.brokers import inside
from tests.support.brokers.deaf import deaf
from tests.support.brokers.in_process_cluster import in_loop, until
from tests.support.brokers.reshaped import TOPIC, at, make, messages_of, records
from tests.support.brokers.subscribing import ack, create, publish, pull

pytestmark = pytest.mark.brokers


async def test_a_broker_that_hears_no_news_publishes_to_successors(tmp_path: Path) -> None:
    async with in_loop(tmp_path, publish_timeout_s=4) as together:
        one, two = together.brokers
        await make(one)
        await inside.catalog(two).known("t")
        await until(lambda: len(records(two)) == 1)
        await deaf(two)
        async with at(together, two) as http:
            assert (await http.post(f"{TOPIC}/messages", json={"messages": messages_of("k", 0, 9)})).status_code == 200
            await inside.planner(one).plan(inside.topic(one, "t"), [0], [1 << 30])
            await until(lambda: records(one)[0].state == "sealed")
            assert records(two)[0].state == "open"
            single = await http.post(f"{TOPIC}/messages", json={"key": "k", "value": 1})
            assert single.status_code == 200, single.text
            assert (await http.post(f"{TOPIC}/messages", json={"messages": messages_of("k", 1, 9)})).status_code == 200
            for number in (0, 1, 2):
                answer = await http.get(f"{TOPIC}/segments/{number}/messages")
                assert answer.status_code == 200, answer.text
                assert answer.json()["sealed"] == (number == 0)


async def test_a_dispatcher_that_hears_no_news_goes_on_with_successors(tmp_path: Path) -> None:
    async with in_loop(tmp_path, publish_timeout_s=4) as together:
        one, two = together.brokers
        await make(one)
        async with at(together, one) as http, at(together, two) as other:
            await create(http)
            assert await pull(other) == []
            (dispatcher,) = [b for b in together.brokers if inside.dispatcher(b).names()]
            owner = one if dispatcher is two else two
            if owner is two:
                assert await inside.mover(one).move(inside.topic(one, "t"), 0, two.id)
                await until(lambda: records(two)[0].owner == two.id)
            await deaf(dispatcher)
            before = await publish(http, 0)
            await inside.planner(owner).plan(inside.topic(owner, "t"), [0], [1 << 30])
            await until(lambda: records(owner)[0].state == "sealed")
            behind = await publish(http if owner is one else other, 1)
            assert {id.split("-")[0] for id in behind} == {"1", "2"}
            first = await pull(other, wait_s=5)
            assert sorted(message["id"] for message in first) == sorted(before)
            await ack(http, before)
            found: list[str] = []
            while len(found) < len(behind):
                came = await pull(http, wait_s=5)
                assert came, "the successors are not read"
                found += [message["id"] for message in came]
            assert sorted(found) == sorted(behind)

"""Readers are told that there is nothing, or where a topic stands, only by who knows: also amid a change, by a broker
that is behind, and after a crash."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from seaweedq.broker.broker import Broker
from seaweedq.errors import NotOwner
from tests.support.brokers import inside
from tests.support.brokers.deaf import end_task
from tests.support.brokers.in_process import Gate
from tests.support.brokers.in_process_cluster import InLoop, in_loop, until
from tests.support.brokers.reshaped import TOPIC, at, by_id, check_all_once_in_order, make, opened, records, replace
from tests.support.brokers.subscribing import ack, consume, create, everywhere, lag, publish, pull

pytestmark = pytest.mark.brokers


def pair(together: InLoop, name: str = "s") -> tuple[Broker, Broker]:
    """The broker that dispatches the subscription `s`, and another one, which is to own everything."""
    topic = inside.topic(together.brokers[0], "t")
    dispatcher = by_id(together, inside.assignment(together.brokers[0]).preferred(topic, name))
    return dispatcher, next(broker for broker in together.brokers if broker is not dispatcher)


async def given(together: InLoop, target: Broker) -> None:
    """Move all open segments to this broker; all brokers see that."""
    mine = target.id
    await until(lambda: all(inside.catalog(broker).find("t") for broker in together.brokers))
    for number, record in records(together.brokers[0]).items():
        owner = by_id(together, record.owner)
        if owner is not target:
            assert await inside.mover(owner).move(inside.topic(owner, "t"), number, mine)
    await until(lambda: all(r.owner == mine for broker in together.brokers for r in records(broker).values()))


@asynccontextmanager
async def held(owner: Broker) -> AsyncIterator[None]:
    """The segments that give way at this broker meanwhile are held as long as the block runs."""
    gate, quiet = Gate(), inside.group_commit(owner).wait_until_idle

    async def slow() -> None:
        await gate()
        await quiet()

    inside.group_commit(owner).wait_until_idle = slow  # type: ignore[method-assign]
    await inside.planner(owner).plan(inside.topic(owner, "t"), [opened(owner)[0]], [1_000_000_000])
    await gate.reached.wait()
    try:
        yield
    finally:
        inside.group_commit(owner).wait_until_idle = quiet  # type: ignore[method-assign]
        gate.open.set()


async def test_a_pull_says_there_is_nothing_only_if_no_segment_is_in_between(tmp_path: Path) -> None:
    async with in_loop(tmp_path) as together, everywhere(together) as clients:
        await make(together.brokers[0])
        dispatcher, owner = pair(together)
        await given(together, owner)
        await create(clients[0])
        await publish(clients[0], 0)
        await consume(clients, lambda: True)
        assert inside.dispatcher(dispatcher).names()
        async with held(owner):
            pulling = asyncio.create_task(pull(clients[0]))
            done, _ = await asyncio.wait([pulling], timeout=0.5)
            assert not done
            publishing = asyncio.create_task(publish(clients[1], 1))
            await asyncio.sleep(0.05)
        assert len(await asyncio.wait_for(pulling, 5)) in (0, 40)
        await publishing


async def test_the_owner_tells_a_segments_position_only_when_not_in_between(tmp_path: Path) -> None:
    async with in_loop(tmp_path) as together, everywhere(together) as clients:
        await make(together.brokers[0])
        asked, owner = pair(together)
        await given(together, owner)
        await publish(clients[0], 0)
        async with held(owner):
            topic = inside.topic(asked, "t")
            tasks = [
                asyncio.create_task(inside.positions(asked).positions(topic, flush=flush)) for flush in (False, True)
            ]
            done, _ = await asyncio.wait(tasks, timeout=0.5)
            assert not done
        for positions in await asyncio.gather(*tasks):
            assert {n: position.end for n, position in positions.items()}[0] == 40


async def test_positions_are_of_one_moment_though_a_segment_gives_way_meanwhile(
    tmp_path: Path, monkeypatch: Any
) -> None:
    async with in_loop(tmp_path) as together, everywhere(together) as clients:
        one, two = together.brokers
        topic = await make(one, 2)
        await publish(clients[0], 0)
        gate, own = Gate(), inside.local_positions(two).positions
        owned = next(n for n in opened(one) if records(one)[n].owner == one.id)

        async def late(*arguments: Any) -> Any:
            if not gate.open.is_set():
                await gate()
                raise NotOwner("not yet")
            return await own(*arguments)

        monkeypatch.setattr(inside.local_positions(two), "positions", late)
        asking = asyncio.create_task(inside.positions(one).positions(topic))
        await gate.reached.wait()
        await publish(clients[0], 1)
        successors = await replace(together, [owned], 2, [one, one])
        await publish(clients[0], 2)
        gate.open.set()
        positions = await asking
        known = records(one)
        assert positions[owned].end == known[owned].end_offset
        assert {*successors} <= positions.keys()
        assert sum(position.end for position in positions.values()) == 120


async def test_a_broker_that_only_heard_of_successors_knows_what_was_before(tmp_path: Path) -> None:
    async with in_loop(tmp_path) as together:
        hears, deaf = together.brokers
        await end_task(deaf, "catalog")
        async with at(together, hears) as near, at(together, deaf) as far:
            topic = await make(hears)
            await publish(near, 0)
            await inside.planner(hears).plan(topic, [0], [1_000_000_000])
            await until(lambda: records(hears)[0].state == "sealed")
            await publish(near, 1)
            for number in (1, 2):
                answer = await far.get(f"{TOPIC}/segments/{number}/messages")
                assert answer.status_code == 200, answer.text
            assert 0 not in records(deaf)
            assert [one["id"] for one in (await far.get(f"{TOPIC}/segments")).json()["segments"]] == [0, 1, 2]
            assert (await far.get(TOPIC)).json()["messages"] == 80


async def test_a_dispatcher_that_crashes_amid_a_lineage_is_followed_without_loss(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 3, lease_s=3.0) as together, everywhere(together) as clients:
        await make(together.brokers[0], 2)
        dispatcher, owner = pair(together)
        await given(together, owner)
        left = [client for client, broker in zip(clients, together.brokers, strict=True) if broker is not dispatcher]
        await create(left[0])
        await publish(left[0], 0)
        await replace(together, opened(owner)[:1], 2, [owner, owner])
        await publish(left[0], 1)
        rows = []
        for _ in range(3):  # segment by segment, some of it not in coordination yet
            found = await pull(left[0], 25)
            await ack(left[1], [message["id"] for message in found])
            rows += [(m["segment"], m["offset"], m["key"], m["value"]) for m in found]
        await together.crash(dispatcher)
        together.brokers.remove(dispatcher)
        await replace(together, opened(owner)[:2], 1, [owner])
        await publish(left[1], 2)
        rows += await consume(left, lambda: True)
        check_all_once_in_order(rows, {f"k-{k}": 3 for k in range(40)})
        assert sum(one["messages"] for one in await lag(left[0])) == 0

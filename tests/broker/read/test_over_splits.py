"""Fetches follow segments over splits, merges and rolls: every message once, each key's in order, at any broker.

Only a broker that knows tells readers that there is nothing, or the ends of a topic: also amid a change, by a broker
that is behind, and after a crash.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from seaweedq.broker.broker import Broker
from seaweedq.coordination import keys
from seaweedq.errors import NotOwner
from tests.support.brokers import inside
from tests.support.brokers.deaf import end_task
from tests.support.brokers.in_process import Gate
from tests.support.brokers.in_process_cluster import InLoop, in_loop, until
from tests.support.brokers.machine import simulated_machine
from tests.support.brokers.reshaped import (
    ARROW,
    TOPIC,
    Following,
    at,
    beside,
    by_id,
    change_all,
    check_all_once_in_order,
    make,
    opened,
    publishing,
    records,
    replace,
)
from tests.support.brokers.simulated_loop import clock, simulate
from tests.support.brokers.subscribing import ack, consume, create, everywhere, lag, publish, pull
from tests.support.reshape.lives import lives

pytestmark = pytest.mark.brokers


@pytest.mark.parametrize("arrow", [False, True], ids=["json", "arrow"])
async def test_from_the_first_segments_on_everything_is_read_once_and_in_order(tmp_path: Path, arrow: bool) -> None:
    async with in_loop(tmp_path) as together, AsyncExitStack() as stack:
        await make(together.brokers[0], 2)
        clients = [await stack.enter_async_context(at(together, broker)) for broker in together.brokers]
        changed = asyncio.Event()
        following = Following(clients, arrow)
        async with beside(following.run(changed.is_set)):
            async with publishing(together, arrow) as published:
                await change_all(together)
                beside_changes = published.total
                await until(lambda: published.total > 500)
            changed.set()
        assert beside_changes > 100, "changes came beside publishes"
        assert len(records(together.brokers[0])) > 10
        check_all_once_in_order(following.rows, published.taken)
        late = Following(clients, arrow)
        await late.run(lambda: True)
        assert sorted(late.rows) == sorted(following.rows)


@pytest.mark.parametrize("owner", [0, 1])
@pytest.mark.parametrize("arrow", [False, True], ids=["json", "arrow"])
async def test_a_wait_ends_when_the_segment_is_sealed(tmp_path: Path, owner: int, arrow: bool) -> None:
    async with in_loop(tmp_path) as together:
        one = together.brokers[0]
        await make(one)
        async with at(together, together.brokers[owner]) as http:
            assert (await http.post(f"{TOPIC}/messages", json={"value": 1})).status_code == 200
            accept = {"accept": ARROW} if arrow else {}
            path = f"{TOPIC}/segments/0/messages?offset=1&wait_s=30"
            waiting = asyncio.create_task(http.get(path, headers=accept))
            done, _ = await asyncio.wait([waiting], timeout=0.3)
            assert not done
            successors = await replace(together, [0], 2)
            answer = await asyncio.wait_for(waiting, 15)
            assert answer.status_code == 200, answer.text
            if arrow:
                assert pa.ipc.open_stream(answer.content).read_all().num_rows == 0
                assert answer.headers["sealed"] == "true"
                assert answer.headers["successors"] == ",".join(map(str, successors))
                assert answer.headers["next-offset"] == "1"
            else:
                page = {"messages": [], "next_offset": 1, "sealed": True, "successors": successors}
                assert answer.json() == page


async def test_a_sealed_segment_says_so_at_every_offset_and_every_broker(tmp_path: Path) -> None:
    async with in_loop(tmp_path) as together:
        await make(together.brokers[0])
        async with at(together, together.brokers[0]) as http:
            messages = {"messages": [{"value": n} for n in range(5)]}
            assert (await http.post(f"{TOPIC}/messages", json=messages)).status_code == 200
            opened = await http.get(f"{TOPIC}/segments/0/messages", headers={"accept": ARROW})
            assert "sealed" not in opened.headers
        successors = await replace(together, [0], 3)
        for broker in together.brokers:
            async with at(together, broker) as http:
                for offset in range(6):
                    page = (await http.get(f"{TOPIC}/segments/0/messages?offset={offset}&limit=2&wait_s=20")).json()
                    assert page["sealed"] is True
                    assert page["successors"] == successors
                    assert page["next_offset"] == min(5, offset + 2)
                    assert [m["value"] for m in page["messages"]] == [*range(offset, min(5, offset + 2))]
                assert (await http.get(f"{TOPIC}/segments/0/messages?offset=6")).status_code == 416


async def test_who_has_lost_its_lease_tells_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others may have appended since; the broker learns of it a little later."""
    async with in_loop(tmp_path, 1, publish_timeout_s=1) as together:
        (broker,) = together.brokers
        await make(broker)
        async with at(together, broker) as http:
            beyond, resumed = f"{TOPIC}/segments/0/messages?offset=6", f"{TOPIC}/stream?start=0-6"
            assert [(await http.get(path)).status_code for path in (beyond, resumed)] == [416, 416]
            get = broker.process.coordination.get

            async def without_lease(key: str, *more: Any) -> Any:
                return None if key == keys.BROKERS.key(broker.id) else await get(key, *more)

            monkeypatch.setattr(broker.process.coordination, "get", without_lease)
            assert [(await http.get(path)).status_code for path in (beyond, resumed)] == [503, 503]


@pytest.mark.parametrize("target", [1, 2])
def test_what_is_left_of_a_wait_is_waited_when_the_segment_moves(tmp_path: Path, target: int) -> None:
    async def run() -> None:
        async with lives(tmp_path, 3, machine=simulated_machine(clock(), 1), lease_s=30) as together:
            one = together.brokers[0]
            topic = await make(one)
            async with together.client(together.brokers[1]) as http:
                waiting = asyncio.create_task(http.get(f"{TOPIC}/segments/0/messages?wait_s=2.5"))
                began_s = clock().time()
                await asyncio.sleep(2)
                assert await inside.mover(one).move(topic, 0, together.brokers[target].id)
                answer = await waiting
                assert answer.status_code == 200
                assert 2.4 < clock().time() - began_s < 2.8  # 4.5 where it waits anew

    simulate(run())


def pair(together: InLoop, name: str = "s") -> tuple[Broker, Broker]:
    """The broker that dispatches the subscription `s`, and another one, which is to own everything."""
    topic = inside.topic(together.brokers[0], "t")
    dispatcher = by_id(together, inside.assignment(together.brokers[0]).preferred(topic, name))
    return dispatcher, next(broker for broker in together.brokers if broker is not dispatcher)


async def given(together: InLoop, target: Broker) -> None:
    """Move all open segments to this broker; all brokers see that."""
    mine = target.id
    await until(lambda: all(inside.catalog(broker).get("t") for broker in together.brokers))
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
        assert len(await asyncio.wait_for(pulling, 15)) in (0, 40)
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
    async with in_loop(tmp_path, 3) as together, everywhere(together) as clients:
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

"""Where a subscription begins in a topic whose segments have given way to others, or do so while it is made."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from seaweedq.broker.topics.catalog import Catalog
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Delete, Put
from seaweedq.coordination.records import CursorRecord
from seaweedq.coordination.versioned import Versioned
from tests.support.brokers import inside
from tests.support.brokers.deaf import end_task
from tests.support.brokers.in_process import Gate
from tests.support.brokers.in_process_cluster import InLoop, in_loop, until
from tests.support.brokers.reshaped import (
    TOPIC,
    at,
    check_all_once_in_order,
    make,
    opened,
    publishing,
    records,
    replace,
)
from tests.support.brokers.subscribing import SUBSCRIPTION, consume, create, everywhere, lag, publish, pull

pytestmark = pytest.mark.brokers

Writes = Sequence[Put | Delete]


def before_the_first(together: InLoop, kind: str, work: Callable[[], Awaitable[Any]]) -> None:
    """Do this before the first write of that kind of key."""
    done = False

    async def before(writes: Writes) -> None:
        nonlocal done
        if not done and isinstance(writes[0], Put) and writes[0].key.startswith(kind):
            done = True
            await work()

    together.coordination.before = before


async def test_latest_begins_behind_all_that_is_there(tmp_path: Path) -> None:
    async with in_loop(tmp_path) as together, everywhere(together) as clients:
        one, two = together.brokers
        await make(one)
        await publish(clients[0], 0)
        await replace(together, await replace(together, [0], 2), 3, [one, two, one])
        await publish(clients[1], 1)
        await create(clients[1], "latest")
        assert await pull(clients[0]) == []
        assert sum(one["messages"] for one in await lag(clients[0])) == 0
        assert {one["segment"] for one in await lag(clients[0])} == set(opened(one))
        await publish(clients[0], 2)
        assert {n for _, _, _, n in await consume(clients, lambda: True)} == {2}


@pytest.mark.parametrize("creator", [0, 1])
async def test_latest_while_a_segment_gives_way_misses_no_publish_from_then_on(tmp_path: Path, creator: int) -> None:
    async with in_loop(tmp_path) as together, everywhere(together) as clients:
        await make(together.brokers[0])
        await publish(clients[0], 0)

        async def meanwhile() -> None:
            await publish(clients[0], 1)
            await replace(together, [0], 2, together.brokers)
            await publish(clients[1], 2)

        before_the_first(together, "cursors/", meanwhile)
        await create(clients[creator], "latest")
        await publish(clients[0], 3)
        rows = await consume(clients, lambda: True)
        for key in {key for _, _, key, _ in rows}:
            assert [n for _, _, of, n in rows if of == key] == [1, 2, 3]


@pytest.mark.parametrize("start", ["latest", "earliest"])
async def test_a_start_amid_changes_has_no_hole_in_any_key(tmp_path: Path, start: str) -> None:
    """Whatever of a key comes is all from one message on."""
    async with in_loop(tmp_path) as together, everywhere(together) as clients:
        one = together.brokers[0]
        await make(one, 2)
        async with publishing(together) as published:
            for n in range(5):
                made = asyncio.create_task(create(clients[n % 2], start))
                await replace(together, opened(one)[n % 2 : n % 2 + 1 + n % 2], 1 + n % 3, together.brokers)
                await made
                at_least = dict(published.taken)
                await asyncio.sleep(0.02)
                taken = dict(published.taken)
                rows = await consume(clients, lambda: True)
                for key, end in taken.items():
                    found = [m for _, _, of, m in rows if of == key]
                    assert found == [*range(found[0], found[-1] + 1)] if found else start == "latest"
                    first = 0 if start == "earliest" else at_least.get(key, 0)  # 0: nothing of it was published yet
                    assert {*found} >= {*range(first, end)}
                assert (await clients[0].delete(SUBSCRIPTION)).status_code == 204


async def test_a_time_is_looked_for_in_every_segment(tmp_path: Path) -> None:
    async with in_loop(tmp_path) as together, everywhere(together) as clients:
        one, two = together.brokers
        await make(one)

        async def publish_at(n: int, minute: int) -> None:
            messages = [{"key": f"k{k}", "value": n, "timestamp": f"2020-01-01T00:{minute:02}:00Z"} for k in range(20)]
            answer = await clients[0].post(f"{TOPIC}/messages", json={"messages": messages})
            assert answer.status_code == 200

        await publish_at(0, 10)
        first = await replace(together, [0], 2, [one, two])
        await publish_at(1, 20)
        await publish_at(2, 30)
        await replace(together, first, 1, [two])
        await publish_at(3, 5)  # a straggler: it comes behind what has reached the time, so it counts
        await publish_at(4, 40)
        for minute, expected in [(1, 0), (15, 1), (30, 2), (31, 4), (50, 5)]:
            await create(clients[1], {"timestamp": f"2020-01-01T00:{minute:02}:00Z"})
            rows = await consume(clients, lambda: True)
            assert {n for _, _, _, n in rows} == {*range(expected, 5)}
            assert len(rows) == 20 * (5 - expected)
            assert (await clients[0].delete(SUBSCRIPTION)).status_code == 204


async def test_a_creation_that_was_cut_off_leaves_no_cursor_behind(tmp_path: Path) -> None:
    """A dead broker that had begun the subscription knew of segments that its next creator has not heard of."""
    async with in_loop(tmp_path) as together, everywhere(together) as clients:
        one = together.brokers[0]
        topic = await make(one)
        await publish(clients[0], 0)
        stopped = Gate()
        before_the_first(together, "cursors/", stopped)
        made = asyncio.create_task(create(clients[0], "latest"))
        await stopped.reached.wait()
        made.cancel()
        await asyncio.wait([made])
        left = keys.CURSORS.key("t", topic.record.incarnation, "s", 1)
        await together.coordination.commit([], [Put(left, keys.CURSORS.encode(Versioned.new(CursorRecord(0, 7))))])
        dispatcher = next(b for b in together.brokers if b.id == inside.assignment(b).preferred(topic, "s"))
        async with at(together, dispatcher) as http:
            await create(http)
        await replace(together, [0], 1)
        await publish(clients[0], 1)
        assert len(await consume(clients, lambda: True)) == 80


@pytest.mark.parametrize("read_before", [False, True])
async def test_a_broker_whose_watch_is_behind_reads_what_the_others_read(
    tmp_path: Path, read_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its dispatcher's long poll at the segment's owner hears of the seal, too, and has the record read again: not
    before the others have gone on."""
    async with in_loop(tmp_path) as together, everywhere(together) as clients:
        one, two = together.brokers
        topic = await make(one)
        deaf, hears = (one, two) if inside.assignment(one).preferred(topic, "s") == one.id else (two, one)
        if records(one)[0].owner == deaf.id:
            await inside.mover(deaf).move(inside.topic(deaf, "t"), 0, hears.id)
        await create(clients[0])
        await publish(clients[1], 0)
        await end_task(deaf, "catalog")
        look, gone_on = Catalog.look, asyncio.Event()

        async def late(catalog: Catalog, name: str, segment: int | None = None) -> None:
            if catalog is inside.catalog(deaf) and segment == 0:
                await gone_on.wait()
            await look(catalog, name, segment)

        monkeypatch.setattr(Catalog, "look", late)
        async with at(together, hears) as near, at(together, deaf) as far:
            before = await consume([far], lambda: True) if read_before else []
            await inside.planner(hears).plan(inside.topic(hears, "t"), [0], [1_000_000_000], [hears.id, deaf.id])
            await until(lambda: records(hears)[0].state == "sealed")
            await publish(near, 1)
            assert records(deaf)[0].state == "open"
            gone_on.set()
            rows = await consume([far], lambda: True)
            assert inside.dispatcher(deaf).names()
            check_all_once_in_order([*before, *rows], {key: 2 for _, _, key, _ in [*before, *rows]})
            await _same_answers(near, far)


@pytest.mark.parametrize("first", [f"{TOPIC}/segments/1/messages", f"{TOPIC}/segments", TOPIC])
async def test_whatever_is_asked_first_of_a_broker_that_is_behind_is_answered(tmp_path: Path, first: str) -> None:
    async with in_loop(tmp_path) as together:
        hears, deaf = together.brokers
        topic = await make(hears)
        async with at(together, hears) as near, at(together, deaf) as far:
            await publish(near, 0)
            await end_task(deaf, "catalog")
            await inside.planner(hears).plan(topic, [0], [1_000_000_000])
            await until(lambda: records(hears)[0].state == "sealed")
            await publish(near, 1)
            there, here = await near.get(first), await far.get(first)
            assert here.status_code == 200, here.text
            assert {**here.json(), "path": "", "now": ""} == {**there.json(), "path": "", "now": ""}
            await _same_answers(near, far)


async def _same_answers(near: httpx.AsyncClient, far: httpx.AsyncClient) -> None:
    for path in (
        f"{TOPIC}/segments/1/messages",
        f"{TOPIC}/segments/2/messages",
        f"{TOPIC}/segments/0/messages",
        f"{TOPIC}/segments",
        TOPIC,
    ):
        there, here = await near.get(path), await far.get(path)
        assert here.status_code == 200, here.text
        assert {**here.json(), "path": "", "now": ""} == {**there.json(), "path": "", "now": ""}

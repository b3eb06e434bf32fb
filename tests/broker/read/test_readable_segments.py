"""Readers of segments: thousands that must know an owner's ends now share a few calls; below a segment's start fetches
are told so, subscriptions move up, and names before the start do not count.
"""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from seaweedq.broker.read.readable_segments import ReadableSegments
from seaweedq.errors import ChainDamaged
from seaweedq.segments.chain import Chain
from seaweedq.segments.entry import EntryName
from tests.support.brokers import inside
from tests.support.brokers.in_process import Gate
from tests.support.brokers.in_process_cluster import InLoop, in_loop, until
from tests.support.brokers.reshaped import TOPIC, at, by_id, make, replace
from tests.support.brokers.reshaped import records as topic_records
from tests.support.brokers.retained import delete_before, fill, raise_start, see_start

pytestmark = pytest.mark.brokers


async def test_readers_who_ask_at_once_share_a_call_that_begins_after_they_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_loop(tmp_path) as together:
        topic = await make(together.brokers[0])
        await until(lambda: all(inside.catalog(one).get("t") for one in together.brokers))
        owner = by_id(together, topic_records(together.brokers[0])[0].owner)
        (other,) = [one for one in together.brokers if one is not owner]
        there = inside.topic(other, "t")
        await until(lambda: 0 in inside.catalog(other).records(there))
        readables, calls, gate = inside.readables(other), 0, Gate()
        ends = ReadableSegments._ends

        async def counted(self: ReadableSegments, *arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            await gate()
            return await ends(self, *arguments)

        monkeypatch.setattr(ReadableSegments, "_ends", counted)
        first = asyncio.create_task(readables.refresh(there, [0]))
        await gate.reached.wait()
        others = [asyncio.create_task(readables.refresh(there, [0])) for _ in range(100)]
        await asyncio.sleep(0.05)
        assert calls == 1
        others[0].cancel()
        gate.open.set()
        assert await first == {0}
        assert await asyncio.gather(*others[1:]) == [{0}] * 99
        assert calls == 2, "one for all who asked while the first was under way"
        assert topic.name == "t"


async def test_a_request_that_outlives_its_broker_begins_no_long_poll(tmp_path: Path) -> None:
    async with in_loop(tmp_path) as together:
        await make(together.brokers[0])
        await until(lambda: all(inside.catalog(one).get("t") for one in together.brokers))
        owner = by_id(together, topic_records(together.brokers[0])[0].owner)
        (other,) = [one for one in together.brokers if one is not owner]
        there = inside.topic(other, "t")
        await until(lambda: 0 in inside.catalog(other).records(there))
        inside.readables(other).close()
        await inside.readables(other).available(there, [0])
        assert [task for task in asyncio.all_tasks() if task.get_name().startswith("reading at")] == []


S = f"{TOPIC}/subscriptions/s"


async def fetched(http: httpx.AsyncClient, offset: int) -> list[Any]:
    answer = await http.get(f"{TOPIC}/segments/0/messages?offset={offset}")
    assert answer.status_code == 200, answer.text
    return [each["value"] for each in answer.json()["messages"]]


async def refused(http: httpx.AsyncClient, offset: int, start: int) -> None:
    answer = await http.get(f"{TOPIC}/segments/0/messages?offset={offset}")
    assert answer.status_code == 410, answer.text
    found = answer.json()
    assert (found["type"], found["offset"], found["start_offset"]) == ("/problems/below-retention", offset, start)


async def begin(together: InLoop) -> None:
    await make(together.brokers[0])
    await fill(together.brokers[0])


async def start_at(together: InLoop, sequence: int, offset: int, delete: bool) -> None:
    await raise_start(together.coordination, sequence, offset)
    await see_start(offset, *together.brokers)
    if delete:
        await delete_before(together.store, sequence)


@pytest.mark.parametrize("deleted", [False, True], ids=["in the grace", "deleted"])
async def test_a_fetch_below_the_start_is_told_where_it_is(tmp_path: Path, deleted: bool) -> None:
    async with in_loop(tmp_path) as together:
        await begin(together)
        await start_at(together, 3, 4, deleted)
        for broker in together.brokers:
            async with at(together, broker) as http:
                for offset in range(4):
                    await refused(http, offset, 4)
                assert await fetched(http, 4) == [4, 5]
                (shown,) = (await http.get(f"{TOPIC}/segments")).json()["segments"]
                assert (shown["start_offset"], shown["end_offset"]) == (4, 6)
                assert shown["start_file"] == "00000003-0000000000000004.parquet"
                assert (await http.get(TOPIC)).json()["start_offsets"] == {"0": 4}


async def test_a_sealed_segment_is_read_from_its_start_on_at_every_broker(tmp_path: Path) -> None:
    async with in_loop(tmp_path) as together:
        await begin(together)
        await replace(together, [0], 2)
        await start_at(together, 2, 2, delete=True)
        for broker in together.brokers:
            async with at(together, broker) as http:
                await refused(http, 1, 2)
                assert await fetched(http, 2) == [2, 3, 4, 5]


async def test_a_life_that_begins_behind_the_deletion_knows_the_start(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 1) as together:
        await begin(together)
        await start_at(together, 3, 4, delete=True)
        before = together.brokers.pop()
        await before.stop()
        del together.apps[before.process.url]
        after = await together.begin_again(before)
        async with at(together, after) as http:
            await refused(http, 3, 4)
            assert await fetched(http, 4) == [4, 5]
            await fill(after, 1)
            assert await fetched(http, 5) == [5, 0, 1]
        await after.stop()


async def test_first_files_gone_without_a_start_are_damage_that_names_them(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 1) as together:
        await begin(together)
        await replace(together, [0])
        await delete_before(together.store, 3)
        inside.topic(together.brokers[0], "t").opened.clear()
        async with at(together, together.brokers[0]) as http:
            answer = await http.get(f"{TOPIC}/segments/0/messages?offset=1")
            assert answer.status_code == 500
            assert "contains offset 1" in answer.json()["detail"]
            assert await fetched(http, 4) == [4, 5]


async def test_a_subscription_moves_up_and_counts_what_it_never_got(tmp_path: Path) -> None:
    async with in_loop(tmp_path) as together:
        await begin(together)
        one = together.brokers[0]
        async with at(together, one) as http:
            assert (await http.put(S, json={"start": "earliest"})).status_code == 201
            pulled = (await http.post(f"{S}/pull", json={"max_messages": 2})).json()["messages"]
            assert (await http.post(f"{S}/ack", json={"ids": [pulled[0]["id"]]})).status_code == 200
            await start_at(together, 3, 4, delete=True)
            (lag,) = (await http.get(S)).json()["lag"]
            assert (lag["acked_to"], lag["messages"]) == (4, 2)
            pulled = (await http.post(f"{S}/pull", json={"max_messages": 9})).json()["messages"]
            assert [each["value"] for each in pulled] == [4, 5]
        found = [inside.dispatcher(b) for b in together.brokers]
        opened = [s for dispatcher in found for s in dispatcher.subscriptions()]
        assert [dict(each.skipped) for each in opened] == [{0: 3}]


async def test_a_pull_moves_up_where_nobody_has_asked_for_the_lag(tmp_path: Path) -> None:
    async with in_loop(tmp_path) as together:
        await begin(together)
        async with at(together, together.brokers[1]) as http:
            assert (await http.put(S, json={"start": "earliest"})).status_code == 201
            await start_at(together, 2, 2, delete=True)
            pulled = (await http.post(f"{S}/pull", json={"max_messages": 9})).json()["messages"]
            assert [each["value"] for each in pulled] == [2, 3, 4, 5]
            assert (await http.post(f"{S}/ack", json={"ids": [m["id"] for m in pulled]})).status_code == 200
            assert (await http.get(S)).json()["lag"][0]["messages"] == 0


@pytest.mark.parametrize("start", ["earliest", {"timestamp": "1970-01-01T00:00:00Z"}], ids=["earliest", "time"])
async def test_a_new_subscription_begins_at_the_start(tmp_path: Path, start: Any) -> None:
    async with in_loop(tmp_path) as together:
        await begin(together)
        await start_at(together, 3, 4, delete=True)
        async with at(together, together.brokers[0]) as http:
            answer = await http.put(S, json={"start": start})
            assert answer.status_code == 201, answer.text
            assert answer.json()["lag"][0]["acked_to"] == 4
            pulled = (await http.post(f"{S}/pull", json={"max_messages": 9})).json()["messages"]
            assert [each["value"] for each in pulled] == [4, 5]


async def test_names_before_the_start_do_not_count_even_if_a_late_put_brings_one(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 1) as together:
        await begin(together)
        await raise_start(together.coordination, 3, 4)
        doomed = await delete_before(together.store, 3)
        name = sorted(doomed)[1]
        await together.store.create(name, doomed[name])
        chain = Chain(together.store, "t", 0)
        await chain.open()
        with pytest.raises(ChainDamaged):
            await chain.names()
        chain.raise_start(EntryName(3, 4))
        await chain.open()
        assert [each.sequence for each in await chain.names()] == [3]
        await see_start(4, together.brokers[0])
        async with at(together, together.brokers[0]) as http:
            await refused(http, 0, 4)
            await fill(together.brokers[0], 1)
            assert await fetched(http, 4) == [4, 5, 0, 1]

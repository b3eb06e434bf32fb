"""Retention while segments give way to others, while lives end as by SIGKILL, and while a subscription reads."""

import asyncio
from pathlib import Path

import pytest

from seaweedq.coordination.election import Election
from seaweedq.errors import SeaweedqError
from seaweedq.failpoints import using
from tests.broker.retention.test_rounds import Crash, CrashAt, crashed, crashes
from tests.support.brokers import inside
from tests.support.brokers.in_process import publish
from tests.support.brokers.in_process_cluster import until
from tests.support.brokers.reshaped import opened, replace
from tests.support.brokers.retained import RetainedWorld, fill, retained
from tests.support.tiers import later

pytestmark = pytest.mark.brokers

T, S = "/v1/topics/t", "/v1/topics/t/subscriptions/s"


async def check_readable(world: RetainedWorld) -> dict[int, int]:
    """Each segment's first file that counts is there, and all rows from its start on can be read. Returns how many
    rows each has."""
    catalog = inside.catalog(world.broker)
    topic = catalog.topic("t")
    positions = await inside.positions(world.broker).positions(topic)
    found = {}
    async with world.http() as http:
        for number, position in positions.items():
            start, files = catalog.start(topic, number), await world.sequences(number)
            assert not files or start.sequence in files
            answer = await http.get(f"{T}/segments/{number}/messages?offset={start.first_offset}")
            assert answer.status_code == 200, answer.text
            found[number] = len(answer.json()["messages"])
            assert found[number] == position.end - start.first_offset
    return found


@pytest.mark.parametrize("parts", [2, later(1)], ids=["split", "merge"])
async def test_rounds_beside_a_split_and_a_merge_keep_what_counts(tmp_path: Path, parts: int) -> None:
    async with retained(tmp_path) as world:
        await world.policy(max_bytes=1, grace_s=60)
        if parts == 1:
            await replace(world.together, [0], 2)
        before = opened(world.broker)

        async def rounds() -> None:
            while True:
                await world.retention.round()
                world.pass_time(100)
                await asyncio.sleep(0)

        beside = asyncio.create_task(rounds())
        await replace(world.together, before, parts)
        await fill(world.broker)
        beside.cancel()
        with pytest.raises(asyncio.CancelledError):
            await beside
        for _ in range(3):
            world.pass_time(200)
            await world.retention.round()
        for number in opened(world.broker):
            assert len(await world.sequences(number)) <= 1, "what is due has gone, but for the newest"
        await check_readable(world)
        for number in before:
            assert not await world.sequences(number), "a seal goes once its successors have entries"
            assert number not in inside.catalog(world.broker).records(inside.topic(world.broker, "t"))
        inside.topic(world.broker, "t").opened.clear()
        await check_readable(world)


@pytest.mark.long
async def test_the_life_after_a_crash_anywhere_goes_on_with_the_round(tmp_path: Path) -> None:
    async with retained(tmp_path, retention_grace_s=60) as world:
        await world.policy(max_bytes=1)
        for place, times in crashes():
            await fill(world.broker, 2)
            end = inside.topic(world.broker, "t").opened[0].end
            crash = CrashAt(place, times)
            for _ in range(3):
                world.pass_time(200)
                if await crashed(world, crash):
                    dead = world.broker
                    await world.together.crash(dead)
                    await world.together.begin_again(dead)
                    await until(lambda: inside.election(world.broker).is_leader)
                    await inside.positions(world.broker).positions(inside.topic(world.broker, "t"))
            assert crash.left <= 0 or times > 1, place
            assert sum((await check_readable(world)).values()) == end - world.start
            assert (world.start, len(await world.sequences())) == (end - 2, 1), place
        await world.broker.stop()


async def test_a_leader_that_lost_the_lead_raises_nothing_more(tmp_path: Path) -> None:
    async with retained(tmp_path) as world:
        await world.policy(max_bytes=1)

        def lose(place: str) -> None:
            if place == "retention.raise":
                patched.setattr(Election, "is_leader", False)
                raise Crash

        with pytest.MonkeyPatch.context() as patched, using(lose):
            with pytest.raises(Crash):
                await world.retention.round()
            with pytest.raises(SeaweedqError):
                await world.retention.round()
        assert world.start == 0


async def test_a_subscription_moves_up_with_the_start_and_counts(tmp_path: Path) -> None:
    async with retained(tmp_path) as world, world.http() as http:
        assert (await http.put(S, json={"start": "earliest"})).status_code == 201
        await world.policy(max_bytes=1, grace_s=60)
        got: list[int] = []
        for at in range(4):
            pulled = (await http.post(f"{S}/pull", json={"max_messages": 3})).json()["messages"]
            got += [each["offset"] for each in pulled]
            await fill(world.broker, 3)
            await world.retention.round()  # while they are leased
            world.pass_time(200)
            answer = await http.post(f"{S}/ack", json={"ids": [each["id"] for each in pulled]})
            assert answer.status_code == 200, answer.text
            await world.retention.round()
            assert len(pulled) == 3 or at, "the first pull reads what was there"
        rest = (await http.post(f"{S}/pull", json={"max_messages": 100})).json()["messages"]
        got += [each["offset"] for each in rest]
        end = inside.topic(world.broker, "t").opened[0].end
        shown = (await http.get(S)).json()
        assert got == sorted(set(got)), "nothing came twice, or out of order"
        assert got[-1] == end - 1
        skipped = shown["lag_total"]["skipped"]
        assert 0 < skipped <= end - len(got) + 3 * 4, "what was leased and not acked in time counts, too"
        assert len(got) + skipped >= end, "what never came was counted"
        await publish(world.broker, inside.topic(world.broker, "t"), "7")
        assert len((await http.post(f"{S}/pull", json={"max_messages": 9})).json()["messages"]) == 1

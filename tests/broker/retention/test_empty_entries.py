"""Idle segments: each gets a frame in the journal, then an entry without rows, and retention takes the one before."""

import asyncio
from pathlib import Path

import pytest

from seaweedq.broker.broker import Broker
from seaweedq.checks import using
from seaweedq.segments.entry import EntryName, segment_folder
from tests.broker.retention.test_rounds import Crash, CrashAt, values
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import in_loop, until
from tests.support.brokers.reshaped import at, by_id, make, records, replace
from tests.support.brokers.retained import RetainedWorld, fill, retained
from tests.support.tiers import later

pytestmark = pytest.mark.brokers

DAY_S, HOUR_S = 86_400, 3_600
T = "/v1/topics/t"


async def publish(world: RetainedWorld, sequence: int) -> str:
    headers = {"Producer-Id": "p", "Producer-Sequence": str(sequence)}
    async with world.http() as http:
        answer = await http.post(f"{T}/messages", json={"value": sequence}, headers=headers)
        assert answer.status_code == 200, answer.text
        found: str = answer.json()["ids"][0]
        return found


async def mark(world: RetainedWorld) -> None:
    await inside.empty_entries(world.broker).append(inside.topic(world.broker, "t"), [0])


async def abandon(world: RetainedWorld, starting: Broker) -> None:
    """End one that has crashed while it started."""
    ended = [*privates.end_tasks(starting), privates.renewal(inside.membership(starting))]
    for task in filter(None, ended):
        task.cancel()
    await asyncio.gather(*filter(None, ended), return_exceptions=True)
    starting.process.journals.home.release()
    await world.together.coordination.leases.revoke(inside.membership(starting).lease)


@pytest.mark.parametrize("policy", [{"max_bytes": 1}, later({"max_age_s": 60}), later({"max_age_s": DAY_S})], ids=str)
async def test_all_rows_of_an_idle_segment_go_in_the_end(tmp_path: Path, policy: dict[str, int]) -> None:
    async with retained(tmp_path) as world:
        assert await publish(world, 0) == "0-6"
        await fill(world.broker, 1)
        await world.policy(**policy)
        for _ in range(4):
            world.pass_time(200)
            await world.retention.round()
        assert world.start < 9, "the newest file of a segment that is not idle stays"
        world.pass_time(DAY_S)
        for _ in range(3):
            await world.retention.round()
            world.pass_time(HOUR_S + 130)
        assert (world.start, len(await world.sequences())) == (9, 1)
        assert await values(world, 9) == []
        world.broker.process.store.requests.clear()
        for _ in range(3):
            world.pass_time(DAY_S)
            await world.retention.round()
        assert not world.broker.process.store.requests, "an entry without rows stays, and costs nothing"
        assert await publish(world, 0) == "0-6", "its producers are known"
        assert await publish(world, 1) == "0-9"
        await fill(world.broker, 1)
        assert await values(world, 9) == [1, 0, 1]


PLACES = ["mark.durable", later("entry.append"), later("entry.appended")]


@pytest.mark.parametrize("journal", ["file", "object"])
@pytest.mark.parametrize("place", PLACES)
async def test_a_crash_behind_a_mark_leaves_one_entry_to_the_recovery(tmp_path: Path, journal: str, place: str) -> None:
    async with retained(tmp_path, journal=journal) as world:
        await publish(world, 0)
        await fill(world.broker, 1)
        crash = CrashAt("", 1)
        crash.place = place
        with using(crash), pytest.raises(Crash):
            await mark(world)
        before = await world.sequences()
        dead = world.broker
        await world.together.crash(dead)
        crash = CrashAt("", 1)
        crash.place = "recover.mark"
        if journal == "object":  # its leader recovers beside its start, and tries again
            with using(crash):
                await world.together.begin_again(dead)
                await until(lambda: crash.left == 0 or len(before) > 5)
        else:
            if len(before) == 5:
                with using(crash), pytest.raises(Crash):
                    await world.together.begin_again(dead)
                await abandon(world, world.together.brokers.pop())
            await world.together.begin_again(dead)
        await until(
            lambda: records(world.broker)[0].owner == world.broker.id and inside.election(world.broker).is_leader
        )
        assert await values(world, 0) == [0, 1, 2, 3, 4, 5, 0, 0, 1]
        assert await world.sequences() == [0, 1, 2, 3, 4, 5], "one entry, and no more"
        assert await publish(world, 0) == "0-6"
        assert await publish(world, 1) == "0-9"
        await fill(world.broker, 1)
        assert await values(world, 5) == [5, 0, 0, 1, 1, 0, 1], "rows behind an entry without any"
        await world.broker.stop()


async def test_a_mark_pins_its_frame_until_an_entry_has_its_sequence(tmp_path: Path) -> None:
    async with retained(tmp_path) as world:
        segment = inside.topic(world.broker, "t").opened[0]
        with using(CrashAt("", 1)):
            await mark(world)
        assert (segment.empty_entry, segment.pin) == (None, None)
        assert await world.sequences() == [0, 1, 2, 3, 4]
        segment.owe_entry(segment.chain.next.sequence - 1, 7)
        assert segment.pin is None, "it is done already"
        segment.owe_entry(segment.chain.next.sequence, 7)
        assert segment.pin == 7
        await fill(world.broker, 1)
        assert segment.pin is None, "rows do as well"
        assert 5 in await world.sequences()


async def test_owners_elsewhere_are_asked_a_marked_segment_moves_and_is_sealed(tmp_path: Path) -> None:
    async with in_loop(tmp_path) as together:
        one, two = together.brokers
        topic = await make(one)
        await fill(one)
        owner = by_id(together, records(one)[0].owner)
        other = two if owner is one else one
        there = inside.topic(other, "t")
        await inside.empty_entries(other).append(there, [0])
        folder = segment_folder("t", 0)
        assert [EntryName.parse(name).sequence for name in await together.store.list(folder)] == [0, 1, 2, 3, 4]
        assert await inside.mover(owner).move(inside.topic(owner, "t"), 0, other.id)
        await until(lambda: all(records(b)[0].owner == other.id for b in together.brokers))
        await inside.empty_entries(one).append(topic, [0])
        await replace(together, [0], 2)
        listed = [EntryName.parse(name) for name in await together.store.list(folder)]
        assert [name.sequence for name in listed] == [0, 1, 2, 3, 4, 5, 6]
        assert {name.first_offset for name in listed[4:]} == {6}
        async with at(together, one) as http:
            answer = await http.get(f"{T}/segments/0/messages?offset=0&limit=100")
            assert [each["value"] for each in answer.json()["messages"]] == [0, 1, 2, 3, 4, 5]

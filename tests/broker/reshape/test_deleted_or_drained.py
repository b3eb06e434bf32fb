"""A topic that is deleted, and an owner that leaves, in the middle of a split or a merge."""

import asyncio
from pathlib import Path

import pytest

from seaweedq.broker.broker import Broker
from seaweedq.coordination.records import TopicConfig
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.in_process import Gate
from tests.support.brokers.in_process_cluster import until
from tests.support.reshape.scene import scene

# Who is killed between two steps leaves coroutines behind that never began.
pytestmark = [pytest.mark.brokers, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]


STEPS = ["_open", "_lock_and_commit", "seal", "_replace"]  # of the reshaper, each held up before it begins


def hold(broker: Broker, step: str) -> Gate:
    """The reshaper of this broker stands before a step until the gate is open."""
    acts = privates.sealer(inside.reshaper(broker)) if step == "seal" else privates.replacer(inside.reshaper(broker))
    gate, goes_on = Gate(), getattr(acts, step)

    async def held(*arguments: object) -> object:
        await gate()
        return await goes_on(*arguments)

    setattr(acts, step, held)
    return gate


async def reached(gate: Gate) -> None:
    async with asyncio.timeout(30):
        await gate.reached.wait()


@pytest.mark.parametrize("through", ["owner", "another"])
@pytest.mark.parametrize("step", STEPS)
async def test_a_topic_is_deleted_while_a_segment_gives_way(tmp_path: Path, step: str, through: str) -> None:
    """Nothing of it is left, nor comes back when the split goes on; a new topic of the name has ids of its own."""
    async with scene(tmp_path, 2) as here:
        owner = await here.gathered(2)
        await here.go()
        here.stopped = True
        await asyncio.gather(*here.going)
        gate = hold(owner, step)
        here.plan([0, 1], [5, 2**30])
        await reached(gate)
        asked = owner if through == "owner" else next(b for b in here.cluster.living if b is not owner)
        async with here.cluster.client(asked) as http:
            deleting = asyncio.create_task(http.delete("/v1/topics/t"))
            await until(lambda: (found := inside.catalog(asked).get("t")) is None or found.record.state == "deleting")
            gate.open.set()
            answer = await deleting
            assert answer.status_code == 204, answer.text
            await asyncio.sleep(0.3)
            assert not [name for name in here.cluster.store.objects if name.startswith("topics/t/")]
            assert await here.records() == {}
            assert (await http.put("/v1/topics/t", json={})).status_code == 201
            assert (await http.post("/v1/topics/t/messages", json={"value": 1})).status_code == 200
        (new,) = await here.records()
        assert new > 4, "ids that were planned are not used again"
        here.plan([new], [7])
        await here.until_sealed(new)


@pytest.mark.parametrize("step", STEPS)
async def test_a_topic_that_died_with_its_owner_can_be_deleted(tmp_path: Path, step: str) -> None:
    async with scene(tmp_path, 1) as here:
        owner = await here.owner(0)
        await here.go()
        here.stopped = True
        await asyncio.gather(*here.going)
        gate = hold(owner, step)
        here.plan([0], [5])
        await reached(gate)
        await here.crash(owner)
        async with here.cluster.client(here.cluster.living[0]) as http:
            assert (await http.delete("/v1/topics/t")).status_code == 204
        await asyncio.sleep(0.5)
        assert not [name for name in here.cluster.store.objects if name.startswith("topics/t/")]
        assert await here.records() == {}


@pytest.mark.parametrize("journal", ["file", "object"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("segments", [1, 2], ids=["split", "merge"])
async def test_an_owner_drains_while_its_segments_give_way(
    tmp_path: Path, step: str, segments: int, journal: str
) -> None:
    """It is gone in time, the change comes to an end or was undone, and every publish is answered."""
    async with scene(tmp_path, segments, journal=journal, publish_timeout_s=8) as here:
        owner = await here.gathered(segments)
        await here.go()
        gate = hold(owner, step)
        here.plan(range(segments), [2**30] if segments == 1 else [])
        await reached(gate)
        leaving = asyncio.create_task(here.cluster.leave(owner))
        await asyncio.sleep(0.1)
        gate.open.set()
        await leaving
        await here.more(20)
        await here.settle()
        here.stopped = True
        await asyncio.gather(*here.going)
        assert here.ledger.sent.keys() == here.ledger.ids.keys(), here.ledger.refused
        assert not here.ledger.strange
        await here.over()


async def test_a_segment_is_split_while_the_topic_is_made(tmp_path: Path) -> None:
    async with scene(tmp_path, 1) as here:
        broker = here.cluster.living[0]
        await inside.topic_admin(broker).create("other", TopicConfig(initial_segments=4))
        topic = inside.topic(broker, "other")
        async with asyncio.TaskGroup() as group:
            for number in range(4):
                group.create_task(inside.planner(broker).plan(topic, [number]))
        await until(lambda: sum(r.state == "sealed" for r in inside.catalog(broker).segments(topic).values()) == 4)
        assert sorted(inside.catalog(broker).segments(topic)) == list(range(8))

"""Plans that a move was first to undo, transactions whose answers are lost, and the death of the owner at each step, in
a file and in an object journal: nothing comes back that was undone, and nothing stays locked that is done.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from seaweedq.broker.broker import Broker
from seaweedq.broker.reshape.reshaper import Reshaper
from seaweedq.broker.topics.catalog import Topic
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Put
from seaweedq.coordination.memory import MemoryCoordination
from seaweedq.coordination.records import Intent, SegmentRecord, Successor, TopicConfig
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import CoordinationUnavailable
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.in_process import Gate, held, make_topic, publish, running
from tests.support.brokers.in_process_cluster import until
from tests.support.brokers.stored import record_of
from tests.support.reshape.lives import Lives, lives
from tests.support.reshape.scene import scene

# Who is killed between two steps leaves coroutines behind that never began.
pytestmark = [pytest.mark.brokers, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]


HALF = 2**30


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Lives]:
    async with lives(tmp_path, 2, publish_timeout_s=15) as made:
        yield made


async def make(cluster: Lives, segments: int = 1) -> tuple[Broker, Broker, Topic]:
    """The topic, all of whose segments are at the first broker that is given back, and both know it."""
    one, two = cluster.brokers
    await inside.topic_admin(one).create("t", TopicConfig(initial_segments=segments))
    topic, there = inside.topic(one, "t"), await inside.catalog(two).require("t")
    for number, record in inside.catalog(two).segments(there).items():
        if record.owner == two.id:
            assert await inside.mover(two).move(there, number, one.id)
    await until(lambda: all(r.owner == one.id for r in inside.catalog(one).segments(topic).values()))
    return one, two, topic


async def truth(cluster: Lives) -> dict[int, SegmentRecord]:
    """The records as coordination has them."""
    page = await cluster.coordination.range("segments/t/", limit=100)
    return {keys.SEGMENTS.parse(e.key)[2]: record_of(keys.SEGMENTS, e.value) for e in page.entries}


def lose(cluster: Lives, about: Callable[[SegmentRecord], bool], happens: bool, times: int = 1) -> None:
    """The answers to the next transactions that write such a record are lost."""
    left = times

    async def lost(writes: Any) -> None:
        nonlocal left
        put = [record_of(keys.SEGMENTS, w.value) for w in writes if w.key.startswith("segments/t/")]
        if left and any(map(about, put)):
            left -= 1
            raise CoordinationUnavailable("lost")

    if happens:
        cluster.coordination.after = lost
    else:
        cluster.coordination.before = lost


def is_planned(record: SegmentRecord) -> bool:
    return record.intent is not None and record.intent.state == "planned"


def is_committed(record: SegmentRecord) -> bool:
    return record.intent is not None and record.intent.state == "committed"


def is_sealed(record: SegmentRecord) -> bool:
    return record.state == "sealed"


async def done(cluster: Lives, sealed: int) -> None:
    """That many segments are sealed, and nothing is under way."""
    for _ in range(400):
        records = await truth(cluster)
        if sum(map(is_sealed, records.values())) == sealed and not any(r.intent for r in records.values()):
            return
        await asyncio.sleep(0.02)
    raise AssertionError(await truth(cluster))


async def read(cluster: Lives, broker: Broker, segment: int) -> Any:
    async with cluster.client(broker) as http:
        answer = await http.get(f"/v1/topics/t/segments/{segment}/messages?offset=0")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def planned_and_held(owner: Broker, topic: Topic) -> Gate:
    """The owner has a plan for both segments, and waits before it commits it until the gate is open."""
    replacer, gate = privates.replacer(inside.reshaper(owner)), Gate()
    opens = privates.open(replacer)

    async def slow(*arguments: Any) -> Any:
        found = await opens(*arguments)
        await gate()
        return found

    replacer._open = slow  # type: ignore[method-assign]
    await inside.planner(owner).plan(topic, [0, 1])
    async with asyncio.timeout(30):
        await gate.reached.wait()
    return gate


@pytest.mark.parametrize("moved", [0, 1])
async def test_a_plan_that_a_move_has_undone_is_not_committed(cluster: Lives, moved: int) -> None:
    """The owner is still flushing ahead when a move of one of the segments goes through."""
    one, two, topic = await make(cluster, 2)
    await publish(one, topic, "1", "2", "3", "4", "5")
    gate = await planned_and_held(one, topic)
    assert await inside.mover(one).move(topic, moved, two.id)
    records = await truth(cluster)
    assert not any(record.intent for record in records.values())
    gate.open.set()
    await asyncio.sleep(0.3)
    assert await truth(cluster) == records, "what was undone has come back"
    await until(lambda: not inside.ownership(one).locks.locked())
    await publish(one, topic, "6", "7", "8", "9", "10")


@pytest.mark.parametrize("happens", [True, False])
@pytest.mark.parametrize("about", [is_committed, is_sealed])
async def test_an_answer_that_is_lost(cluster: Lives, about: Callable[[SegmentRecord], bool], happens: bool) -> None:
    one, two, topic = await make(cluster)
    await publish(one, topic, "1", "2", "3")
    lose(cluster, about, happens)
    await inside.planner(one).plan(topic, [0], [HALF])
    await done(cluster, sealed=1)
    await publish(one, topic, "4", "5")
    await asyncio.sleep(1.2)  # it looks once a second
    for broker in (one, two):
        page = await read(cluster, broker, 0)
        assert [message["value"] for message in page["messages"]] == [1, 2, 3]
        assert (page["sealed"], page["successors"]) == (True, [1, 2])
    await until(lambda: not inside.ownership(one).locks.locked())
    assert not inside.ownership(one).locks.locked()
    await inside.planner(one).plan(topic, [1])
    await done(cluster, sealed=2)


async def test_a_plan_whose_answer_is_lost_stands(cluster: Lives) -> None:
    one, _, topic = await make(cluster)
    lose(cluster, is_planned, happens=True)
    with pytest.raises(CoordinationUnavailable):
        await inside.planner(one).plan(topic, [0], [HALF])
    await done(cluster, sealed=1)
    assert sorted(await truth(cluster)) == [0, 1, 2]


async def test_a_plan_that_was_not_written_uses_up_no_ids(cluster: Lives) -> None:
    one, _, topic = await make(cluster)
    lose(cluster, is_planned, happens=False)
    with pytest.raises(CoordinationUnavailable):
        await inside.planner(one).plan(topic, [0], [HALF])
    await inside.planner(one).plan(topic, [0])
    await done(cluster, sealed=1)
    assert sorted(await truth(cluster)) == [0, 1]


@pytest.mark.parametrize("happens", [True, False])
async def test_the_answer_to_a_move_that_undoes_a_plan_is_lost(cluster: Lives, happens: bool) -> None:
    """Whichever comes to pass, the move or the plan, the other one does not."""
    one, two, topic = await make(cluster, 2)
    await publish(one, topic, "1", "2", "3")
    gate = await planned_and_held(one, topic)
    theirs = two.id
    lose(cluster, lambda record: record.owner == theirs, happens)
    assert await inside.mover(one).move(topic, 0, theirs) == happens
    gate.open.set()
    if happens:
        await asyncio.sleep(0.3)
        records = await truth(cluster)
        assert [(r.owner, r.intent) for r in records.values()] == [(theirs, None), (one.id, None)]
    else:
        await done(cluster, sealed=2)
    await publish(one, topic, "4", "5", "6", "7")
    await until(lambda: not inside.ownership(one).locks.locked())


@pytest.mark.parametrize("happens", [True, False])
async def test_the_answer_is_lost_when_a_committed_merge_comes_together(cluster: Lives, happens: bool) -> None:
    """Recovery has handed the two segments to different brokers: the second one is given to the owner of the first."""
    one, two, topic = await make(cluster, 2)
    mine, theirs = one.id, two.id
    await publish(one, topic, "1", "2", "3", "4")
    assert await inside.mover(one).move(topic, 1, theirs)
    records = inside.catalog(one).records(topic)
    first = 2
    half, whole = records[0].record.high, records[1].record.high
    intent = Intent(first, "committed", (0, 1), (Successor(2, 0, half + 9), Successor(3, half + 9, whole)))
    lose(cluster, lambda record: is_committed(record) and record.owner == mine, happens)
    cluster.coordination.after, after = nothing, cluster.coordination.after
    cluster.coordination.before, before = nothing, cluster.coordination.before
    planned, committed = (
        [
            Put(
                keys.SEGMENTS.key("t", topic.record.incarnation, n),
                keys.SEGMENTS.encode(Versioned.new(replace(known.record, intent=intent_in_state))),
            )
            for n, known in records.items()
        ]
        for intent_in_state in (replace(intent, state="planned"), intent)
    )
    assert await MemoryCoordination.commit(cluster.coordination, [], planned)
    assert await MemoryCoordination.commit(cluster.coordination, [], committed)
    cluster.coordination.after, cluster.coordination.before = after, before
    await done(cluster, sealed=2)
    found = [message["value"] for n in (0, 1) for message in (await read(cluster, one, n))["messages"]]
    assert sorted(found) == [1, 2, 3, 4]
    await asyncio.sleep(1.2)
    await until(lambda: not any(inside.ownership(broker).locks.locked() for broker in (one, two)))
    await publish(two, inside.topic(two, "t"), "5", "6", "7")


async def nothing(writes: Any) -> None:
    pass


async def test_nothing_is_begun_again_while_a_broker_stops(tmp_path: Path) -> None:
    gate = Gate()

    async def committing(writes) -> None:
        if any(b'"committed"' in getattr(put, "value", b"") for put in writes):
            await gate()

    async with running(tmp_path) as broker:
        topic = await make_topic(broker)
        await publish(broker, topic, "1")
        held(broker).before = committing
        await inside.planner(broker).plan(topic, [0], [1 << 30])
        await gate.reached.wait()
        await broker.stop()
        await asyncio.sleep(0.05)
        assert not [task for task in asyncio.all_tasks() if task.get_name() == "reshaping t"]
        assert inside.reshaper(broker).under_way == 0
        gate.open.set()


async def test_a_broker_that_can_carry_nothing_out_any_more_begins_a_new_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has committed would wait for ever at a broker that lives."""

    def fails(self: Reshaper) -> None:
        raise RuntimeError("nobody foresaw this")

    async with running(tmp_path) as broker:
        await make_topic(broker)
        monkeypatch.setattr(Reshaper, "_begin", fails)
        async with asyncio.timeout(15):
            await broker.lost.wait()


# Who is killed between two steps leaves coroutines behind that never began.


SPLIT, MERGE, ROLL = ("split", 1, [2**29, 2**30]), ("merge", 2, []), ("roll", 1, [])
PLANNED = ["reshape.flushed", "reshape.commit", "entry.encode", "entry.append", "entry.appended", "flush.release"]
COMMITTED = ["reshape.committed", "reshape.held", "reshape.sealed", "reshape.replaced"]
CASES = [(place, change, "file") for place in (*PLANNED, *COMMITTED) for change in (SPLIT, MERGE)]
CASES += [(place, SPLIT, "object") for place in (*PLANNED, *COMMITTED)]
CASES += [
    ("reshape.committed", MERGE, "object"),
    ("reshape.committed", ROLL, "file"),
    ("reshape.sealed", ROLL, "object"),
]


@pytest.mark.parametrize(
    ("place", "change", "journal"), CASES, ids=[f"{place}-{change[0]}-{journal}" for place, change, journal in CASES]
)
async def test_the_owner_dies(tmp_path: Path, place: str, change: tuple[str, int, list[int]], journal: str) -> None:
    kind, count, points = change
    async with scene(tmp_path, count, journal=journal) as here:
        owner = await here.gathered(count)
        await here.go()
        here.cluster.die_at(owner, place)
        here.plan(range(count), points)
        await until(lambda: here.cluster.died == [place], f"nobody came to {place}")
        await here.crash(owner)
        await here.more(20)
        if kind != "merge" or place in COMMITTED:  # else it is undone where they come to two owners
            await here.until_sealed(*range(count))
        await here.settle()
        await here.more(20)
        await here.over()


@pytest.mark.parametrize("place", ["plan.write", "reshape.committed", "reshape.sealed", "entry.appended"])
async def test_all_die_and_begin_again(tmp_path: Path, place: str) -> None:
    async with scene(tmp_path, 2) as here:
        owner = await here.gathered(2)
        await here.go()
        here.cluster.die_at(owner, place)
        here.do(owner, here.replace(owner, [0, 1], [5, 2**30]))
        await until(lambda: here.cluster.died == [place], f"nobody came to {place}")
        for broker in list(here.cluster.lives):
            await here.crash(broker)
        await here.revive()
        await here.more(20)
        if place != "plan.write":
            await here.until_sealed(0, 1)
        await here.over()


async def test_a_merge_whose_segments_come_to_two_owners_goes_on_at_one(tmp_path: Path) -> None:
    """The owner of many segments dies with a committed merge: they are shared out among the others."""
    async with scene(tmp_path, 9, count=4) as here:
        owner = await here.gathered(9)
        await here.go()
        here.cluster.die_at(owner, "reshape.committed")
        here.plan(range(9), [])
        await until(lambda: here.cluster.died)
        await here.crash(owner)
        await here.until_sealed(*range(9))
        await here.more(10)
        await here.over()

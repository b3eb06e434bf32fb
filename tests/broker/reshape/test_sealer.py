"""The last entry of a chain over a store that fails, is slow, or lets a dead broker's put land late: it has one end.
And the producer tables over a seal: a successor is opened from those that its owner knows, only if nobody can have
written to it.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from seaweedq.broker.log.entry_writer import EntryWriter
from seaweedq.broker.log.flusher import Flusher
from seaweedq.broker.log.group_commit import GroupCommit
from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.broker.reshape.intents import seal_of
from seaweedq.broker.reshape.reshaper import Sealer
from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.topics.ownership import Holder, SegmentLocks
from seaweedq.clock import Clock, SystemIds
from seaweedq.coordination.records import Intent, Successor, TopicConfig, TopicRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import NotOwner
from seaweedq.levels import HIGHEST
from seaweedq.segments.keyrange import KEY_SPACE, KeyRange
from seaweedq.segments.producers import FORWARD, Duplicate, ProducerTables
from tests.support.brokers import inside
from tests.support.brokers.commit_parts import StillClock, segment
from tests.support.brokers.in_process_cluster import until
from tests.support.journal.memory_journal import MemoryJournal
from tests.support.levels import newest
from tests.support.reshape.judging import chain_of
from tests.support.reshape.scene import Scene, scene
from tests.support.reshape.stores import LateStore, is_entry, is_seal

CLOCK = StillClock()
INTENT = Intent(1, "committed", (0,), (Successor(1, 0, KEY_SPACE),))
SEAL = seal_of(INTENT, KeyRange(0, KEY_SPACE))


def flusher(clock: Clock = CLOCK) -> Flusher:
    return Flusher(
        EntryWriter("cluster", "broker.1", clock, SystemIds(), newest), lambda _: None, lambda *about: None, clock
    )


async def seal(one: OpenSegment, clock: Clock = CLOCK) -> None:
    ownership = cast(Any, SimpleNamespace(locks=SegmentLocks()))
    commit = GroupCommit(MemoryJournal(), clock, lambda: True)
    topic = Topic.from_record("t", Versioned(TopicRecord(0, "active", TopicConfig(), 0), 1))
    await Sealer(cast(Any, None), ownership, commit, flusher(clock), clock).seal(topic, INTENT, [one])


def forwarded() -> OpenSegment:
    """A segment that knows a forward which is not tried any more."""
    one = segment()
    one.producers.record(0, f"{FORWARD}b.0.0", 0, 6, 0, 7, 0)
    one.producers.expire(CLOCK.monotonic_s() - 601)
    return one


async def test_what_is_not_tried_any_more_is_not_in_the_seal() -> None:
    one = forwarded()
    await seal(one)
    assert one.chain.last is not None
    assert (one.chain.last.seal, one.chain.last.producers) == (SEAL, one.producers.encode(HIGHEST))
    assert not any(one.producers.parts)


async def test_a_seal_that_is_there_has_the_last_word_on_the_tables() -> None:
    """Its broker died before the successors were written: the next owner writes them, some time later."""
    one = segment()
    one.producers.record(0, f"{FORWARD}b.0.0", 0, 6, 0, 7, 0)
    one.pause(NotOwner("it is being replaced"))
    await flusher().seal(one, SEAL)
    await seal(one, StillClock(CLOCK.monotonic_s() + 601))
    assert one.chain.last is not None
    assert one.producers.encode(HIGHEST) == one.chain.last.producers
    assert one.producers.judge(0, f"{FORWARD}b.0.0", 0, 6, 7) == Duplicate(0, 0)


# Who is killed between two steps leaves coroutines behind that never began.
pytestmark = [pytest.mark.brokers, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]


async def test_publishes_after_a_split_ask_the_store_nothing(tmp_path: Path) -> None:
    async with scene(tmp_path, 1) as here:
        owner = await here.owner(0)
        asked: list[str] = []
        await here.go()
        here.cluster.store.faults = lambda moment, name: asked.append(f"{moment} {name}")
        here.plan([0], [2**30])
        await here.until_sealed(0)
        await here.more(20)
        topic = inside.topic(owner, "t")
        successors = inside.catalog(owner).segment(topic, 0).record.successors
        assert [topic.opened[number].chain.last for number in successors] == [None, None]
        folders = tuple(f"topics/t/segment={number}/" for number in successors)
        found = [one for one in asked if one.startswith(("before list", "before open")) and one.endswith(folders)]
        assert found == [f"before list {folder}" for folder in folders], "only the plan lists them, each once"


async def test_what_somebody_may_have_written_to_is_opened_at_the_store(tmp_path: Path) -> None:
    async with scene(tmp_path, 1) as here:
        owner = await here.owner(0)
        topic = inside.topic(owner, "t")
        opened = await inside.ownership(owner).opened(topic, 0)
        del topic.opened[0]
        revision = inside.catalog(owner).segment(topic, 0).revision
        tables = [ProducerTables.empty(0, opened.source.key_range)]
        inside.ownership(owner).begin(topic, 0, revision - 1, tables)
        assert 0 not in topic.opened, "its record has changed since"
        moving = Holder("it moves")
        inside.ownership(owner).locks.acquire(topic, [0], moving)
        inside.ownership(owner).begin(topic, 0, revision, tables)
        assert 0 not in topic.opened, "it is on its way to another broker"
        inside.ownership(owner).locks.release(topic, [0], moving)
        inside.ownership(owner).begin(topic, 0, revision, tables)
        assert topic.opened.pop(0).end == 0
        topic.opened[0] = opened


# Who is killed between two steps leaves coroutines behind that never began.


POINTS = [2**30]


@pytest.fixture(params=["file", "object"])
async def here(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    async with scene(tmp_path, 1, store=LateStore(), journal=request.param) as made:
        yield made


def store_of(here: Scene) -> LateStore:
    found = here.cluster.store
    assert isinstance(found, LateStore)
    return found


@pytest.mark.parametrize("happens", [True, False])
async def test_the_store_refuses_the_last_entry_for_a_while(here: Scene, happens: bool) -> None:
    """Also where it was stored the first time, and the store only said otherwise."""
    await here.go()
    store_of(here).fail(is_seal, happens, times=3)
    here.plan([0], POINTS)
    await here.until_sealed(0)
    assert store_of(here).failures_left == 0
    await here.more(20)
    await here.over()


async def test_the_store_refuses_any_entry_now_and_then(here: Scene) -> None:
    await here.go()
    for happens in (True, False):
        store_of(here).fail(is_entry, happens, times=2)
        here.plan(await here.open(), [])
        here.plan([(await here.open())[0]], [3 + happens])
        await here.more(20)
    await here.over()


async def test_a_slow_store_makes_publishes_wait_and_not_fail(tmp_path: Path) -> None:
    async with scene(tmp_path, 1, store=LateStore(), publish_timeout_s=10) as here:
        await here.go()
        store_of(here).slow_s = 0.5
        here.plan([0], POINTS)
        await here.until_sealed(0)
        await here.more(20)
        here.stopped = True
        await asyncio.gather(*here.going)
        assert all(producer.waiting is None for producer in here.producers)
        assert here.ledger.sent.keys() == here.ledger.ids.keys(), "some were not answered"
        store_of(here).slow_s = 0
        await here.over()


async def die_with_the_seal_on_its_way(here: Scene) -> None:
    """The owner is dead; its last put is still on its way to the store."""
    await here.go()
    owner = await here.owner(0)
    store_of(here).hold(is_seal)
    here.plan([0], POINTS)
    await until(lambda: store_of(here).late, "no seal was put")
    await here.crash(owner)


async def test_the_seal_of_a_dead_owner_lands_after_that_of_the_next_one(here: Scene) -> None:
    await die_with_the_seal_on_its_way(here)
    await here.until_sealed(0)
    end = len(chain_of(here.cluster.store, "t", 0).rows)
    assert await store_of(here).deliver() == [False], "the name is taken"
    assert len(chain_of(here.cluster.store, "t", 0).rows) == end
    await here.more(20)
    await here.over()


@pytest.mark.parametrize("place", ["recover.append", "takeover.recovered", "leader.give", "reshape.held"])
async def test_the_seal_of_a_dead_owner_lands_while_others_take_over(here: Scene, place: str) -> None:
    """Before and after its journal was worked in, and just before the next owner seals."""
    await here.go()
    owner = await here.owner(0)
    store_of(here).hold(is_seal)
    here.plan([0], POINTS)
    await until(lambda: store_of(here).late, "no seal was put")
    for broker in here.cluster.living:
        if broker is not owner:
            here.cluster.act_at(broker, place, store_of(here).gate.set)
    await here.crash(owner)
    await here.until_sealed(0)
    await here.more(20)
    await store_of(here).deliver()
    await here.over()


async def test_the_seal_of_a_zombie_lands_late(tmp_path: Path) -> None:
    """Its lease ends, another one seals, and it goes on, all in vain."""
    async with scene(tmp_path, 1, store=LateStore(), journal="object") as here:
        await here.go()
        owner = await here.owner(0)
        store_of(here).hold(is_seal)
        here.plan([0], POINTS)
        await until(lambda: store_of(here).late, "no seal was put")
        await here.cluster.orphan(owner)
        await here.until_sealed(0)
        await store_of(here).deliver()
        await here.more(20)
        await here.crash(owner)
        await here.over()


async def test_rows_of_a_dead_owner_land_late_while_the_segment_is_sealed(here: Scene) -> None:
    """Not its seal, but an entry flushed ahead."""
    await here.go()
    owner = await here.owner(0)
    store_of(here).hold(is_entry)
    here.plan([0], POINTS)
    await until(lambda: store_of(here).late, "nothing was put")
    await here.crash(owner)
    await here.until_sealed(0)
    await store_of(here).deliver()
    await here.more(20)
    await here.over()

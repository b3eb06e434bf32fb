"""The last entry of a chain over a store that fails, is slow, or lets a dead broker's put land late: one end it has."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.brokers.in_process_cluster import until
from tests.support.reshape.judging import chain_of
from tests.support.reshape.scene import Scene, scene
from tests.support.reshape.stores import LateStore, is_entry, is_seal

# Who is killed between two steps leaves coroutines behind that never began.
pytestmark = [pytest.mark.brokers, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]


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

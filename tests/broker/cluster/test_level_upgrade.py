"""The cluster's level rises on request, once all read it; who does not read it is kept out, whenever it comes."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from seaweedq import levels
from seaweedq.broker.cluster import level_upgrade
from seaweedq.broker.cluster.joining import cluster_of
from seaweedq.broker.cluster.level_upgrade import COMPARED, JoinGuard, LevelUpgrade
from seaweedq.checks import using
from seaweedq.clock import SystemClock, SystemIds
from seaweedq.coordination import keys
from seaweedq.coordination.cluster_level import ClusterLevel, Levels, levels_of
from seaweedq.coordination.interface import Compare, Entry, Put, read_all
from seaweedq.coordination.membership import BrokerIdentity, Membership
from seaweedq.coordination.memory import MemoryCoordination
from seaweedq.coordination.roster import Roster
from seaweedq.errors import CoordinationUnavailable, LevelConflict, LevelMismatch, UnfitStore
from seaweedq.storage.identity import known_identity
from seaweedq.storage.memory import MemoryStore
from tests.support import privates

PLACES = ("level.marked", "level.announced", "level.cleared", "level.written")
OLD = {"url": "http://old", "name": "old", "started_us": 0}
LEASE_S = 0.01


class Crash(BaseException):
    """A SIGKILL."""


class World:
    """A cluster of level 1, and one broker of the next version."""

    def __init__(self) -> None:
        self.coordination = MemoryCoordination(SystemClock())
        self.store = MemoryStore()
        self.roster = Roster(self.coordination)
        self.level = ClusterLevel(self.coordination, self.roster)
        self.membership = self.member("new")
        self.upgrade = self.upgrader(self.membership)

    def member(self, name: str) -> Membership:
        return Membership(self.coordination, SystemClock(), BrokerIdentity.new(SystemIds(), name, f"http://{name}"), 60)

    def upgrader(self, membership: Membership) -> LevelUpgrade:
        return LevelUpgrade(self.coordination, self.store, self.level, membership, LEASE_S)

    async def identify(self) -> str:
        named = "these"
        return (await cluster_of(self.coordination, self.store, SystemIds(), SystemClock(), named)).cluster

    async def admit(self) -> list[Compare]:
        """Of the generation that the cluster has."""
        there = await self.coordination.get(keys.CLUSTER.key())
        found = levels_of(there.value) if there else Levels()
        return await self.level.admit(found.generation, found.nonce)

    async def begin(self) -> "World":
        """As a cluster of level 1, with the broker of this version in it."""
        await self.put("cluster", {"cluster": "c", "draft": levels.DRAFT})
        await self.identify()
        await self.membership.start(self.admit)
        await self.look()
        return self

    async def put(self, key: str, value: Any, lease: int = 0) -> None:
        assert await self.coordination.commit([], [Put(key, msgspec.json.encode(value), lease)])

    async def join(self, broker: str, **members: Any) -> int:
        """A broker that compares nothing when it joins, and reads level 1 alone unless `members` say otherwise."""
        lease = (await self.coordination.leases.grant(60)).lease
        await self.put(keys.BROKERS.key(broker), {**OLD, **members}, lease)
        return lease

    async def look(self) -> None:
        await self.roster.load()
        await self.level.load()

    async def record(self) -> dict[str, Any]:
        found = await self.coordination.get("cluster")
        assert found
        told: dict[str, Any] = msgspec.json.decode(found.value)
        return told

    async def brokers(self) -> set[str]:
        return {entry.key.split("/")[1].split(".")[0] for entry in await self.entries(keys.BROKERS.prefix())}

    async def entries(self, prefix: str = "") -> list[Entry]:
        return (await read_all(self.coordination, prefix))[0]

    async def all(self) -> tuple[list[Entry], list[str]]:
        return await self.entries(), await self.store.list("")


@pytest.fixture
async def world(next_level: int) -> World:
    """With a level 2, which is synthetic."""
    assert next_level == 2
    return await World().begin()


@contextmanager
def crash_at(place: str) -> Iterator[None]:
    def reach(reached: str) -> None:
        if reached == place:
            raise Crash

    with pytest.raises(Crash), using(reach):
        yield


async def test_the_record_of_a_new_cluster_of_level_1(world: World) -> None:
    identity = await known_identity(world.store)
    assert identity
    assert await world.record() == {"cluster": "c", "store": identity.store, "draft": levels.DRAFT}
    assert (world.level.level, world.level.written, world.level.possible) == (1, 1, 2)


async def test_it_rises_and_the_store_names_the_level(world: World) -> None:
    found = await world.upgrade.upgrade(None)
    identity = await known_identity(world.store)
    assert identity
    assert (found.level, found.written, found.store) == (2, 2, identity.store)
    assert await world.record() == {
        "cluster": "c",
        "store": identity.store,
        "level": 2,
        "written": 2,
        "draft": levels.DRAFT,
    }
    assert "_levels/2" in await world.store.list("_levels/")
    assert world.level.written == 2
    before = await world.all()
    assert await world.upgrade.upgrade(2) == found
    assert await world.identify() == "c"
    assert await world.all() == before


@pytest.mark.parametrize(
    ("key", "value", "to", "too_old"),
    [
        ("brokers/old.1", OLD, 2, ["old.1"]),
        ("brokers/third.1", {**OLD, "lowest": 3, "highest": 4}, 2, ["third.1"]),
        ("brokers/broken.1", "no record", 2, ["broken.1"]),
        ("journals/dead.1", {"kind": "file", "place": "p"}, 2, ["dead.1"]),
        ("journals/dead.1", {"kind": "file", "place": "p", "highest": 2}, 3, ["dead.1", "new"]),
    ],
    ids=["an old broker", "one that reads later levels alone", "unreadable", "a journal", "a level nobody reads"],
)
async def test_it_is_refused_with_their_names_where_somebody_does_not_read_it(
    world: World, key: str, value: Any, to: int, too_old: list[str]
) -> None:
    await world.put(key, value)
    before = await world.all()
    with pytest.raises(LevelConflict, match=too_old[0]) as caught:
        await world.upgrade.upgrade(to)
    assert [name if name.endswith(".1") else name.split(".")[0] for name in caught.value.fields["too_old"]] == too_old
    assert caught.value.fields["level"] == 1
    assert await world.all() == before


async def test_a_recovered_journal_prevents_nothing(world: World) -> None:
    await world.put("journals/dead.1", {"kind": "file", "place": "p", "recovered": True})
    assert (await world.upgrade.upgrade(2)).written == 2


async def test_it_never_falls(world: World) -> None:
    await world.upgrade.upgrade(2)
    with pytest.raises(LevelConflict, match="the level cannot be lowered"):
        await world.upgrade.upgrade(1)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("by", ["a request", "the leader"])
async def test_whatever_a_crash_leaves_is_gone_on_with(world: World, place: str, by: str) -> None:
    with crash_at(place):
        await world.upgrade.upgrade(2)
    assert (await world.record()).get("written", 1) == (2 if place == "level.written" else 1)
    await world.coordination.leases.revoke(world.membership.lease)
    other = world.member("other")
    await other.start(world.admit)
    await world.look()
    if by == "a request" or place == "level.marked":
        await world.upgrader(other).upgrade(2)
    else:
        await world.upgrader(other).finish()
    assert (await world.record())["written"] == 2


async def test_nobody_dispatches_early_in_place_of_one_whose_lease_a_rise_ends(world: World) -> None:
    with crash_at("level.announced"):
        await world.upgrade.upgrade(2)
    await world.join("old.1")
    with crash_at("level.cleared"):
        await privates.finish(world.upgrade)()
    assert await world.brokers() == {"new"}
    page = await world.coordination.range("revocations/")
    assert [entry.key for entry in page.entries] == ["revocations/old.1"]


async def test_a_late_broker_that_cannot_read_the_announcement_is_out_in_time(
    world: World,
) -> None:
    with crash_at("level.announced"):
        await world.upgrade.upgrade(2)
    await world.join("old.1")
    assert await world.brokers() == {"new", "old"}
    with crash_at("level.cleared"):
        await privates.finish(world.upgrade)()
    assert await world.brokers() == {"new"}
    assert "written" not in await world.record()
    assert (await privates.finish(world.upgrade)()).written == 2


async def test_it_waits_a_lease_also_where_it_finds_nobody_to_keep_out(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.extend([seconds] if seconds else [])

    monkeypatch.setattr(level_upgrade, "asyncio", SimpleNamespace(sleep=sleep))  # loops of other threads sleep, too
    with crash_at("level.announced"):
        await world.upgrade.upgrade(2)
    await world.look()
    await world.upgrade.finish()
    await world.look()
    await world.upgrade.finish()
    assert slept == [LEASE_S]


async def test_while_it_rises_the_guard_ends_those_that_are_starting(world: World) -> None:
    with crash_at("level.announced"):
        await world.upgrade.upgrade(2)
    await world.join("old.1", starting=True)
    await world.join("served.1")
    await world.look()
    guard = JoinGuard(world.coordination, world.level, world.roster)
    running = asyncio.create_task(guard.run())
    async with asyncio.timeout(15):
        while "old" in await world.brokers():
            await asyncio.sleep(0.001)
    assert await world.brokers() == {"new", "served"}
    running.cancel()


async def test_one_that_comes_when_all_is_over_loses_its_lease(world: World) -> None:
    await world.upgrade.upgrade(2)
    guard = JoinGuard(world.coordination, world.level, world.roster)
    running = asyncio.create_task(guard.run())
    await world.join("old.1")
    await world.join("other.1", highest=2)
    await world.roster.load()
    guard.check()
    async with asyncio.timeout(15):
        while "old" in await world.brokers():
            await asyncio.sleep(0.001)
    assert await world.brokers() == {"new", "other"}
    running.cancel()


async def test_a_broker_joins_under_the_level_that_it_has_read(world: World) -> None:
    asked = 0

    async def admit() -> Any:
        nonlocal asked
        asked += 1
        found = await world.admit()
        if asked == 1:
            await world.upgrade.upgrade(2)
        return found

    other = world.member("other")
    await other.start(admit)
    assert asked == 2

    async def moves() -> Any:
        found = await world.admit()
        await world.put("cluster", await world.record())
        return found

    with pytest.raises(CoordinationUnavailable):
        await world.member("never").start(moves)


async def test_a_broker_that_does_not_read_the_level_ends_and_changes_nothing(world: World) -> None:
    await world.put("cluster", {"cluster": "c", "store": 7, "level": 3, "draft": levels.DRAFT})
    before = await world.all()
    with pytest.raises(LevelMismatch, match=r"level 3.*can read only levels 1 to 2"):
        await world.identify()
    assert await world.all() == before
    late = world.member("late")
    with pytest.raises(LevelMismatch):
        await late.start(world.admit)
    await late.stop()
    assert await world.all() == before


async def test_a_new_cluster_has_the_highest_level_from_its_first_record_on(next_level: int) -> None:
    world = World()
    written: list[bytes] = []
    commit = world.coordination.commit

    async def noting(compares: Any, writes: Any) -> int | None:
        written.extend(write.value for write in writes if write.key == "cluster")
        return await commit(compares, writes)

    world.coordination.commit = noting  # type: ignore[method-assign]
    await world.identify()
    found = [msgspec.json.decode(value) for value in written]
    assert [one["level"] for one in found] == [next_level, next_level]
    assert [one["written"] for one in found] == [next_level, next_level]
    assert [one["draft"] for one in found] == [levels.DRAFT, levels.DRAFT]
    assert await world.store.list("") == ["_cluster.json", "_generations/0000000001", f"_levels/{next_level}"]


@pytest.mark.parametrize(("marks", "level"), [((), 1), ((2,), 2), ((2, 10), None)])
async def test_a_store_that_lost_its_coordination_knows_its_level(
    marks: tuple[int, ...], level: int | None, next_level: int
) -> None:
    world = await World().begin()
    for mark in marks:
        await world.store.create(f"_levels/{mark}", b"")
    world.coordination = MemoryCoordination(SystemClock())
    with pytest.raises(LevelMismatch if level is None else UnfitStore):
        await world.identify()
    before = await world.all()
    await world.put("cluster", {"cluster": "c", "draft": levels.DRAFT})
    if level is None:
        with pytest.raises(LevelMismatch, match="level 10"):
            await world.identify()
    else:
        assert await world.identify() == "c"
        assert (await world.record()).get("level", 1) == level
        assert before[1] == await world.store.list("")


async def test_more_brokers_than_a_transaction_compares(world: World) -> None:
    for number in range(COMPARED + 10):
        await world.join(f"b{number}.1", highest=2)
    assert (await world.upgrade.upgrade(2)).written == 2


async def test_two_requests_at_once(world: World) -> None:
    other = world.member("other")
    await other.start(world.admit)
    found = await asyncio.gather(world.upgrade.upgrade(2), world.upgrader(other).upgrade(2))
    assert [one.written for one in found] == [2, 2]


async def test_the_levels_that_are_possible_and_who_is_too_old(world: World) -> None:
    await world.join("old.1")
    await world.look()
    assert (world.level.possible, world.level.newest, world.level.too_old_for(2)) == (1, 2, ["old.1"])

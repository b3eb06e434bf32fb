"""Snapshots and changes in the store: the newest whole state is found, whatever is damaged, forged or missing, and what
nobody needs goes."""

from dataclasses import replace

import pytest

from seaweedq.broker import backups as module
from seaweedq.broker.backups import BARE, Backups, FoundState
from seaweedq.coordination import keys
from seaweedq.coordination.backup import Sealer, State, change_name, encode_change, snapshot_name
from seaweedq.coordination.records import CursorRecord, SegmentRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import Fenced, StoreUnavailable
from seaweedq.storage.generations import Generation, Generations, create_generation
from seaweedq.storage.memory import MemoryStore
from tests.support.brokers.sealers import OWN_FOLDER, sealer

ONE, TWO = sealer("one"), sealer("two")
OPEN: list[tuple[str, bytes | None]] = [("d", None), ("c", b"7")]


class World:
    """A store of generation 1, and brokers with a secret or without."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.generations = Generations(self.store)
        self.generations.begin(Generation(1, "n"))

    async def begin(self) -> "World":
        await create_generation(self.store, self.generations.mine)
        return self

    def backups(self, sealer: Sealer = ONE) -> Backups:
        return Backups(self.store, sealer, self.generations, lambda: 1)

    async def snapshot(self, number: int, revision: int, sealer: Sealer = ONE, generation: int = 1) -> State:
        state = State(generation, number, revision, {"a": str(revision).encode(), "tokens/t": b"1"})
        assert await self.backups(sealer).put_snapshot(state)
        return state

    async def change(self, revision: int, sealer: Sealer = ONE) -> None:
        await self.backups(sealer).put_change(revision, [("c", str(revision).encode())])

    def damage(self, name: str) -> None:
        self.store.objects[name] = self.store.objects[name][:-1] + b"?"


@pytest.fixture
async def world() -> World:
    return await World().begin()


async def test_a_generation_without_backups_has_no_state(world: World) -> None:
    there = world.backups()
    assert await there.newest(1) is None
    assert await there.newest_number(1) is None
    assert await there.newest_change(1) is None


async def test_the_state_is_the_newest_snapshot_with_the_changes_behind_it(world: World) -> None:
    for number, revision in ((0, 5), (1, 10), (2, 20)):
        state = await world.snapshot(number, revision)
    for revision in (9, 19, 21, 30):
        await world.change(revision)
    there = world.backups()
    assert await there.newest(1) == FoundState(replace(state, revision=30, keys={**state.keys, "c": b"30"}))
    assert (await there.newest_number(1), await there.newest_change(1)) == (2, 30)
    assert await there.newest(2) is None


async def test_a_damaged_snapshot_is_told_and_the_one_before_is_taken(world: World) -> None:
    before = await world.snapshot(1, 10)
    await world.snapshot(2, 20)
    await world.change(15)
    await world.change(16)
    world.damage(snapshot_name(1, 2))
    world.damage(change_name(1, 16))
    found = await world.backups().newest(1)
    assert found == FoundState(
        replace(before, revision=15, keys={**before.keys, "c": b"15"}), (snapshot_name(1, 2), change_name(1, 16))
    )


async def test_changes_alone_are_a_state_and_so_is_damage_alone(world: World) -> None:
    await world.change(7)
    assert await world.backups().newest(1) == FoundState(State(1, BARE, 7, {"c": b"7"}))
    world.damage(change_name(1, 7))
    assert await world.backups().newest(1) == FoundState(State(1, BARE, 0, {}), (change_name(1, 7),))


async def test_what_is_not_verified_is_told_and_not_taken(world: World) -> None:
    state = await world.snapshot(1, 10)
    await world.snapshot(2, 20, TWO)
    await world.change(11, TWO)
    await world.change(12)
    found = await world.backups().newest(1)
    assert found == FoundState(
        replace(state, revision=12, keys={**state.keys, "c": b"12"}), (), (snapshot_name(1, 2), change_name(1, 11))
    )


async def test_if_nothing_is_verified_it_is_taken_without_rights(world: World) -> None:
    for number, revision in ((1, 10), (2, 20)):
        await world.snapshot(number, revision, TWO)
    await world.change(21, TWO)
    found = await world.backups().newest(1)
    state = State(1, 2, 21, {"a": b"20", "c": b"21"}, verified=False)
    assert found == FoundState(state, (), (snapshot_name(1, 2), snapshot_name(1, 1), change_name(1, 21)))


async def test_a_change_is_put_once_and_refused_in_another_generation(world: World) -> None:
    there = world.backups()
    for _ in range(2):
        await there.put_change(7, [("c", b"7")])
    await create_generation(world.store, Generation(2, "m"))
    with pytest.raises(Fenced):
        await there.put_change(8, [("c", b"8")])


async def test_a_revision_that_another_history_has_used_ends_the_life(world: World) -> None:
    told: list[str] = []
    generations = Generations(world.store, told.append)
    generations.begin(world.generations.mine)
    there = Backups(world.store, ONE, generations, lambda: 1)
    await there.put_change(7, [*OPEN, ("tokens/t", b"1")])
    await there.put_change(7, [("tokens/t", b"1"), ("c", b"7"), ("d", None)])
    await there.put_change(7, [("c", b"7")], [("e", b"5")])  # what is beside may have another value by now
    assert not told
    for another in ([("c", b"8"), ("d", None), ("tokens/t", b"1")], [("e", b"7")]):
        with pytest.raises(Fenced, match=r"coordination was restored to an earlier state: .* with a different change"):
            await there.put_change(7, another)
    assert len(told) == 2
    for later in (sealer(), TWO):  # the secret was changed meanwhile
        await Backups(world.store, later, generations, lambda: 1).put_change(7, [("tokens/t", b"1"), *OPEN])
    assert len(told) == 2


async def test_a_damaged_change_gives_way_to_a_repeat(world: World) -> None:
    await world.backups().put_change(7, [("c", b"7")])
    world.damage(change_name(1, 7))
    await world.backups().put_change(7, [("c", b"7")])
    found = await world.backups().newest(1)
    assert found
    assert (found.state.keys, found.damaged) == ({"c": b"7"}, ())


async def test_a_change_in_other_bytes_is_the_same(world: World) -> None:
    await world.backups().put_change(7, [("c", b'{"a":30,"b":[1]}')])
    await world.backups().put_change(7, [("c", b'{"b": [1], "a": 30.0}')])
    with pytest.raises(Fenced, match="with a different change"):
        await world.backups().put_change(7, [("c", b'{"a":31,"b":[1]}')])


async def test_a_change_of_rights_alone_is_not_put_if_the_store_keeps_none(world: World) -> None:
    await world.backups(sealer()).put_change(7, [("tokens/t", b"1")])
    assert await world.backups().newest_change(1) is None
    await world.backups(OWN_FOLDER).put_change(7, [("tokens/t", b"1")])
    assert await world.backups().newest_change(1) == 7


async def test_a_snapshot_whose_number_is_taken_is_not_put(world: World) -> None:
    await world.snapshot(1, 10)
    assert await world.backups().put_snapshot(State(1, 1, 11, {})) is None


async def test_the_newest_three_snapshots_stay_and_the_changes_behind_them(world: World) -> None:
    for number in range(1, 6):
        await world.snapshot(number, 10 * number)
        await world.change(10 * number)
        await world.change(10 * number + 5)
    await world.snapshot(0, 1, generation=2)
    await world.backups().prune()
    names = [snapshot_name(1, number) for number in (3, 4, 5)]
    names += [change_name(1, revision) for revision in (35, 40, 45, 50, 55)] + [snapshot_name(2, 0)]
    assert await world.store.list("_coordination/") == names


async def test_no_change_goes_for_a_snapshot_that_is_damaged_or_forged(world: World) -> None:
    await world.snapshot(1, 10)
    for number in (2, 3):
        await world.snapshot(number, 10**9, TWO)
    await world.change(5)
    await world.backups().prune()
    assert await world.backups().newest_change(1) is None  # the oldest kept one has it
    await world.change(15)
    await world.snapshot(4, 10**9, TWO)
    await world.backups().prune()
    assert await world.backups().newest_change(1) == 15
    world.damage(snapshot_name(1, 2))
    await world.backups().prune()
    assert await world.backups().newest_change(1) == 15


async def test_many_backups_are_listed_by_pages(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE", 2)
    for number in range(1, 4):
        state = await world.snapshot(number, number)
    for revision in range(4, 9):
        await world.change(revision)
    found = await world.backups().newest(1)
    assert found == FoundState(replace(state, revision=8, keys={**state.keys, "c": b"8"}))


async def test_a_store_that_is_away_is_told(world: World) -> None:
    def away(moment: str, name: str) -> None:
        raise StoreUnavailable("away")

    await world.snapshot(1, 10)
    world.store.faults = away
    with pytest.raises(StoreUnavailable):
        await world.backups().newest(1)
    with pytest.raises(StoreUnavailable):
        await world.backups().put_change(11, [("c", b"1")])


def test_a_change_without_its_keys_is_small() -> None:
    change = module.AdminChange(1, 2, (("topics/a", b"{}"),))
    assert len(encode_change(change, ONE, 1)) < 300


def large_state(count: int) -> State:
    """As many open segments, and cursors with some acks out of order."""
    there = {}
    for number in range(count):
        place, at = (f"topic-{number // 100}", number // 100, number), number * 7_919_113 % 10**9
        before, times_us = (number - 200, number - 199), 1_700_000_000_000_000 + 7_919_113 * number
        low, owner = number % 100 * 2**57, f"broker-{number % 9}.5f6e7d8c9bafe01{number % 9}"
        segment = SegmentRecord(low, low + 2**57, "open", before, (), owner, None, times_us)
        acked = tuple((at + 10 * one, at + 10 * one + 3) for one in range(1, number % 20))
        cursor = CursorRecord(5, at, acked, {}, at + 500)
        there[keys.SEGMENTS.key(*place)] = keys.SEGMENTS.encode(Versioned.new(segment))
        key = keys.CURSORS.key(*place[:2], "subscription", number)
        there[key] = keys.CURSORS.encode(Versioned.new(cursor))
    return State(1, 1, 10, there)


async def test_ten_thousand_segments_and_cursors_are_two_megabytes(world: World) -> None:
    """The bound of `rebuild, the snapshot` in benchmarks/RESULTS.md."""
    state = large_state(10_000)
    size_bytes = await world.backups().put_snapshot(state)
    assert size_bytes
    assert size_bytes <= 2_000_000, size_bytes
    assert await world.backups().newest(1) == FoundState(state)

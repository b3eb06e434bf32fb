"""Fencing an object journal, reading what counts of it, letting it go: whatever state its broker left it in."""

import asyncio
from collections.abc import Iterable

import pytest

from seaweedq.errors import JournalDamaged, StoreUnavailable
from seaweedq.journal.object_format import MAX_UNDER_WAY, SlotHeader, SlotKind, encode_slot, slot_name
from seaweedq.journal.object_listing import list_slots, read_header
from seaweedq.journal.object_recovery import PIECE_BYTES, READ_AHEAD, fence, read_slots, remove_slots
from seaweedq.storage.memory import MemoryStore
from tests.support.journal.sim_disk import CountedIds, acks

B = "b"


class Store(MemoryStore):
    """Counts what is asked for; before a request it can let something happen."""

    def __init__(self) -> None:
        super().__init__(self._see)
        self.asked: list[tuple[str, int]] = []
        self.meanwhile: dict[tuple[str, int], Iterable[object]] = {}

    def _see(self, moment: str, name: str) -> None:
        act = moment.split()
        if act[0] == "before":
            place = (act[1], int(name[-8:]) if name[-8:].isdigit() else -1)
            self.asked.append(place)
            if place in self.meanwhile:
                list(self.meanwhile.pop(place))

    def put(self, number: int, released: int = 0, kind: SlotKind = SlotKind.DATA, payload: bytes = b"") -> None:
        header = SlotHeader(kind, B, number, f"{number:032x}", released)
        frames = acks(payload or b"%d" % number) if kind is SlotKind.DATA else ()
        self._objects.setdefault(slot_name(B, number), encode_slot(header, frames))

    def drop(self, *numbers: int) -> None:
        for number in numbers:
            del self._objects[slot_name(B, number)]

    def reads(self) -> list[int]:
        return [number for act, number in self.asked if act == "read"]


@pytest.fixture
def store() -> Store:
    return Store()


async def fenced(store: Store) -> range:
    return await fence(store, B, CountedIds())


async def kind_of(store: Store, number: int) -> SlotKind:
    return (await read_header(store, B, number)).kind


async def test_an_empty_journal_gets_a_fence_where_its_first_slot_would_go(store: Store) -> None:
    assert await fenced(store) == range(0)
    assert await list_slots(store, B) == [0]
    assert await kind_of(store, 0) is SlotKind.FENCE


async def test_the_run_ends_at_the_first_gap_and_begins_at_what_was_released_last(store: Store) -> None:
    for number, released in [(2, 0), (3, 2), (4, 3), (5, 3), (7, 3), (8, 4)]:
        store.put(number, released)
    assert await fenced(store) == range(4, 6)
    assert await kind_of(store, 6) is SlotKind.FENCE
    found = [commit async for commit in read_slots(store, B, range(4, 6))]
    assert [(commit.number, bytes(commit.frames[0].payload)) for commit in found] == [(4, b"4"), (5, b"5")]


async def test_fencing_again_finds_the_same_and_puts_nothing(store: Store) -> None:
    for number in range(3):
        store.put(number)
    assert await fenced(store) == range(3)
    store.asked.clear()
    assert await fenced(store) == range(3)
    assert "create" not in {act for act, _ in store.asked}
    assert await list_slots(store, B) == [0, 1, 2, 3]


async def test_a_broker_that_passed_the_place_of_the_fence_is_looked_at_again(store: Store) -> None:
    """It acknowledged 2, 3 and 4, flushed 2 and 3 and deleted them, after the listing and before the fence."""
    store.put(1, 1)
    passed = [lambda: store.put(2, 1), lambda: store.put(3, 1), lambda: store.put(4, 4), lambda: store.drop(1, 2, 3)]
    store.meanwhile["create", 2] = (step() for step in passed)
    assert await fenced(store) == range(4, 5)
    assert [await kind_of(store, n) for n in (2, 4, 5)] == [SlotKind.FENCE, SlotKind.DATA, SlotKind.FENCE]


async def test_a_slot_that_lands_in_the_gap_first_is_no_fence(store: Store) -> None:
    store.meanwhile["create", 0] = (store.put(number) for number in (0, 1))
    assert await fenced(store) == range(2)


async def test_slots_that_go_during_a_look_mean_another_look(store: Store) -> None:
    for number in (0, 1):
        store.put(number)
    store.meanwhile["read", 0] = (step() for step in (lambda: store.put(2, 2), lambda: store.drop(0, 1)))
    assert await fenced(store) == range(2, 3)


async def test_another_recoverers_fence_is_as_good_as_ones_own(store: Store) -> None:
    for number in (0, 1):
        store.put(number)
    store.meanwhile["create", 2] = iter([store.put(2, 0, SlotKind.FENCE)])
    assert await fenced(store) == range(2)
    assert await list_slots(store, B) == [0, 1, 2]


async def test_a_lost_answer_to_the_fence_is_for_the_next_try(store: Store) -> None:
    store.put(0)

    def refuse(moment: str, name: str) -> None:
        if moment == "after create":
            raise StoreUnavailable("no answer")

    store.faults = refuse
    with pytest.raises(StoreUnavailable):
        await fenced(store)
    store.faults = store._see
    assert await fenced(store) == range(1)
    assert await list_slots(store, B) == [0, 1]


async def test_of_many_slots_only_the_newest_headers_and_no_bodies_below_are_read(store: Store) -> None:
    for number in range(2500):
        store.put(number, max(number - 300, 0))
    assert await fenced(store) == range(2199, 2500)
    assert len(store.reads()) <= MAX_UNDER_WAY + 1, "each once, in two looks"
    assert min(store.reads()) > 2400
    store.asked.clear()
    numbers = [commit.number async for commit in read_slots(store, B, range(2199, 2500))]
    assert numbers == store.reads() == list(range(2199, 2500))


async def test_a_window_of_slots_beyond_the_gap_hides_no_fence(store: Store) -> None:
    for number in range(200):
        store.put(number, 100)
    assert await fenced(store) == range(100, 200)
    for number in range(201, 200 + MAX_UNDER_WAY):
        store.put(number, 150)
    assert await fenced(store) == range(150, 200)
    assert await list_slots(store, B) == list(range(200 + MAX_UNDER_WAY))


async def test_a_journal_whose_newest_slots_are_fences_is_read_to_the_newest_data(store: Store) -> None:
    for number in range(10):
        store.put(number, 4)
    for number in range(10, 10 + 2 * MAX_UNDER_WAY):
        store.put(number, 0, SlotKind.FENCE)
    store.drop(10)
    assert (await fenced(store)).start == 4


async def test_a_slot_that_cannot_be_understood_makes_the_journal_unknown_not_empty(store: Store) -> None:
    store.put(0)
    store._objects[slot_name(B, 1)] = b"junk"
    with pytest.raises(JournalDamaged, match="00000001"):
        await fenced(store)
    store._objects[slot_name(B, 1)] = store._objects[slot_name(B, 0)]
    with pytest.raises(JournalDamaged, match="00000001"):
        await fenced(store)


async def test_a_body_that_is_damaged_is_told_after_what_is_sound(store: Store) -> None:
    for number in range(3):
        store.put(number)
    name = slot_name(B, 1)
    store._objects[name] = store._objects[name][:-1] + b"!"
    reading = read_slots(store, B, range(3))
    assert (await anext(reading)).number == 0
    with pytest.raises(JournalDamaged, match="00000001"):
        await anext(reading)


async def test_reading_ends_where_another_recovery_has_deleted(store: Store) -> None:
    for number in (0, 1, 3):
        store.put(number)
    assert [commit.number async for commit in read_slots(store, B, range(4))] == [0, 1]


async def test_memory_holds_one_slot_and_the_beginnings_of_some(store: Store) -> None:
    big = b"x" * (PIECE_BYTES + 1000)
    for number in range(100):
        store.put(number, payload=big)
    seen = 0
    async for commit in read_slots(store, B, range(100)):
        assert bytes(commit.frames[0].payload) == big
        seen += 1
        begun = len(store.reads()) - seen  # each was read in two parts
        assert begun <= seen + READ_AHEAD
        await asyncio.sleep(0)
    assert seen == 100


async def test_a_reader_that_stops_leaves_nothing_under_way(store: Store) -> None:
    for number in range(50):
        store.put(number)
    reading = read_slots(store, B, range(50))
    assert (await anext(reading)).number == 0
    await reading.aclose()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_removal_leaves_the_fence_for_ever(store: Store) -> None:
    for number in range(40):
        store.put(number, 3)
    store.put(42, 3)
    await fenced(store)
    for _ in range(2):
        await remove_slots(store, B)
        assert await list_slots(store, B) == [40]
    store.put(39, 3)  # a twin that comes late
    assert len(await fenced(store)) == 0
    await remove_slots(store, B)
    assert await list_slots(store, B) == [40]


async def test_removal_needs_a_fence(store: Store) -> None:
    await remove_slots(store, B)
    store.put(0)
    with pytest.raises(JournalDamaged, match="no fence"):
        await remove_slots(store, B)
    assert await list_slots(store, B) == [0]


async def test_a_removal_that_fails_in_between_is_repeated_and_misleads_no_recoverer(store: Store) -> None:
    for number in range(60):
        store.put(number)
    await fenced(store)
    fails = 0
    while len(await list_slots(store, B)) > 1:
        store.faults = lambda moment, name: _refuse(moment, name, {17, 35})
        if fails < 2:
            with pytest.raises(StoreUnavailable):
                await remove_slots(store, B)
            fails += 1
        store.faults = store._see
        assert len(await fenced(store)) in (0, 60)
        store.asked.clear()
        if fails == 2:
            await remove_slots(store, B)
    assert await list_slots(store, B) == [60]


def _refuse(moment: str, name: str, numbers: set[int]) -> None:
    if moment == "before delete" and int(name[-8:]) in numbers:
        raise StoreUnavailable("as told")

"""Fencing an object journal, reading what counts of it, letting it go: whatever state its broker left it in."""

import asyncio
from collections.abc import Iterable

import pytest

from seaweedq.errors import JournalDamaged, StoreUnavailable
from seaweedq.formats import Format
from seaweedq.journal.object_format import (
    MAX_UNDER_WAY,
    SlotHeader,
    SlotHeaders,
    SlotKind,
    done_name,
    encode_slot,
    index_end,
    list_slots,
    read_header,
    slot_name,
)
from seaweedq.journal.object_recovery import (
    INDEX_BYTES,
    PIECE_BYTES,
    READ_AHEAD,
    DeadObjectJournal,
    fence,
    read_slots,
    remove_slots,
)
from seaweedq.storage.memory import MemoryStore
from tests.support.journal.claims import unbounded
from tests.support.journal.sim_disk import CountedIds, acks
from tests.support.levels import newest

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

    def put(
        self,
        number: int,
        released: int = 0,
        kind: SlotKind = SlotKind.DATA,
        payload: bytes = b"",
        acknowledged: int = 0,
        version: int = 1,
    ) -> None:
        header = SlotHeader(kind, B, number, f"{number:032x}", released, acknowledged, version)
        frames = acks(payload or b"%d" % number) if kind is SlotKind.DATA else ()
        self.objects.setdefault(slot_name(B, number), encode_slot(header, frames))

    def drop(self, *numbers: int) -> None:
        for number in numbers:
            del self.objects[slot_name(B, number)]

    def reads(self) -> list[int]:
        return [number for act, number in self.asked if act == "read"]


@pytest.fixture
def store() -> Store:
    return Store()


async def fenced(store: Store, is_recovered: bool = False) -> range:
    return await fence(store, SlotHeaders(B, CountedIds(), newest), is_recovered)


async def kind_of(store: Store, number: int) -> SlotKind:
    return (await read_header(store, B, number)).kind


async def test_an_empty_journal_gets_a_fence_where_its_first_slot_would_go(store: Store) -> None:
    assert await fenced(store) == range(0)
    assert await list_slots(store, B) == [0]
    assert await kind_of(store, 0) is SlotKind.FENCE


async def test_the_run_ends_at_the_first_gap_and_begins_at_the_last_released(store: Store) -> None:
    for number, released in [(2, 0), (3, 2), (4, 3), (5, 3), (7, 3), (8, 4)]:
        store.put(number, released)
    assert await fenced(store) == range(4, 6)
    assert await kind_of(store, 6) is SlotKind.FENCE
    found = [commit async for commit in read_slots(store, B, range(4, 6), unbounded)]
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


async def test_of_many_slots_only_the_newest_headers_and_no_old_bodies_are_read(store: Store) -> None:
    for number in range(2500):
        store.put(number, max(number - 300, 0))
    assert await fenced(store) == range(2199, 2500)
    assert len(store.reads()) <= MAX_UNDER_WAY + 1, "each once, in two looks"
    assert min(store.reads()) > 2400
    store.asked.clear()
    numbers = [commit.number async for commit in read_slots(store, B, range(2199, 2500), unbounded)]
    assert numbers == store.reads() == list(range(2199, 2500))


async def test_a_window_of_slots_beyond_the_gap_hides_no_fence(store: Store) -> None:
    for number in range(200):
        store.put(number, 100)
    assert await fenced(store) == range(100, 200)
    for number in range(201, 200 + MAX_UNDER_WAY):
        store.put(number, 150)
    assert await fenced(store) == range(150, 200)
    assert await list_slots(store, B) == list(range(200 + MAX_UNDER_WAY))


async def test_a_journal_that_ends_in_fences_is_read_to_the_newest_data(store: Store) -> None:
    for number in range(10):
        store.put(number, 4)
    for number in range(10, 10 + 2 * MAX_UNDER_WAY):
        store.put(number, 0, SlotKind.FENCE)
    store.drop(10)
    assert (await fenced(store, is_recovered=True)).start == 4


async def test_a_slot_that_is_not_understood_makes_the_journal_unknown_not_empty(store: Store) -> None:
    store.put(0)
    store.objects[slot_name(B, 1)] = b"junk"
    with pytest.raises(JournalDamaged, match="00000001"):
        await fenced(store)
    store.objects[slot_name(B, 1)] = store.objects[slot_name(B, 0)]
    with pytest.raises(JournalDamaged, match="00000001"):
        await fenced(store)


async def test_a_body_that_is_damaged_is_told_after_what_is_sound(store: Store) -> None:
    for number in range(3):
        store.put(number)
    name = slot_name(B, 1)
    store.objects[name] = store.objects[name][:-1] + b"!"
    reading = read_slots(store, B, range(3), unbounded)
    assert (await anext(reading)).number == 0
    with pytest.raises(JournalDamaged, match="00000001"):
        await anext(reading)


async def test_reading_ends_at_a_deleted_or_lost_slot(store: Store) -> None:
    for number in (0, 1, 3):
        store.put(number)
    reading = read_slots(store, B, range(4), unbounded)
    assert [(await anext(reading)).number for _ in range(2)] == [0, 1]
    with pytest.raises(JournalDamaged, match="00000002 is missing: the object existed before"):
        await anext(reading)


async def test_memory_holds_one_slot_and_the_beginnings_of_some(store: Store) -> None:
    big = b"x" * (PIECE_BYTES + 1000)
    for number in range(100):
        store.put(number, payload=big)
    seen = 0
    async for commit in read_slots(store, B, range(100), unbounded):
        assert bytes(commit.frames[0].payload) == big
        seen += 1
        begun = len(store.reads()) - seen  # each was read in two parts
        assert begun <= seen + READ_AHEAD
        await asyncio.sleep(0)
    assert seen == 100


async def test_a_reader_that_stops_leaves_nothing_under_way(store: Store) -> None:
    for number in range(50):
        store.put(number)
    reading = read_slots(store, B, range(50), unbounded)
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
    assert len(await fenced(store, is_recovered=True)) == 0
    await remove_slots(store, B)
    assert await list_slots(store, B) == [40]


async def test_a_removal_says_once_and_first_that_it_is_done(store: Store) -> None:
    for number in range(3):
        store.put(number)
    await fenced(store)
    store.asked.clear()
    await remove_slots(store, B)
    changes = [act for act, _ in store.asked if act in ("create", "delete")]
    assert changes == ["create", "delete", "delete", "delete"]
    assert done_name(B) in store.objects
    await remove_slots(store, B)
    assert [act for act, _ in store.asked if act == "create"] == ["create"]


async def test_terms_are_read_without_payloads_and_of_each_slot_that_counts(store: Store) -> None:
    for number in range(3):
        store.put(number, payload=b"x" * 10 * INDEX_BYTES)
    dead = DeadObjectJournal(store, SlotHeaders(B, CountedIds(), newest), is_recovered=False)
    await dead.fence()
    store.asked.clear()
    assert await dead.terms() == {}, "acks have none"
    assert store.reads() == [0, 1, 2]
    spoilt = bytearray(store.objects[slot_name(B, 1)])
    spoilt[index_end(spoilt, slot_name(B, 1)) - 9] ^= 1
    store.objects[slot_name(B, 1)] = bytes(spoilt)
    with pytest.raises(JournalDamaged, match=r"00000001: the object was changed .*: its index differs"):
        await dead.terms()
    store.drop(1)
    with pytest.raises(JournalDamaged, match="00000001 is missing: the object existed before"):
        await dead.terms()


@pytest.mark.parametrize("lost", [0, 20, 195, 199])
async def test_of_a_journal_that_is_done_nothing_counts_or_misses(two_hundred: Store, lost: int) -> None:
    """Whatever its key says, which may be of an earlier day."""
    two_hundred.drop(lost)
    two_hundred.objects[done_name(B)] = b""
    assert len(await fenced(two_hundred)) == 0
    await remove_slots(two_hundred, B)
    assert len(await list_slots(two_hundred, B)) == 1


async def test_removal_needs_a_fence(store: Store) -> None:
    await remove_slots(store, B)
    store.put(0)
    with pytest.raises(JournalDamaged, match="no fence"):
        await remove_slots(store, B)
    assert await list_slots(store, B) == [0]
    assert done_name(B) not in store.objects


async def test_a_removal_that_fails_midway_is_repeated_and_misleads_no_recoverer(store: Store) -> None:
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
        assert len(await fenced(store, is_recovered=True)) in (0, 60)
        store.asked.clear()
        if fails == 2:
            await remove_slots(store, B)
    assert await list_slots(store, B) == [60]


def _refuse(moment: str, name: str, numbers: set[int]) -> None:
    if moment == "before delete" and int(name[-8:]) in numbers:
        raise StoreUnavailable("as told")


@pytest.fixture
def two_hundred(store: Store) -> Store:
    """A journal of version 2 with 200 slots, of which nothing was flushed; four puts were under way at a time."""
    for number in range(200):
        store.put(number, acknowledged=max(number - 3, 0))
    return store


def slots(store: Store) -> dict[str, bytes]:
    return dict(store.objects)


@pytest.mark.parametrize("lost", [0, 20, 195])
async def test_a_slot_that_was_lost_is_damage_and_all_evidence_stays(two_hundred: Store, lost: int) -> None:
    two_hundred.drop(lost)
    before = slots(two_hundred)
    for _ in range(2):
        with pytest.raises(
            JournalDamaged,
            match=f"{lost:08d} is missing: the journal once contained all objects with numbers below 196",
        ):
            await fenced(two_hundred)
    assert slots(two_hundred) == before
    two_hundred.put(lost)  # as an operator restores it
    assert await fenced(two_hundred) == range(200)


@pytest.mark.parametrize("lost", [196, 198])
async def test_what_no_slot_states_is_the_end_or_was_never_acknowledged(two_hundred: Store, lost: int) -> None:
    two_hundred.drop(lost)
    assert await fenced(two_hundred) == range(lost)


async def test_a_fence_far_below_the_newest_slot_is_found_when_it_is_read(two_hundred: Store) -> None:
    two_hundred.drop(20)
    two_hundred.put(20, 0, SlotKind.FENCE)  # a recovery of an earlier version took the gap for the end
    found = await fenced(two_hundred)
    with pytest.raises(JournalDamaged, match="00000020 marks the end of the journal, although the journal continues"):
        [commit async for commit in read_slots(two_hundred, B, found, unbounded)]


async def test_a_fence_inside_the_run_is_damage(two_hundred: Store) -> None:
    two_hundred.drop(190)
    two_hundred.put(190, 0, SlotKind.FENCE)
    before = slots(two_hundred)
    with pytest.raises(
        JournalDamaged,
        match=r"00000190 is missing: another object has its number, .* continued up to object number 195",
    ):
        await fenced(two_hundred)
    assert slots(two_hundred) == before


async def test_a_fence_that_was_lost_is_put_again(two_hundred: Store) -> None:
    assert await fenced(two_hundred) == range(200)
    two_hundred.drop(200)
    assert await fenced(two_hundred) == range(200)


async def test_a_slot_that_is_lost_behind_the_first_look_is_damage(two_hundred: Store) -> None:
    two_hundred.meanwhile["create", 200] = (two_hundred.drop(number) for number in (20,))
    with pytest.raises(JournalDamaged, match="00000020 is missing"):
        await fenced(two_hundred)


async def test_a_wrong_404_while_reading_is_no_end(two_hundred: Store) -> None:
    found = await fenced(two_hundred)
    held = two_hundred.objects.pop(slot_name(B, 20))
    with pytest.raises(JournalDamaged, match="00000020 is missing: the object existed before"):
        [commit async for commit in read_slots(two_hundred, B, found, unbounded)]
    two_hundred.objects[slot_name(B, 20)] = held
    assert [commit.number async for commit in read_slots(two_hundred, B, found, unbounded)] == list(range(200))


async def test_a_slot_that_listings_hide_is_read_by_its_name(store: Store) -> None:
    for number in range(200):
        store.put(number, acknowledged=max(number - 3, 0))
    listed = store.list

    async def hiding(prefix: str, after: str = "", limit: int = 1000) -> list[str]:
        return [name for name in await listed(prefix, after=after, limit=limit) if name != slot_name(B, 20)]

    store.list = hiding  # type: ignore[method-assign]
    assert await fenced(store) == range(200)
    assert len([commit async for commit in read_slots(store, B, range(200), unbounded)]) == 200


async def test_slots_that_land_amid_a_listing_are_no_damage(two_hundred: Store) -> None:
    """A page was read before slot 150 landed, and the next one when later slots stated it."""
    held = two_hundred.objects.pop(slot_name(B, 150))
    listed, pages = two_hundred.list, []

    async def landing(prefix: str, after: str = "", limit: int = 1000) -> list[str]:
        pages.append(await listed(prefix, after=after, limit=limit))
        two_hundred.objects[slot_name(B, 150)] = held
        return pages[-1]

    two_hundred.list = landing  # type: ignore[method-assign]
    assert await fenced(two_hundred) == range(200)


async def test_a_slot_that_is_listed_and_never_there_ends_the_look(store: Store) -> None:
    store.put(0)
    listed = store.list

    async def lying(prefix: str, after: str = "", limit: int = 1000) -> list[str]:
        return [*await listed(prefix, after=after, limit=limit), slot_name(B, 1)]

    store.list = lying  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable, match="that do not exist"):
        await fenced(store)


async def test_of_a_recovered_journal_anything_may_be_missing(two_hundred: Store) -> None:
    two_hundred.drop(*range(150))  # the clean stop of its broker was cut short
    assert len(await fenced(two_hundred, is_recovered=True)) == 0
    await remove_slots(two_hundred, B)
    assert await list_slots(two_hundred, B) == [0]


async def test_a_twin_that_lands_late_states_less_than_the_newest_slot(store: Store) -> None:
    store.put(3, 1, acknowledged=2)  # long released and deleted, and here again
    store.put(29, 28, acknowledged=29)
    store.put(30, 29, acknowledged=30)
    assert await fenced(store) == range(29, 31)


async def test_a_journal_may_go_on_in_the_version_of_a_higher_level(
    store: Store, monkeypatch: pytest.MonkeyPatch, next_level: int
) -> None:
    monkeypatch.setattr("seaweedq.journal.object_format.SLOTS", Format("slots", {1: 1, next_level: 2}))
    for number in range(200):
        store.put(number, acknowledged=max(0, number - 3), version=2 if number >= 100 else 1)
    store.put(200, acknowledged=197, version=2)
    store.drop(196)
    store.put(201, acknowledged=198, version=2)
    with pytest.raises(JournalDamaged, match="00000196 is missing"):
        await fenced(store)
    store.put(196, acknowledged=193, version=2)
    assert await fenced(store) == range(202)
    assert len([commit async for commit in read_slots(store, B, range(202), unbounded)]) == 202


async def test_a_removal_leaves_an_empty_journal_also_to_one_unaware_of_recovery(
    two_hundred: Store,
) -> None:
    """As after coordination was restored from a backup."""
    await fenced(two_hundred)
    await remove_slots(two_hundred, B)
    assert await list_slots(two_hundred, B) == [200]
    assert len(await fenced(two_hundred)) == 0


async def test_a_slot_behind_the_fence_lets_the_next_recovery_begin_later(store: Store) -> None:
    for number in range(6):
        store.put(number, acknowledged=max(0, number - 2))
    first = await fenced(store)
    store.put(7, released=3, acknowledged=5)  # it was under way, and its broker had let go of more by then
    second = await fenced(store)
    assert (first, second) == (range(6), range(3, 6))
    for slots in (first, second):  # the broker deletes only what an acknowledged slot lets go: 7 never is
        assert [commit.number async for commit in read_slots(store, B, slots, unbounded)] == list(slots)

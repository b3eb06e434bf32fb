"""The sweep of journals deletes those that say of themselves that they are done, a week later, and nothing else."""

from pathlib import Path
from typing import Any

import pytest

from seaweedq.broker.cluster.periodic_tasks import JournalSweep
from seaweedq.clock import SystemClock
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Put
from seaweedq.coordination.memory import MemoryCoordination
from seaweedq.coordination.records import JournalRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import Fenced, StoreUnavailable
from seaweedq.journal import object_recovery
from seaweedq.journal.backends import FileJournals, ObjectJournals
from seaweedq.journal.disk import Disk
from seaweedq.journal.home_folder import HomeFolder
from seaweedq.journal.interface import NeededJournal, Seen
from seaweedq.journal.object_format import BATCH, SlotHeader, SlotKind, decode_header, done_name, encode_slot, slot_name
from seaweedq.journal.object_recovery import KEPT_S
from seaweedq.storage.generations import Generation, Generations, create_generation
from seaweedq.storage.memory import MemoryStore
from tests.support import privates
from tests.support.journal.sim_disk import CountedIds, acks
from tests.support.levels import newest


async def put(store: MemoryStore, broker: str, number: int, age_s: float, writer: str | None = None) -> None:
    """A slot in a journal that is done."""
    header = SlotHeader(SlotKind.FENCE, writer or broker, number, "0" * 32, 0)
    assert await store.create(slot_name(broker, number), encode_slot(header, ()))
    store.ages_s[slot_name(broker, number)] = age_s
    await done(store, broker, 9 * KEPT_S)


async def done(store: MemoryStore, broker: str, age_s: float) -> None:
    await store.create(done_name(broker), b"")
    store.ages_s[done_name(broker)] = age_s


GENERATION = 3


class Knows(Generations):
    """The store knows no later generation."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())

    async def check(self) -> None:
        pass


def journals_in(store: MemoryStore) -> ObjectJournals:
    nothing: Any = None
    return ObjectJournals(nothing, store, nothing, CountedIds(), nothing, newest, lambda: Seen(GENERATION, 7))


async def needed(store: MemoryStore, broker: str, *kinds: SlotKind, generation: int = GENERATION) -> None:
    """A journal of such slots that is not done, and old."""
    for number, kind in enumerate(kinds):
        header = SlotHeader(kind, broker, number, "0" * 32, 0, seen=Seen(generation, 100))
        assert await store.create(slot_name(broker, number), encode_slot(header, ()))
        store.ages_s[slot_name(broker, number)] = 9 * KEPT_S


async def left(store: MemoryStore) -> list[str]:
    """All that is there but for `done`."""
    names = [name.removeprefix("_journals/") for name in await store.list("_journals/")]
    return [name for name in names if not name.endswith("/done")]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


async def swept(store: MemoryStore, *registered: str, living: tuple[str, ...] = ()) -> list[str]:
    coordination = MemoryCoordination(SystemClock())
    try:
        for broker in registered:
            value = keys.JOURNALS.encode(Versioned.new(JournalRecord("object", "p")))
            await coordination.commit([], [Put(keys.JOURNALS.key(broker), value)])
        for broker in living:
            await coordination.commit([], [Put(keys.BROKERS.key(broker), b"a record of a later version")])
        await JournalSweep(coordination, journals_in(store), Knows()).sweep()
    finally:
        await coordination.close()
    return await left(store)


async def test_what_was_recovered_a_week_ago_goes(store: MemoryStore) -> None:
    for number in (3, 40, 41):
        await put(store, "dead", number, KEPT_S + number)
    await put(store, "other", 0, KEPT_S)
    await done(store, "only", KEPT_S)
    assert await swept(store) == []
    assert not store.objects


async def test_what_is_not_done_stays_however_old_and_is_named(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Coordination knows nothing of it, so that is of an earlier day; what the journal holds was acknowledged."""
    await needed(store, "needed", SlotKind.DATA, SlotKind.DATA, SlotKind.FENCE)
    await put(store, "dead", 0, KEPT_S)
    assert await swept(store) == ["needed/00000000", "needed/00000001", "needed/00000002"]
    assert done_name("needed") not in store.objects
    (record,) = caplog.records
    assert "keeping the journal _journals/needed/ with 3 objects" in record.getMessage()


async def test_a_copy_stays_as_long_as_its_journal_is_needed(store: MemoryStore) -> None:
    """Coordination of an earlier day has forgotten both; the copy has commits that were acknowledged."""
    await needed(store, "needed", SlotKind.DATA)
    await put(store, "dead", 0, KEPT_S)
    for broker in ("needed", "dead"):
        name = slot_name(f"{broker}~1", 0)
        store.objects[name], store.ages_s[name] = b"", 9 * KEPT_S
    assert await swept(store) == ["needed/00000000", "needed~1/00000000"]


@pytest.mark.parametrize(
    "kinds", [(SlotKind.FENCE,), (SlotKind.DATA,), (SlotKind.FENCE, SlotKind.DATA), (SlotKind.DATA, SlotKind.FENCE)]
)
async def test_a_journal_that_no_rebuild_has_known_is_fenced_and_done(
    store: MemoryStore, kinds: tuple[SlotKind, ...]
) -> None:
    """Its broker has seen the later generation before it acknowledged anything. A week later it goes."""
    await needed(store, "unknown", *kinds, generation=GENERATION - 1)
    await swept(store)
    assert done_name("unknown") in store.objects
    fences = {name for name, data in store.objects.items() if data and decode_header(data, name).kind is SlotKind.FENCE}
    assert fences
    store.ages_s |= dict.fromkeys(store.objects, KEPT_S)
    assert await swept(store) == []
    assert not store.objects


async def test_an_unknown_journal_that_is_damaged_stays(store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    await needed(store, "unknown", SlotKind.DATA, SlotKind.DATA, generation=GENERATION - 1)
    store.objects[slot_name("unknown", 0)] = b"x"
    assert await swept(store) == ["unknown/00000000", "unknown/00000001"]
    assert done_name("unknown") not in store.objects
    (record,) = caplog.records
    assert "does not begin with the header of a journal object" in record.getMessage()


async def test_a_sweep_of_an_earlier_generation_deletes_nothing(store: MemoryStore) -> None:
    await put(store, "dead", 0, 9 * KEPT_S)
    generations = Generations(store)
    for number in (1, 2):
        assert await create_generation(store, Generation(number, ""))
    with pytest.raises(Fenced):
        await JournalSweep(MemoryCoordination(SystemClock()), journals_in(store), generations).sweep()
    assert await left(store) == ["dead/00000000"]


async def test_needed_are_those_with_data_that_are_not_done(store: MemoryStore) -> None:
    await needed(store, "fences", SlotKind.FENCE, SlotKind.FENCE)
    await needed(store, "new", SlotKind.DATA, SlotKind.DATA, SlotKind.FENCE)
    await needed(store, "old", *[SlotKind.DATA] * 3, generation=1)
    await needed(store, "damaged", SlotKind.DATA)
    store.objects[slot_name("damaged", 0)] = b"x"
    await put(store, "dead", 0, 0)
    await done(store, "only", 0)
    assert await store.create("_journals/strange/readme.txt", b"")
    found = {one.broker: one for one in await journals_in(store).needed()}
    record = JournalRecord("object", "")
    assert (
        found.pop("damaged").unread
        == "_journals/damaged/00000000: the object does not begin with the header of a journal object"
    )
    assert found == {
        "new": NeededJournal("new", record, Seen(GENERATION, 100)),
        "old": NeededJournal("old", record, Seen(1, 100)),
    }


async def test_needed_are_read_by_pages_and_with_few_requests(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_recovery, "PAGE", 7)
    for broker in "abc":
        await needed(store, broker, *[SlotKind.DATA] * 20)
    asked: list[str] = []
    store.faults = lambda moment, name: asked.append(moment) if moment.startswith("before") else None
    assert [one.broker for one in await journals_in(store).needed()] == ["a", "b", "c"]
    assert asked == ["before list"] * 9 + ["before read"] * 3


async def test_needed_follows_a_broker_that_goes_on(store: MemoryStore) -> None:
    await needed(store, "living", SlotKind.DATA)

    def go_on(moment: str, name: str) -> None:
        if moment == "before read" and slot_name("living", 0) in store.objects:
            newer = SlotHeader(SlotKind.DATA, "living", 1, "0" * 32, 1, seen=Seen(GENERATION, 101))
            store.objects[slot_name("living", 1)] = encode_slot(newer, ())
            del store.objects[slot_name("living", 0)]

    store.faults = go_on
    (found,) = await journals_in(store).needed()
    assert found.seen == Seen(GENERATION, 101)


async def test_a_sweep_that_is_cut_off_leaves_done(store: MemoryStore) -> None:
    for number in range(2 * BATCH):
        await put(store, "dead", number, KEPT_S)

    def refuse(moment: str, name: str) -> None:
        if moment == "before delete" and name in (slot_name("dead", BATCH + 1), done_name("dead")):
            raise StoreUnavailable("as told")

    store.faults = refuse
    with pytest.raises(StoreUnavailable):
        await swept(store)
    assert await left(store) == [f"dead/{BATCH + 1:08d}"]
    assert done_name("dead") in store.objects
    store.faults = lambda moment, name: None
    assert await swept(store) == []
    assert not store.objects


async def test_it_stays_for_a_week_behind_its_newest_object(store: MemoryStore) -> None:
    await put(store, "dead", 3, KEPT_S - 1)
    await put(store, "dead", 4, 9 * KEPT_S)
    await put(store, "done", 0, 9 * KEPT_S)
    await done(store, "done", KEPT_S - 1)
    assert await swept(store) == ["dead/00000003", "dead/00000004", "done/00000000"]


async def test_what_a_broker_or_a_recovery_may_need_stays_however_old_it_is(store: MemoryStore) -> None:
    for broker in ("registered", "living", "dead"):
        await put(store, broker, 0, 9 * KEPT_S)
    assert await swept(store, "registered", living=("living",)) == ["living/00000000", "registered/00000000"]


async def test_a_broker_that_begins_during_the_listing_keeps_its_slots(store: MemoryStore) -> None:
    """Its keys are there before its slots, and they are read behind the listing."""
    coordination = MemoryCoordination(SystemClock())
    await put(store, "dead", 0, KEPT_S)

    def begin(moment: str, name: str) -> None:
        if moment == "after list":
            store.faults = lambda moment, name: None
            privates.engine(coordination).commit([], [Put(keys.BROKERS.key("dead"), b"")])  # type: ignore[attr-defined]

    store.faults = begin
    await JournalSweep(coordination, journals_in(store), Knows()).sweep()
    await coordination.close()
    assert await left(store) == ["dead/00000000"]


async def test_what_is_not_that_brokers_stays(store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    await put(store, "copy", 0, KEPT_S, writer="dead")
    for name in ("damaged/00000000", "strange/readme.txt", "beside"):
        assert await store.create(f"_journals/{name}", b"x")
        store.ages_s[f"_journals/{name}"] = KEPT_S
    await done(store, "damaged", KEPT_S)
    assert await swept(store) == ["beside", "copy/00000000", "damaged/00000000", "strange/readme.txt"]
    assert len(caplog.records) == 3
    assert "copy/00000000: the object's content belongs to another object, _journals/dead/00000000" in caplog.text


async def test_a_folder_of_files_goes_once_it_is_done_and_nobody_has_its_key(tmp_path: Path) -> None:
    home = HomeFolder(tmp_path, Disk(), CountedIds())
    journals = FileJournals(home, Disk(), CountedIds(), 1, newest)
    for broker in ("needed", "known", "dead", "last"):
        journal = journals.create(broker)
        for _ in range(3):
            await journal.append(acks(b"x"))
        await journal.close()
        if broker != "needed":
            (tmp_path / "journals" / broker / "done").touch()
    for path in (tmp_path / "journals" / "last").glob("*.journal"):
        path.unlink()

    async def known() -> set[str]:
        return {"known"}

    assert await journals.sweep(known) == 4 + 1
    assert sorted(path.name for path in (tmp_path / "journals").iterdir()) == ["known", "needed"]
    assert await journals.sweep(known) == 0
    assert len([*(tmp_path / "journals").glob("*/*.journal")]) == 6

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
from seaweedq.errors import StoreUnavailable
from seaweedq.journal.backends import FileJournals, ObjectJournals
from seaweedq.journal.disk import Disk
from seaweedq.journal.home_folder import HomeFolder
from seaweedq.journal.object_format import BATCH, SlotHeader, SlotKind, done_name, encode_slot, slot_name
from seaweedq.journal.object_recovery import KEPT_S
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


def journals_in(store: MemoryStore) -> ObjectJournals:
    nothing: Any = None
    return ObjectJournals(nothing, store, nothing, nothing, nothing, nothing)


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
        await JournalSweep(coordination, journals_in(store)).sweep()
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
    await put(store, "needed", 0, 9 * KEPT_S)
    del store.objects[done_name("needed")]
    await put(store, "dead", 0, KEPT_S)
    assert await swept(store) == ["needed/00000000"]
    (record,) = caplog.records
    assert "_journals/needed/ has 1 slots, and coordination has no key of it" in record.getMessage()


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
    await JournalSweep(coordination, journals_in(store)).sweep()
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

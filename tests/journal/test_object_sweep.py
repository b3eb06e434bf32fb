"""The sweep of object journals deletes what nobody needs any more, a week later, and nothing else."""

from typing import Any

import pytest

from seaweedq.broker.cluster.periodic_tasks import JournalSweep
from seaweedq.clock import SystemClock
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Put
from seaweedq.coordination.memory import MemoryCoordination
from seaweedq.coordination.records import JournalRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.journal.backends import ObjectJournals
from seaweedq.journal.object_format import SlotHeader, SlotKind, encode_slot, slot_name
from seaweedq.journal.object_recovery import KEPT_S
from seaweedq.storage.memory import MemoryStore
from tests.support import privates


async def put(store: MemoryStore, broker: str, number: int, age_s: float, writer: str | None = None) -> None:
    header = SlotHeader(SlotKind.FENCE, writer or broker, number, "0" * 32, 0)
    assert await store.create(slot_name(broker, number), encode_slot(header, ()))
    store.ages_s[slot_name(broker, number)] = age_s


def journals_in(store: MemoryStore) -> ObjectJournals:
    nothing: Any = None
    return ObjectJournals(nothing, store, nothing, nothing, nothing, nothing)


async def left(store: MemoryStore) -> list[str]:
    return [name.removeprefix("_journals/") for name in await store.list("_journals/")]


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
    assert await swept(store) == []


async def test_it_stays_for_a_week_behind_its_newest_object(store: MemoryStore) -> None:
    await put(store, "dead", 3, KEPT_S - 1)
    await put(store, "dead", 4, 9 * KEPT_S)
    assert await swept(store) == ["dead/00000003", "dead/00000004"]


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
    assert await swept(store) == ["beside", "copy/00000000", "damaged/00000000", "strange/readme.txt"]
    assert len(caplog.records) == 3

"""A slot that the store has lost: its journal's segments wait, and everything stays where it is until the slot is back.
A wrong 404 costs one more try."""

import logging
from pathlib import Path

import pytest

from seaweedq.broker.broker import Broker
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Put
from seaweedq.coordination.watermark import watermark
from seaweedq.errors import JournalDamaged
from seaweedq.journal.interface import decode_seen
from seaweedq.journal.object_format import SlotHeader, SlotKind, done_name, encode_slot, slot_name
from seaweedq.storage.memory import MemoryStore
from tests.support.brokers import inside
from tests.support.brokers.in_process import make_topic, publish
from tests.support.brokers.in_process_cluster import InLoop, in_loop, until

pytestmark = pytest.mark.brokers

MESSAGES = 40
LOST = 20


class ForgetfulStore(MemoryStore):
    """Says once that a slot does not exist."""

    forgotten: str | None = None

    async def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """As MemoryStore; the body alone is asked for by more than a header's bytes."""
        if name == self.forgotten and (end is None or end > 1000):
            self.forgotten = None
            raise FileNotFoundError(name)
        return await super().read(name, start, end)


async def written(together: InLoop) -> str:
    """Messages in as many slots of a broker, and its id."""
    dead = together.brokers[1]
    topic = await make_topic(dead, "theirs")
    assert inside.catalog(dead).segment(topic, 0).record.owner == dead.id
    await publish(dead, topic, *map(str, range(MESSAGES)))
    return dead.id


async def recovered(together: InLoop, dead: str) -> int:
    """The end of the segment, once a living broker has it."""
    leader: Broker = together.brokers[0]
    topic = inside.topic(leader, "theirs")
    await until(lambda: inside.catalog(leader).segment(topic, 0).record.owner == leader.id)
    await until(lambda: dead not in inside.roster(leader).journals)
    (segment,) = await inside.ownership(leader).mine(topic)
    return segment.end


async def test_its_segments_wait_and_all_evidence_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with in_loop(tmp_path, 2, journal="object") as together:
        leader, store = together.brokers[0], together.store
        dead = await written(together)
        lost = store.objects.pop(slot_name(dead, LOST))
        left = {name for name in store.objects if name.startswith(f"_journals/{dead}")}
        await together.crash(together.brokers[1])
        await until(lambda: f"the journal of broker {dead} has not been recovered yet" in caplog.text)
        assert (
            f"{slot_name(dead, LOST)} is missing: the journal once contained all objects with numbers below"
            in caplog.text
        )
        assert {name for name in store.objects if name.startswith(f"_journals/{dead}")} == left
        assert not inside.roster(leader).journals[dead].record.recovered
        assert inside.catalog(leader).segment(inside.topic(leader, "theirs"), 0).record.owner == dead
        store.objects[slot_name(dead, LOST)] = lost
        assert await recovered(together, dead) == MESSAGES


async def test_a_404_while_reading_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = ForgetfulStore()
    async with in_loop(tmp_path, 2, store, journal="object") as together:
        dead = await written(together)
        store.forgotten = slot_name(dead, LOST)
        await together.crash(together.brokers[1])
        assert await recovered(together, dead) == MESSAGES
        assert f"{slot_name(dead, LOST)} is missing: the object existed before" in caplog.text


async def test_what_is_missing_since_another_recovery_has_finished_is_no_damage(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 2, journal="object") as together:
        leader, store = together.brokers[0], together.store
        dead = await written(together)
        del store.objects[slot_name(dead, LOST)]
        key = keys.JOURNALS.key(dead)
        there = await together.coordination.get(key)
        assert there
        before = keys.JOURNALS.read(there)
        with pytest.raises(JournalDamaged):
            await inside.recovery(leader).recover(dead, before)
        await together.coordination.commit([], [Put(key, keys.JOURNALS.encode(before.replace(recovered=True)))])
        assert await inside.recovery(leader).recover(dead, before), "the record was read before the other one marked it"
        await together.crash(together.brokers[1])


async def test_a_key_of_an_earlier_day_finds_the_journal_done(tmp_path: Path) -> None:
    """Coordination went back to before the note that the journal was recovered, and slots of it have gone since."""
    async with in_loop(tmp_path, 2, journal="object") as together:
        leader, store = together.brokers[0], together.store
        dead = await written(together)
        key = keys.JOURNALS.key(dead)
        there = await together.coordination.get(key)
        assert there
        await together.crash(together.brokers[1])
        assert await recovered(together, dead) == MESSAGES
        stated = store.objects.pop(done_name(dead))
        assert decode_seen(stated).revision <= await watermark(together.coordination)
        for number in (0, 1, LOST + 1):
            store.objects[slot_name(dead, number)] = encode_slot(
                SlotHeader(SlotKind.DATA, dead, number, "0" * 32, 0, number), ()
            )
        before = keys.JOURNALS.read(there)
        await together.coordination.commit([], [Put(key, there.value)])
        with pytest.raises(JournalDamaged):
            await inside.recovery(leader).recover(dead, before)
        store.objects[done_name(dead)] = stated
        assert await inside.recovery(leader).recover(dead, before)
        assert await together.coordination.get(key) is None


async def test_a_stop_whose_lease_has_ended_removes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its key does not say that the journal was recovered, so a recovery may be reading it."""
    caplog.set_level(logging.INFO, "seaweedq.broker.recovery.journal_recovery")
    async with in_loop(tmp_path, 2, journal="object") as together:
        stopping, removed = together.brokers[1], []
        journal = inside.journal(stopping)

        async def remove() -> None:
            removed.append(True)

        monkeypatch.setattr(journal, "remove", remove)
        await together.crash(stopping)
        await inside.registration(stopping).retire(journal)
        assert not removed
        assert (
            "this broker could not remove its journal, so another broker will recover and remove it: "
            "this broker's lease has expired" in caplog.text
        )

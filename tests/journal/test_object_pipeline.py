"""Several puts under way: what is acknowledged, in which order, and what a fence, a cancel or a close does to it."""

import asyncio

import pytest

from seaweedq.errors import Fenced, JournalUnavailable
from seaweedq.journal.object_format import SlotHeaders
from seaweedq.journal.object_journal import ObjectJournal
from seaweedq.journal.object_recovery import fence
from seaweedq.storage.memory import MemoryStore
from tests.support.journal.held_store import Hands, HeldStore, settle
from tests.support.journal.sim_disk import CountedIds, acks
from tests.support.levels import newest


async def begin(journal: ObjectJournal, count: int) -> list[asyncio.Task[int]]:
    appends = [asyncio.create_task(journal.append(acks(b"%d" % n))) for n in range(count)]
    await settle()
    return appends


async def fence_at(store: HeldStore) -> range:
    """A recovery of which the store takes the puts at once."""
    other = MemoryStore()
    other.objects = store.objects
    return await fence(other, SlotHeaders("b", CountedIds(), newest))


async def test_a_slot_is_acknowledged_when_all_before_it_are_durable(journal: ObjectJournal, store: HeldStore) -> None:
    appends = await begin(journal, 3)
    assert [put.slot for put in store.puts] == [0, 1, 2]
    await store.puts[2].end()
    await store.puts[1].end()
    assert store.slots == [1, 2]
    assert not any(append.done() for append in appends)
    assert journal.unreleased_bytes == 0
    await store.puts[0].end()
    assert [append.result() for append in appends] == [0, 1, 2]
    assert journal.unreleased_bytes == sum(len(put.data) for put in store.puts)


async def test_answers_come_in_the_order_of_the_appends(journal: ObjectJournal, store: HeldStore) -> None:
    answered: list[int] = []
    appends = await begin(journal, 4)
    for append in appends:
        append.add_done_callback(lambda done: answered.append(done.result()))
    for put in reversed(store.puts):
        put.answer.set_result(put.land())
    await settle()
    assert answered == [0, 1, 2, 3]


async def test_a_fence_refuses_its_slot_and_all_later_ones_for_ever(journal: ObjectJournal, store: HeldStore) -> None:
    appends = await begin(journal, 4)
    store.puts[0].land()
    store.puts[2].land()
    assert await fence_at(store) == range(1)
    for put in reversed(store.puts):
        await put.end()
    assert appends[0].result() == 0, "the recovery reads it"
    for append in appends[1:]:
        with pytest.raises(Fenced):
            await append
    for _ in range(2):
        with pytest.raises(Fenced):
            await journal.append(acks(b"later"))
    await journal.close()
    with pytest.raises(Fenced):
        await journal.remove()


async def test_a_known_fence_refuses_new_appends_before_older_ones_end(
    journal: ObjectJournal, store: HeldStore
) -> None:
    appends = await begin(journal, 2)
    store.puts[0].land()
    await fence_at(store)
    await store.puts[1].end()
    with pytest.raises(Fenced):
        await journal.append(acks(b"later"))
    assert not any(append.done() for append in appends)
    await store.puts[0].end()
    assert appends[0].result() == 0
    assert isinstance(appends[1].exception(), Fenced)


async def test_a_cancelled_append_leaves_no_hole(journal: ObjectJournal, store: HeldStore) -> None:
    first, second = await begin(journal, 2)
    first.cancel()
    await store.puts[1].end()
    assert not second.done()
    await store.puts[0].end()
    assert await second == 1
    assert store.slots == [0, 1]


async def test_cancelled_appends_still_take_room(journal: ObjectJournal, store: HeldStore, hands: Hands) -> None:
    """More slots under way than the window would hide a fence from a recovery."""
    for append in await begin(journal, 4):
        append.cancel()
    await settle()
    with pytest.raises(AssertionError, match="one append"):
        await journal.append(acks(b"a"))
    waiting = asyncio.create_task(journal.pace(asyncio.Event()))
    await hands.turn(1)
    assert not waiting.done()
    await store.puts[0].end()
    assert waiting.done()


async def test_close_waits_for_no_put_and_says_that_the_outcome_is_unknown(
    journal: ObjectJournal, store: HeldStore
) -> None:
    durable, open_ = await begin(journal, 2)
    pacing = asyncio.create_task(journal.pace(asyncio.Event()))
    await store.puts[0].end()
    await journal.close()
    await settle()
    assert await durable == 0
    assert pacing.done()
    with pytest.raises(JournalUnavailable, match="unknown"):
        await open_
    journal.release(1)
    with pytest.raises(JournalUnavailable, match="unknown"):
        await journal.remove()
    assert store.slots == [0]


async def test_a_journal_of_which_something_is_needed_is_not_removed(journal: ObjectJournal, store: HeldStore) -> None:
    appends = await begin(journal, 2)
    for put in store.puts:
        await put.end()
    assert [await append for append in appends] == [0, 1]
    journal.release(1)
    await journal.close()
    with pytest.raises(AssertionError, match="needed"):
        await journal.remove()
    assert store.slots == [0, 1]


async def test_what_is_not_durable_cannot_be_released(journal: ObjectJournal) -> None:
    await begin(journal, 1)
    with pytest.raises(AssertionError, match="durable"):
        journal.release(1)


async def test_an_error_that_is_not_the_stores_ends_the_journal(journal: ObjectJournal, store: HeldStore) -> None:
    first, second = await begin(journal, 2)
    store.puts[0].answer.set_exception(MemoryError())
    await settle()
    for append in (first, second):
        with pytest.raises(MemoryError):
            await append
    with pytest.raises(MemoryError):
        await journal.append(acks(b"a"))

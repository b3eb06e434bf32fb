"""What becomes of slots that are not needed any more; and a broker at rest, which asks the store for nothing."""

import asyncio

from seaweedq.journal.object_format import BATCH, MAX_UNDER_WAY, MAX_WINDOW, read_header
from seaweedq.journal.object_journal import ObjectJournal
from seaweedq.journal.object_recovery import read_slots
from tests.support.journal.claims import unbounded
from tests.support.journal.held_store import Hands, HeldStore, journal_on, settle
from tests.support.journal.sim_disk import acks

BEGUN = ["create _journals/b/done", "list _journals/b/", "delete _journals/b/00000001", "delete _journals/b/00000003"]


async def append(journal: ObjectJournal, store: HeldStore, count: int = 1) -> int:
    for _ in range(count):
        task = asyncio.create_task(journal.append(acks(b"a")))
        await settle()
        await store.puts[-1].end()
    return await task


async def test_a_slot_states_what_was_released_when_it_was_made(journal: ObjectJournal, store: HeldStore) -> None:
    await append(journal, store, 2)
    journal.release(1)
    waiting = asyncio.create_task(journal.append(acks(b"a")))
    await settle()
    journal.release(2)
    await store.puts[-1].end()
    await waiting
    assert [(await read_header(store, "b", n)).released for n in store.slots] == [0, 1]
    await append(journal, store)
    assert (await read_header(store, "b", 3)).released == 2


async def test_a_slot_goes_only_when_a_newer_one_that_says_so_is_acknowledged(
    journal: ObjectJournal, store: HeldStore
) -> None:
    await append(journal, store, 3)
    journal.release(2)
    await settle()
    assert store.slots == [0, 1, 2], "nothing durable says it"
    two = [asyncio.create_task(journal.append(acks(b"a"))) for _ in range(2)]
    await settle()
    await store.puts[4].end()
    assert store.slots == [0, 1, 2, 4], "4 says it, and 3 may still be fenced"
    await store.puts[3].end()
    assert store.slots == [2, 3, 4]
    assert [task.result() for task in two] == [3, 4]


async def test_the_newest_slot_stays(journal: ObjectJournal, store: HeldStore) -> None:
    for n in range(5):
        await append(journal, store)
        journal.release(n + 1)
        await settle()
        assert store.slots == [n]


async def test_deletions_are_bounded_oldest_first_and_their_failure_is_no_harm(
    journal: ObjectJournal, store: HeldStore
) -> None:
    await append(journal, store, 2 * BATCH + 3)
    journal.release(2 * BATCH)
    store.refuse = lambda moment, name: moment == "before delete" and name.endswith(f"{BATCH:08d}")
    await append(journal, store)
    assert store.slots == [BATCH, *range(2 * BATCH, 2 * BATCH + 4)]
    store.refuse = lambda moment, name: False
    await append(journal, store)
    assert store.slots == [*range(2 * BATCH, 2 * BATCH + 5)]


async def test_at_rest_one_empty_slot_says_so_and_nothing_more_is_asked(
    journal: ObjectJournal, store: HeldStore, hands: Hands
) -> None:
    await append(journal, store, 3)
    journal.release(3)
    await hands.turn(0.9)
    assert len(store.puts) == 3
    await hands.turn(0.2)
    assert len(store.puts) == 4
    await store.puts[3].end()
    assert store.slots == [3]
    assert [commit.frames async for commit in read_slots(store, "b", range(3, 4), unbounded)] == [()]
    assert (await read_header(store, "b", 3)).released == 3
    store.requests.clear()
    for _ in range(50):
        journal.release(3)
        await hands.turn(100)
    assert (len(store.puts), store.requests) == (4, [])


async def test_the_empty_slot_takes_a_number_that_no_commit_has(
    journal: ObjectJournal, store: HeldStore, hands: Hands
) -> None:
    assert await append(journal, store) == 0
    journal.release(1)
    await hands.turn(1)
    await store.puts[-1].end()
    assert await append(journal, store) == 2
    assert (await read_header(store, "b", 2)).released == 2
    journal.release(3)
    await hands.turn(1)
    await store.puts[-1].end()
    assert store.slots == [3]
    assert await append(journal, store) == 4
    assert journal.unreleased_bytes > 0


async def test_what_is_still_needed_keeps_the_journal_from_resting(
    journal: ObjectJournal, store: HeldStore, hands: Hands
) -> None:
    await append(journal, store, 2)
    journal.release(1)
    await hands.turn(10)
    assert len(store.puts) == 2


async def test_an_append_in_time_takes_the_place_of_the_empty_slot(
    journal: ObjectJournal, store: HeldStore, hands: Hands
) -> None:
    await append(journal, store)
    journal.release(1)
    await hands.turn(0.9)
    assert await append(journal, store) == 1
    await hands.turn(0.9)
    assert len(store.puts) == 2
    journal.release(2)
    journal.release(2)
    await hands.turn(0.9)
    assert len(store.puts) == 2
    await hands.turn(0.2)
    assert len(store.puts) == 3


async def test_an_append_beside_an_empty_slot_under_way(store: HeldStore, hands: Hands) -> None:
    journal = journal_on(store, hands, window=1)
    await append(journal, store)
    journal.release(1)
    await hands.turn(1)
    waiting = asyncio.create_task(journal.append(acks(b"a")))
    await settle()
    assert [put.slot for put in store.puts] == [0, 1, 2]
    await store.puts[2].end()
    assert not waiting.done()
    await store.puts[1].end()
    assert await waiting == 2
    journal.release(3)
    await hands.turn(1)
    await store.puts[3].end()
    assert store.slots == [3]


async def test_never_more_is_under_way_than_a_recovery_reckons_with(store: HeldStore, hands: Hands) -> None:
    journal = journal_on(store, hands, window=MAX_WINDOW)
    await append(journal, store)
    journal.release(1)
    await hands.turn(1)
    appends = [asyncio.create_task(journal.append(acks(b"a"))) for _ in range(MAX_WINDOW + 1)]
    await settle()
    assert len([put for put in store.puts if not put.answer.done()]) == MAX_UNDER_WAY
    assert isinstance(appends.pop().exception(), AssertionError)
    await journal.close()
    await asyncio.gather(*appends, return_exceptions=True)


async def test_a_journal_that_was_never_used_makes_no_request(store: HeldStore, hands: Hands) -> None:
    journal = journal_on(store, hands)
    journal.release(0)
    await hands.turn(10)
    await journal.close()
    await journal.remove()
    assert (store.puts, store.requests) == ([], [])


async def test_a_clean_stop_leaves_nothing_not_even_late_twins(
    journal: ObjectJournal, store: HeldStore, hands: Hands
) -> None:
    await append(journal, store, 3)
    journal.release(3)
    await append(journal, store)
    assert store.slots == [3]
    store.puts[1].land()
    journal.release(4)
    await journal.close()
    await hands.turn(10)
    await journal.remove()
    assert store.slots == []
    begun = store.requests.index("before create _journals/b/done")
    before = [request for request in store.requests[begun:] if request.startswith("before")]
    assert before == [f"before {what}" for what in BEGUN]

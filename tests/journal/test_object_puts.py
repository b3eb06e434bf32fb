"""One put of a slot: the same bytes until the answer is certain, a second try of a slow one, whose the name is."""

import asyncio

import pytest

from seaweedq.errors import Fenced
from seaweedq.journal.object_format import SlotHeader, SlotKind, encode_slot, slot_name
from seaweedq.journal.object_journal import LAST_PAUSE_S, ObjectJournal
from tests.support.journal.held_store import Hands, HeldStore, journal_on, settle
from tests.support.journal.sim_disk import acks

FENCE = encode_slot(SlotHeader(SlotKind.FENCE, "b", 0, "ab" * 16, 0), ())


@pytest.fixture
async def append(store: HeldStore, hands: Hands) -> asyncio.Task[int]:
    """The first append, whose put is under way."""
    task = asyncio.create_task(journal_of(store, hands).append(acks(b"a")))
    await settle()
    return task


def journal_of(store: HeldStore, hands: Hands) -> ObjectJournal:
    return journal_on(store, hands)


@pytest.mark.parametrize("landed", [False, True])
async def test_a_lost_answer_means_the_same_bytes_again(
    append: asyncio.Task[int], store: HeldStore, hands: Hands, landed: bool
) -> None:
    if landed:
        store.puts[0].land()
    await store.puts[0].lose()
    assert not append.done()
    assert len(store.puts) == 1, "not before a pause"
    await hands.turn(0.05)
    assert store.puts[1].data == store.puts[0].data
    await store.puts[1].end()
    assert await append == 0


async def test_pauses_grow_to_a_cap_and_tries_never_end(
    append: asyncio.Task[int], store: HeldStore, hands: Hands
) -> None:
    pauses = []
    for _ in range(20):
        await store.puts[-1].lose()
        tries, lost_s = len(store.puts), hands.now_s
        while len(store.puts) == tries:
            await hands.turn(1 / 32)  # which adds up without an error
        pauses.append(round(hands.now_s - lost_s, 3))
    assert pauses == sorted(pauses)
    assert max(pauses) == pytest.approx(LAST_PAUSE_S, abs=0.06)
    assert len({put.data for put in store.puts}) == 1
    await store.puts[-1].end()
    assert await append == 0


async def test_a_late_put_of_an_earlier_try_changes_nothing(
    append: asyncio.Task[int], store: HeldStore, hands: Hands
) -> None:
    await store.puts[0].lose()
    await hands.turn(0.05)
    await store.puts[1].end()
    store.puts[0].land()
    assert await append == 0
    assert list(store.objects.values()) == [store.puts[1].data]


async def test_anothers_slot_means_fenced(append: asyncio.Task[int], store: HeldStore) -> None:
    store.objects[slot_name("b", 0)] = FENCE
    await store.puts[0].end()
    with pytest.raises(Fenced):
        await append


async def test_a_name_that_is_taken_and_cannot_be_read_is_unknown(
    append: asyncio.Task[int], store: HeldStore, hands: Hands
) -> None:
    name = slot_name("b", 0)
    store.refuse = lambda moment, _: moment == "before read"
    store.puts[0].land()
    await store.puts[0].lose()
    for unreadable in ("refused", b"cut", None):
        await hands.turn(0.5)
        if unreadable == b"cut":
            store.refuse = lambda moment, name: False
            store.objects[name] = b"cut"
        if unreadable is None:
            del store.objects[name]
        store.puts[-1].answer.set_result(False)
        await settle()
        assert not append.done()
    await hands.turn(0.5)
    await store.puts[-1].end()
    assert await append == 0


async def test_a_slow_put_is_tried_a_second_time_with_the_same_bytes(
    append: asyncio.Task[int], store: HeldStore, hands: Hands
) -> None:
    await hands.turn(0.5)
    assert len(store.puts) == 1
    await hands.turn(0.2)
    assert [put.data for put in store.puts] == [store.puts[0].data] * 2
    await hands.turn(60)
    assert len(store.puts) == 2, "one hedge a try"
    await store.puts[1].end()
    assert await append == 0
    assert store.puts[0].answer.cancelled(), "nobody waits for the slow one"


async def test_the_first_of_two_tries_may_win_late_or_fail(
    append: asyncio.Task[int], store: HeldStore, hands: Hands
) -> None:
    await hands.turn(1)
    await store.puts[1].lose()
    assert not append.done()
    assert len(store.puts) == 2, "the first is still under way"
    await store.puts[0].end()
    assert await append == 0


async def test_of_two_tries_one_that_lands_is_found_by_the_other(
    append: asyncio.Task[int], store: HeldStore, hands: Hands
) -> None:
    await hands.turn(1)
    store.puts[0].land()
    await store.puts[1].end()
    assert await append == 0
    assert any(request.startswith("before read") for request in store.requests)


async def test_two_failed_tries_are_one_failure(append: asyncio.Task[int], store: HeldStore, hands: Hands) -> None:
    await hands.turn(1)
    await store.puts[0].lose()
    await store.puts[1].lose()
    await hands.turn(0.05)
    assert len(store.puts) == 3
    await store.puts[2].end()
    assert await append == 0


async def test_patience_follows_the_usual_time(store: HeldStore, hands: Hands) -> None:
    journal = journal_of(store, hands)
    for _ in range(60):
        append = asyncio.create_task(journal.append(acks(b"a")))
        await settle()
        await hands.turn(0.05)
        await store.puts[-1].end()
        await append
    append = asyncio.create_task(journal.append(acks(b"slow")))
    await settle()
    tries = len(store.puts)
    await hands.turn(0.14)
    assert len(store.puts) == tries
    await hands.turn(0.03)
    assert len(store.puts) == tries + 1
    append.cancel()

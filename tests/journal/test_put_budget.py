"""The budget of an object journal's puts: what it lets through, how long it makes commits wait, what a debt does."""

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seaweedq.journal.pacing import BURST, DEBT_S, MANY_APART_S, MANY_NEEDED, MOST_PACES, RATE_S, Pace, Pacer, PutBudget
from tests.support.journal.held_store import Hands, HeldStore, journal_on, settle
from tests.support.journal.sim_disk import acks

PER_S = 8.0
STEPS = st.lists(st.tuples(st.floats(0, 2), st.booleans()), min_size=1, max_size=300)  # (rest, whether it waits)


def spent(budget: PutBudget, now_s: float, puts: int) -> None:
    for _ in range(puts):
        budget.spend(now_s)


@given(STEPS)
def test_a_wait_is_bounded_and_what_waits_keeps_to_burst_and_rate(steps: list[tuple[float, bool]]) -> None:
    budget, now_s, waited = PutBudget(PER_S, 0), 0.0, 0
    spent(budget, 0, BURST - 20)
    for rest_s, waits in steps:
        now_s += rest_s
        if waits:
            wait_s = budget.wait_s(now_s)
            assert 0 <= wait_s <= MOST_PACES / PER_S
            now_s += wait_s
            waited += 1
        budget.spend(now_s)
    assert budget.puts == BURST - 20 + len(steps)
    if waited == len(steps):
        assert budget.puts <= BURST + now_s * PER_S + 1e-6


def test_a_burst_goes_at_once_and_then_puts_lie_a_pace_apart() -> None:
    budget, now_s, begun = PutBudget(PER_S, 0), 0.0, []
    for _ in range(BURST + 100):
        now_s += budget.wait_s(now_s)
        begun.append(now_s)
        budget.spend(now_s)
    assert begun[BURST - 1] == 0
    assert {round(later - earlier, 6) for earlier, later in pairwise(begun[BURST:])} == {1 / PER_S}


@pytest.mark.default
def test_a_debt_is_paid_by_waits_of_two_paces_and_one_of_hours_is_let_go() -> None:
    budget = PutBudget(PER_S, 0)
    spent(budget, 0, BURST + 10)
    now_s, waits = 0.0, []
    while (wait_s := budget.wait_s(now_s)) > 1.01 / PER_S:
        waits.append(wait_s)
        now_s += wait_s
        budget.spend(now_s)
    assert set(waits) == {MOST_PACES / PER_S}
    assert budget.puts == pytest.approx(BURST + now_s * PER_S, abs=2), "the debt is paid"
    spent(budget, now_s, 1_000_000)
    assert budget.wait_s(now_s + DEBT_S + 2 / PER_S) == 0


def test_without_a_bound_nothing_waits() -> None:
    budget = PutBudget(0, 0)
    spent(budget, 0, 5 * BURST)
    assert budget.wait_s(0) == 0
    assert budget.puts == 5 * BURST


def test_the_rate_is_that_of_the_last_whole_window() -> None:
    budget = PutBudget(0, 0)
    assert budget.rate(0) == 0
    for n in range(60):
        budget.spend(n)
    assert budget.rate(60) == pytest.approx(1)
    spent(budget, RATE_S - 1, 240)
    assert budget.rate(RATE_S) == pytest.approx(1)
    assert budget.rate(2 * RATE_S) == 0
    spent(budget, 2 * RATE_S, 50)
    assert budget.rate(2 * RATE_S + 1) == 0, "a window without puts is one all the same"


def test_where_a_recovery_would_read_many_slots_puts_lie_apart() -> None:
    pacer = Pacer(Pace(4), 0)
    pacer.began(0, MANY_NEEDED - 1, is_full=False)
    assert pacer.wait_s(0, MANY_NEEDED - 1) == 0
    pacer.began(0, MANY_NEEDED, is_full=False)
    assert pacer.wait_s(0, MANY_NEEDED) == MANY_APART_S
    assert pacer.wait_s(0, 0) == 2 * MANY_APART_S, "the one before has its place"


async def test_hedged_and_repeated_puts_and_empty_slots_count_and_never_wait() -> None:
    store, hands = HeldStore(), Hands()
    journal = journal_on(store, hands, puts_per_s=1)
    budget = journal.budget
    spent(budget, 0, BURST - 1)
    await journal.pace(asyncio.Event())
    append = asyncio.create_task(journal.append(acks(b"a")))
    await hands.turn(0.7)  # its patience ends
    assert len(store.puts) == 2
    for put in list(store.puts):
        await put.lose()
    await hands.turn(0.1)
    assert len(store.puts) == 3
    await store.puts[2].end()
    journal.release(await append + 1)
    await settle()
    await hands.turn(1.1)
    await store.puts[3].end()
    assert budget.puts == BURST - 1 + 4
    pacing = asyncio.create_task(journal.pace(asyncio.Event()))
    await hands.turn(1.9)
    assert not pacing.done()
    await hands.turn(0.2)
    assert pacing.done()
    await journal.close()


async def test_a_commit_that_is_full_goes_as_debt_and_waits_for_the_window_alone() -> None:
    store, hands, full = HeldStore(), Hands(), asyncio.Event()
    journal = journal_on(store, hands, window=1, puts_per_s=1)
    spent(journal.budget, 0, BURST)
    pacing = asyncio.create_task(journal.pace(full))
    await hands.turn(0.5)
    assert not pacing.done()
    full.set()
    await settle()
    assert pacing.done()
    append = asyncio.create_task(journal.append(acks(b"a")))
    await settle()
    pacing = asyncio.create_task(journal.pace(full))
    await settle()
    assert not pacing.done(), "the window is full"
    await store.puts[0].end()
    assert pacing.done()
    await append
    await journal.close()


async def test_a_put_is_spent_before_its_slot_is_encoded_the_next_commit_waits() -> None:
    store, hands = HeldStore(), Hands()
    journal = journal_on(store, hands, puts_per_s=1)
    spent(journal.budget, 0, BURST - 1)
    append = asyncio.create_task(journal.append(acks(bytes(1_000_000))))  # so much is encoded in a thread
    await asyncio.sleep(0)
    assert not store.puts, "nothing is put yet"
    assert journal.budget.puts == BURST
    assert journal.budget.wait_s(0) == 1
    await journal.close()
    assert isinstance((await asyncio.gather(append, return_exceptions=True))[0], Exception)

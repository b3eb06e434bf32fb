"""The pace of an object journal: when the next append begins, what the budget of puts lets through, what it costs."""

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.cost import monthly, puts_per_s, table
from seaweedq.journal.pacing import (
    BURST,
    DEBT_S,
    HEDGE_MAX_S,
    HEDGE_MIN_S,
    MANY_APART_S,
    MANY_NEEDED,
    MOST_PACES,
    RATE_S,
    Pace,
    Pacer,
    PutBudget,
    next_linger_s,
    next_usual_s,
    patience_s,
)
from tests.support.journal.held_store import Hands, HeldStore, journal_on, settle
from tests.support.journal.sim_disk import acks
from tests.support.paths import ROOT

SECONDS = st.floats(0, 5)
PER_S = 8.0
STEPS = st.lists(st.tuples(st.floats(0, 2), st.booleans()), min_size=1, max_size=300)  # (rest, whether it waits)


@given(SECONDS, st.booleans(), SECONDS, SECONDS)
def test_a_linger_stays_in_its_bounds_and_moves_the_right_way(
    linger_s: float, is_full: bool, one_s: float, other_s: float
) -> None:
    low_s, high_s = sorted((one_s, other_s))
    linger_s = min(max(linger_s, low_s), high_s)
    after_s = next_linger_s(linger_s, is_full, low_s, high_s)
    assert low_s <= after_s <= high_s
    assert after_s >= linger_s if is_full else after_s <= linger_s


@given(st.lists(st.booleans(), max_size=50), st.booleans())
def test_whatever_was_before_fifty_puts_reach_the_bound(before: list[bool], is_full: bool) -> None:
    linger_s = 0.02
    for one in before + [is_full] * 50:
        linger_s = next_linger_s(linger_s, one, 0.02, 0.25)
    assert linger_s == (0.25 if is_full else 0.02)


def test_a_linger_of_zero_grows_too() -> None:
    assert next_linger_s(0, True, 0, 0.25) > 0
    assert next_linger_s(0, False, 0, 0.25) == 0


@given(SECONDS, st.integers(0, 64 << 20))
def test_patience_is_three_times_the_usual_within_bounds(usual_s: float, size: int) -> None:
    small_s = patience_s(usual_s, 0)
    assert HEDGE_MIN_S <= small_s <= HEDGE_MAX_S
    assert small_s == 3 * usual_s or small_s in (HEDGE_MIN_S, HEDGE_MAX_S)
    assert patience_s(usual_s, size) >= small_s


def test_the_usual_time_follows_what_puts_take() -> None:
    usual_s = 0.2
    for _ in range(60):
        usual_s = next_usual_s(usual_s, 0.05)
    assert abs(usual_s - 0.05) < 0.001


async def test_the_first_append_after_a_pause_goes_at_once_and_the_next_lingers() -> None:
    store, hands = HeldStore(), Hands()
    journal = journal_on(store, hands, linger_s=0.02)
    await asyncio.wait_for(journal.pace(asyncio.Event()), 15)
    appends = [asyncio.create_task(journal.append(acks(b"a")))]
    await settle()
    pacing = asyncio.create_task(journal.pace(asyncio.Event()))
    await settle()
    await hands.turn(0.015)
    assert not pacing.done()
    await hands.turn(0.006)
    assert pacing.done()
    appends.append(asyncio.create_task(journal.append(acks(b"b"))))
    await settle()
    await hands.turn(0.021)
    await asyncio.wait_for(journal.pace(asyncio.Event()), 15)
    for put in store.puts:
        await put.end()
    assert [await append for append in appends] == [0, 1]


async def test_two_paces_in_a_row_are_a_linger_apart_though_no_append_has_begun() -> None:
    journal = journal_on(HeldStore(), hands := Hands(), linger_s=0.02)
    await asyncio.wait_for(journal.pace(asyncio.Event()), 15)
    second = asyncio.create_task(journal.pace(asyncio.Event()))
    await settle()
    assert not second.done()
    await hands.turn(0.021)
    assert second.done()


async def lingers(journal_window: int, put_s: float, appends: int, step_s: float = 0.001) -> list[float]:
    """The times between the starts of puts that take `put_s`, while there is always something to append."""
    store, hands = HeldStore(), Hands()
    journal = journal_on(store, hands, window=journal_window, linger_s=0.02)
    begun: list[float] = []

    async def one() -> None:
        begun.append(hands.now_s)
        await journal.append(acks(b"a"))

    async def keep_appending() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(appends):
                await journal.pace(asyncio.Event())
                group.create_task(one())
                await asyncio.sleep(0)

    task = asyncio.create_task(keep_appending())
    ended = 0
    while not task.done():
        await hands.turn(step_s)
        while ended < len(begun) and begun[ended] + put_s <= hands.now_s + 1e-9:
            await store.puts[ended].end()
            ended += 1
    return [later - earlier for earlier, later in pairwise(begun)]


async def test_a_store_that_keeps_up_is_given_the_shortest_linger() -> None:
    assert max(await lingers(4, put_s=0.03, appends=30)) < 0.0225


@pytest.mark.default
async def test_the_linger_grows_while_the_window_is_full_and_only_as_it_must() -> None:
    between = (await lingers(4, put_s=0.2, appends=60))[-20:]
    assert 0.045 <= sum(between) / len(between) <= 0.08
    between = await lingers(1, put_s=0.5, appends=6, step_s=0.01)
    assert 0.49 < min(between) <= max(between) < 0.52


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
    pacer.record_start(0, MANY_NEEDED - 1, is_full=False)
    assert pacer.wait_s(0, MANY_NEEDED - 1) == 0
    pacer.record_start(0, MANY_NEEDED, is_full=False)
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


def test_three_brokers_at_eight_puts_a_second_for_a_month() -> None:
    """24 x 2,628,000 s x $0.000005 = $315.36, and 300 MB held for $0.0069."""
    cost = monthly(1e6, brokers=3)
    assert cost.journal_puts_per_s == 24
    assert cost.journal_usd == pytest.approx(315.3669, abs=0.001)


def test_a_week_of_parquet() -> None:
    """1 MB/s x 0.5 x 604,800 s = 302.4 GB, at $0.023."""
    assert monthly(1e6).retained_usd == pytest.approx(6.9552)


def test_the_chain_pays_by_bytes_or_by_age() -> None:
    assert monthly(64e6).chain_puts_per_s == pytest.approx(1)
    assert monthly(0, open_segments=300).chain_puts_per_s == pytest.approx(1)


@pytest.mark.parametrize(
    ("budget_per_s", "put_s", "window", "expected"), [(8, 0.05, 4, 8), (0, 0.05, 4, 80), (20, 0.4, 4, 10)]
)
def test_the_budget_or_the_window_bounds_the_puts(
    budget_per_s: float, put_s: float, window: int, expected: float
) -> None:
    assert puts_per_s(budget_per_s, put_s, window) == pytest.approx(expected)


def test_the_page_shows_the_table() -> None:
    assert table() in (ROOT / "docs" / "operate" / "costs.md").read_text()

"""When an object journal lets the next append begin, and the pure rules of its lingering and its patience."""

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seaweedq.journal.pacing import HEDGE_MAX_S, HEDGE_MIN_S, next_linger_s, next_usual_s, patience_s
from tests.support.journal.held_store import Hands, HeldStore, journal_on, settle
from tests.support.journal.sim_disk import acks

SECONDS = st.floats(0, 5)


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
    await asyncio.wait_for(journal.pace(asyncio.Event()), 5)
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
    await asyncio.wait_for(journal.pace(asyncio.Event()), 5)
    for put in store.puts:
        await put.end()
    assert [await append for append in appends] == [0, 1]


async def test_two_paces_in_a_row_are_a_linger_apart_though_no_append_has_begun() -> None:
    journal = journal_on(HeldStore(), hands := Hands(), linger_s=0.02)
    await asyncio.wait_for(journal.pace(asyncio.Event()), 5)
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

"""Runs against the plain set that they stand for."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from seaweedq.broker.log.intervals import Runs, runs_of

OFFSETS = st.integers(0, 40)
SPANS = st.tuples(OFFSETS, OFFSETS)
STEPS = st.lists(st.tuples(st.booleans(), SPANS), max_size=25)


def applied(steps: list[tuple[bool, tuple[int, int]]]) -> tuple[Runs, set[int]]:
    runs, model = Runs(), set()
    for adds, (low, high) in steps:
        if adds:
            runs.add(low, high)
            model |= set(range(low, high))
        else:
            runs.discard(low, high)
            model -= set(range(low, high))
    return runs, model


@given(STEPS)
def test_the_same_offsets_in_as_few_runs_as_can_be(steps: list[tuple[bool, tuple[int, int]]]) -> None:
    runs, model = applied(steps)
    assert list(runs) == runs_of(model)
    assert len(runs) == len(runs_of(model))
    assert runs.size == len(model)
    assert [offset in runs for offset in range(-1, 42)] == [offset in model for offset in range(-1, 42)]


@given(STEPS, OFFSETS)
def test_the_end_of_an_offset_is_the_first_that_is_not_in_it(
    steps: list[tuple[bool, tuple[int, int]]], offset: int
) -> None:
    runs, model = applied(steps)
    assert runs.end_of(offset) == next(o for o in range(offset, 100) if o not in model)


@given(STEPS, SPANS)
def test_gaps_are_what_a_span_has_and_the_set_has_not(
    steps: list[tuple[bool, tuple[int, int]]], span: tuple[int, int]
) -> None:
    runs, model = applied(steps)
    assert runs.gaps(*span) == runs_of(set(range(*span)) - model)


@given(st.lists(OFFSETS))
def test_runs_of_any_offsets_in_any_order_with_repeats(offsets: list[int]) -> None:
    runs = runs_of(offsets)
    assert {o for low, high in runs for o in range(low, high)} == set(offsets)
    assert all(before[1] < after[0] for before, after in pairwise(runs))


def test_iterating_while_adding_sees_the_state_before() -> None:
    runs = Runs([(0, 2), (5, 7)])
    for low, high in runs:
        runs.add(low + 10, high + 10)
    assert list(runs) == [(0, 2), (5, 7), (10, 12), (15, 17)]

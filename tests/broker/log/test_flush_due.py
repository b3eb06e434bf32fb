"""Which tails are due: by size, by age, by memory, by the journal; and which of them first."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seaweedq.broker.log.flusher import SMALL_TAIL_AGE_S, FlushLimits, TailFacts, due, pinning

MIB = 1024 * 1024
LIMITS = FlushLimits(max_bytes=64 * MIB, min_bytes=MIB, max_age_s=300, patient=True)
LARGE = TailFacts(2 * MIB, at_s=1000.0, commit=5, limits=LIMITS)
SMALL = replace(LARGE, size_bytes=1000)


def is_due(tail: TailFacts, now_s: float) -> bool:
    return due({"it": tail}, now_s, 0, 0) == ["it"]


@pytest.mark.parametrize(
    ("tail", "age_s", "expected"),
    [
        (LARGE, 299, False),
        (LARGE, 300, True),
        (SMALL, 300, False),
        (SMALL, SMALL_TAIL_AGE_S - 1, False),
        (SMALL, SMALL_TAIL_AGE_S, True),
        (replace(SMALL, limits=replace(LIMITS, patient=False)), 300, True),
        (replace(SMALL, limits=replace(LIMITS, max_age_s=86_400)), SMALL_TAIL_AGE_S, False),
        (replace(SMALL, limits=replace(LIMITS, min_bytes=0)), 300, True),
        (replace(LARGE, size_bytes=64 * MIB), 0, True),
        (replace(LARGE, size_bytes=64 * MIB - 1), 0, False),
    ],
)
def test_age_and_size(tail: TailFacts, age_s: float, expected: bool) -> None:
    assert is_due(tail, 1000.0 + age_s) is expected


def tails(*sizes_and_commits: tuple[int, int]) -> dict[str, TailFacts]:
    return {
        f"{at}": TailFacts(size, at_s=0.0, commit=commit, limits=LIMITS)
        for at, (size, commit) in enumerate(sizes_and_commits)
    }


def test_over_the_memory_the_largest_go_until_it_is_covered() -> None:
    facts = tails((10, 1), (30, 2), (20, 3), (5, 4))
    assert due(facts, 0.0, excess_bytes=1, unreleased_excess_bytes=0) == ["1"]
    assert due(facts, 0.0, excess_bytes=31, unreleased_excess_bytes=0) == ["1", "2"]
    assert due(facts, 0.0, excess_bytes=1000, unreleased_excess_bytes=0) == ["1", "2", "0", "3"]
    assert due(facts, 0.0, excess_bytes=0, unreleased_excess_bytes=-5) == []


def test_over_the_journal_those_that_pin_the_oldest_commits_go() -> None:
    facts = tails((10, 7), (30, 2), (20, 3))
    assert due(facts, 0.0, excess_bytes=0, unreleased_excess_bytes=31) == ["1", "2"]


SIZES = st.lists(st.tuples(st.integers(1, 100), st.integers(0, 50)), max_size=8)


@given(SIZES, st.integers(-10, 300), st.integers(-10, 300))
def test_none_twice_and_enough(sizes: list[tuple[int, int]], excess: int, unreleased: int) -> None:
    facts = tails(*sizes)
    chosen = due(facts, 0.0, excess, unreleased)
    assert len(chosen) == len(set(chosen))
    assert sum(facts[name].size_bytes for name in chosen) >= min(
        max(excess, unreleased, 0), sum(size for size, _ in sizes)
    )


def test_who_pins_old_commits_is_found():
    found = tails((1, 3), (1, 10), (1, 9))
    assert pinning(found, 10) == ["0", "2"]
    assert pinning(found, 0) == []

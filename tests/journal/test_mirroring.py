"""The decisions of a mirrored journal: spans, what may be acknowledged, the next set, the place of mirrors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seaweedq.journal.mirroring import (
    FencedHolding,
    KnownHolding,
    Span,
    acknowledged_below,
    chosen_holding,
    held_below,
    may_change,
    next_set,
    wanted_brokers,
)

NUMBERS = st.integers(0, 12)


@pytest.mark.parametrize(
    ("before", "call", "after"),
    [
        (Span(0, 3), (0, 3, 5), Span(0, 5)),
        (Span(0, 3), (0, 1, 5), Span(0, 5)),
        (Span(0, 3), (0, 4, 6), Span(0, 3)),
        (Span(0, 3), (2, 0, 2), Span(2, 3)),
        (Span(0, 3), (5, 5, 7), Span(5, 7)),
        (Span(0, 3), (5, 3, 4), Span(5, 5)),
        (Span(4, 6), (1, 0, 3), Span(4, 6)),
    ],
    ids=["behind", "overlapping", "a gap", "let go", "jumps", "late, let go", "late"],
)
def test_a_holding_takes_only_what_follows(before: Span, call: tuple[int, int, int], after: Span) -> None:
    assert before.after(*call) == after


@given(st.lists(st.tuples(NUMBERS, NUMBERS, st.integers(0, 4)), max_size=12))
def test_a_span_is_dense_and_never_goes_back(calls: list[tuple[int, int, int]]) -> None:
    span, there = Span(0, 0), set[int]()
    for stored, first, count in calls:
        after = span.after(stored, first, first + count)
        assert after.first >= span.first
        assert after.end >= span.end
        there |= set(range(first, first + count))
        assert set(range(max(span.end, after.first), after.end)) <= there, "it has what came"
        span = after


def test_all_mirrors_of_both_sets_have_a_commit_or_the_store_has_it() -> None:
    assert acknowledged_below([5, 7], None, 2) == 5
    assert acknowledged_below([5, 7], [7, 3], 2) == 3
    assert acknowledged_below([5, 7], [], 4) == 4, "the empty set has what is stored"
    assert acknowledged_below([], None, 4) == 4
    assert acknowledged_below([1, 2], None, 4) == 4, "stored is stored, whatever the mirrors have"


@given(st.lists(NUMBERS, max_size=3), st.lists(NUMBERS, max_size=3), NUMBERS)
def test_a_change_that_may_be_sent_takes_nothing_back(now: list[int], asked: list[int], stored: int) -> None:
    acknowledged = acknowledged_below(now, None, stored)
    if may_change(asked, stored, acknowledged):
        assert acknowledged_below(now, asked, stored) == acknowledged
        assert held_below(asked, stored) >= acknowledged
    else:
        assert held_below(asked, stored) < acknowledged


def known(holding: str, end: int = 5, able: bool = True, staying: bool = True) -> KnownHolding:
    return KnownHolding(holding, end, able, staying)


@pytest.mark.parametrize(
    ("members", "joining", "expected"),
    [
        ([known("a"), known("b")], [], ("a", "b")),
        ([], [known("a"), known("b")], ("a", "b")),
        ([], [known("a", end=4), known("b")], ("b",)),
        ([known("a"), known("b", able=False)], [], ("a",)),
        ([known("a"), known("b", able=False)], [known("c")], ("a", "c")),
        ([known("a"), known("b", staying=False)], [known("c", end=1)], ("a", "b")),
        ([known("a"), known("b", staying=False)], [known("")], ("a", "b")),
        ([known("a"), known("b", staying=False)], [known("c")], ("a", "c")),
        ([known("a"), known("b", staying=False)], [], ("a",)),
        ([known("a", able=False), known("b", able=False)], [], ()),
    ],
)
def test_the_next_set(members: list[KnownHolding], joining: list[KnownHolding], expected: tuple[str, ...]) -> None:
    assert next_set(members, joining, 2, 1, 0, 5) == expected


def test_with_fewer_than_the_least_the_set_is_empty() -> None:
    assert next_set([known("a"), known("b", able=False)], [], 3, 2, 0, 5) == ()
    assert next_set([], [known("a")], 3, 2, 0, 5) == ()


def test_mirrors_are_in_other_zones_and_different_ones() -> None:
    zones = {"m1": "x", "m2": "x", "m3": "y", "m4": "z"}
    assert {zones[one] for one in wanted_brokers("b", "x", [], zones, 2)} == {"y", "z"}
    assert wanted_brokers("b", "x", ["m1", "m3"], zones, 2) == ["m1", "m3"], "who is there stays"
    assert wanted_brokers("b", "x", ["m1", "m2"], zones, 2)[0] == "m1"
    assert wanted_brokers("b", "x", ["m1", "m2"], zones, 2)[1] in ("m3", "m4"), "one is in another zone"
    assert wanted_brokers("b", "x", ["gone"], {"m1": "x"}, 2) == ["m1"]


def test_the_load_is_spread() -> None:
    zones = {f"m{number}": "" for number in range(10)}
    chosen = [one for number in range(200) for one in wanted_brokers(f"b{number}", "", [], zones, 2)]
    assert all(20 <= chosen.count(one) <= 70 for one in zones)


@given(st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(["", "x", "y"])), st.sampled_from(["", "x"]))
def test_the_place_of_mirrors(zones: dict[str, str], zone: str) -> None:
    wanted = wanted_brokers("o", zone, [], zones, 2)
    assert len(wanted) == len(set(wanted)) == min(2, len(zones))
    if any(its != zone for its in zones.values()):
        assert any(zones[one] != zone for one in wanted)


def test_any_holding_of_the_set_will_do_and_no_other() -> None:
    one, other, strange = FencedHolding("a", 0, 5), FencedHolding("b", 0, 7), FencedHolding("c", 0, 9)
    assert chosen_holding({"a", "b"}, [one, other, strange]) == other
    assert chosen_holding({"a"}, [strange, one]) == one
    assert chosen_holding({"a"}, [strange]) is None
    assert chosen_holding(set(), [strange, one]) == strange, "of an empty set any may be taken"
    assert chosen_holding(set(), []) is None

"""Owners for a few new segments: where the least is, where the least of their topic is, never at one that drains."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seaweedq.balancer.placement import Host, SegmentId, spread

HOSTS = [Host(f"b{number}", f"z{number % 2}") for number in range(4)]


def new(*loads: float) -> dict[SegmentId, float]:
    return {("t", 0, -number): load for number, load in enumerate(loads, 1)}


@given(
    st.lists(st.floats(0, 1e12), max_size=40),
    st.dictionaries(st.sampled_from("abcde"), st.floats(0, 1e12)),
    st.lists(st.sampled_from("abcd"), unique=True),
)
def test_each_gets_one_that_takes_it_whatever_the_order(
    loads: list[float], totals: dict[str, float], names: list[str]
) -> None:
    hosts = [Host(name, draining=name == "c") for name in names]
    given_out = spread(new(*loads), {}, totals, hosts)
    takers = set(names) - {"c"}
    assert set(given_out) == (set(new(*loads)) if takers else set())
    assert set(given_out.values()) <= takers
    backwards = dict(reversed(new(*loads).items()))
    assert spread(backwards, {}, dict(reversed(totals.items())), hosts[::-1]) == given_out


def test_a_load_that_has_all_but_faded_is_none() -> None:
    assert spread(new(5e-324), {}, {"a": 1.0}, [Host("a")]) == {("t", 0, -1): "a"}


@pytest.mark.parametrize("count", [4, 8, 32])
def test_equal_parts_are_even_over_equal_brokers(count: int) -> None:
    owners = Counter(spread(new(*[5.0] * count), {}, {}, HOSTS).values())
    assert set(owners.values()) == {count // 4}


def test_a_busy_broker_gets_none_and_an_idle_one_most() -> None:
    owners = Counter(spread(new(*[1.0] * 6), {}, {"b0": 100.0, "b1": 4.0, "b2": 4.0}, HOSTS).values())
    assert owners["b0"] == 0
    assert owners["b3"] == 4


def test_the_topics_other_segments_and_zones_count() -> None:
    kin: dict[SegmentId, str] = {("t", 0, 0): "b0", ("t", 0, 1): "b1", ("t", 0, 2): "b2", ("u", 0, 0): "b3"}
    assert set(spread(new(1.0), kin, {}, HOSTS).values()) == {"b3"}
    assert set(spread(new(1.0), {("t", 0, 0): "b0"}, {}, HOSTS).values()) <= {"b1", "b3"}

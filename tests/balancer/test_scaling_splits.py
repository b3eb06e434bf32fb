"""When a segment is split, into what, and for whom; and when one hot hash makes that useless."""

from collections import Counter

import pytest
from msgspec.structs import replace

from seaweedq.balancer.load import SegmentLoad
from seaweedq.balancer.placement import Host
from seaweedq.balancer.scaling import MAX_PARTS, HotKey, Split
from seaweedq.segments.keyrange import KEY_SPACE, KeyRange, tile
from tests.support.balancer.scaled import HOSTS, POLICY, TOPIC, decided, load, row, segment

WHOLE = tile(1)[0]


def parts(plans: list[object]) -> list[int]:
    """Into how many parts each split goes; nothing else may be planned."""
    assert all(isinstance(plan, Split) for plan in plans)
    return [len(plan.owners) for plan in plans if isinstance(plan, Split)]


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ((5.01, 0, 0, 0), [6]),
        ((4.99, 1.9, 0.9, 5), []),
        ((0, 2.01, 0, 0), [3]),
        ((0, 0, 1.01, 0), [2]),
        ((0, 0, 3.5, 0), [4]),
        ((9, 0, 1.5, 0), [9]),
        ((4, 3, 0, 0), [3]),
        ((1000, 0, 0, 0), [MAX_PARTS]),
        ((1, 1, 1, 1), []),
    ],
)
def test_short_floods_have_to_be_higher(rates: tuple[float, ...], expected: list[int]) -> None:
    assert parts(decided([segment(0, WHOLE, load(*rates))])) == expected


def test_bytes_count_as_messages_do_and_the_worse_decides() -> None:
    both = replace(load(1.5), bytes_per_s=(POLICY.target_bytes_per_s * 2.5,) * 4)
    assert parts(decided([segment(0, WHOLE, both)])) == [3]
    assert parts(decided([segment(0, WHOLE, replace(both, messages_per_s=(0.0,) * 4))])) == [3]


def test_a_new_segment_is_split_by_full_history_and_cut_by_its_own_load() -> None:
    young = load(0, 2.1, 0.3, 0.15, observed_s=60.0)  # 2.1 = 3.3 * (1 - 1 / e)
    assert parts(decided([segment(0, WHOLE, young, age_s=60)])) == [4]


def test_too_young_is_left_alone_for_a_moment() -> None:
    assert parts(decided([segment(0, WHOLE, load(9), age_s=9.9)])) == []
    assert parts(decided([segment(0, WHOLE, load(9), age_s=10)])) == [9]
    assert parts(decided([segment(0, WHOLE, load(9), age_s=2)], replace(POLICY, cool_down_s=2.0))) == [9]


def test_parts_have_equal_load() -> None:
    skewed = load(1.5, bins=(3.0, *(0.0,) * 62, 3.0))
    (plan,) = decided([segment(0, WHOLE, skewed)])
    assert isinstance(plan, Split)
    assert KEY_SPACE / 64 <= plan.points[0] <= KEY_SPACE * 63 / 64 + 1
    (plan,) = decided([segment(0, WHOLE, load(1.5, bins=(3.0, *(0.0,) * 63)))])
    assert isinstance(plan, Split)
    assert plan.points == (pytest.approx(KEY_SPACE // 128, abs=1),)


def test_max_segments_holds_and_the_hottest_comes_first() -> None:
    segments = row(3.0, 6.0, 2.5)
    assert parts(decided(segments)) == [6, 3, 3]
    assert parts(decided(segments, replace(POLICY, max_segments=9))) == [6, 2]
    assert parts(decided(segments, replace(POLICY, max_segments=4))) == [2]
    assert decided(segments, replace(POLICY, max_segments=4))[0].segment == (*TOPIC, 1)
    assert decided(segments, replace(POLICY, max_segments=3)) == []


def test_what_is_under_way_counts() -> None:
    hot, *others = row(6.0, 0.6, 0.6)
    splitting = segment(7, others[0].range, others[0].load, locked=True, becomes=5)
    assert parts(decided([hot, splitting, others[1]], replace(POLICY, max_segments=9))) == [3]


@pytest.mark.parametrize(
    "left_alone",
    [
        segment(0, WHOLE, load(9), locked=True),
        segment(0, WHOLE, None),
        segment(0, WHOLE, load(9), owner="gone"),
        segment(0, WHOLE, load(9), owner=""),
        segment(0, WHOLE, load(9), owner="draining"),
    ],
)
def test_what_is_left_alone(left_alone: object) -> None:
    assert decided([left_alone], hosts=[*HOSTS, Host("draining", draining=True)]) == []  # type: ignore[list-item]


def test_no_policy_no_scaling() -> None:
    assert decided(row(9.0), replace(POLICY, enabled=False)) == []
    assert decided([], POLICY) == []
    assert decided(row(9.0), limit=0) == []


def test_successors_go_to_where_the_load_is_least_the_old_owner_among_them() -> None:
    (plan,) = decided([segment(0, WHOLE, load(6.0))])
    assert isinstance(plan, Split)
    assert Counter(plan.owners) == {"a": 2, "b": 2, "c": 2}
    busy, hosts = segment(1, tile(2)[1], load(0.5), "b"), [Host("a"), Host("b")]
    (plan,) = decided([segment(0, tile(2)[0], load(1.8)), busy], hosts=hosts)
    assert isinstance(plan, Split)
    assert sorted(plan.owners) == ["a", "b"]
    (plan,) = decided([segment(0, tile(3)[0], load(1.01)), *row(0.1, 0.99, 0.99, owners="abb")[1:]], hosts=hosts)
    assert isinstance(plan, Split)
    assert plan.owners == ("a", "a")


@pytest.mark.parametrize(("rate", "share", "hot"), [(2.0, 0.9, True), (2.0, 0.49, False), (9.0, 0.8, False)])
def test_one_hot_hash_is_not_split(rate: float, share: float, hot: bool) -> None:
    plans = decided([segment(0, WHOLE, load(rate, hottest=4711, hot_share=share))])
    assert (plans == [HotKey((*TOPIC, 0), 4711, share)]) == hot
    if not hot:
        assert isinstance(plans[0], Split)


def test_a_hot_hash_in_a_cool_segment_is_nothing() -> None:
    assert decided([segment(0, WHOLE, load(0.9, hottest=4711, hot_share=1.0))]) == []


def test_a_hot_hash_whose_rest_is_too_much_as_well_gets_its_own() -> None:
    (plan,) = decided([segment(0, WHOLE, load(8.0, hottest=4711, hot_share=0.5))])
    assert isinstance(plan, Split)
    assert {4711, 4712} <= set(plan.points)


def test_a_range_of_one_hash_is_hot_and_never_split() -> None:
    alone = KeyRange(4711, 4712)
    for of in (load(9), load(9, hottest=4711, hot_share=0.9)):
        assert decided([segment(0, alone, of)]) == [HotKey((*TOPIC, 0), 4711, 1.0)]


def test_the_load_of_a_decoded_report_may_be_odd() -> None:
    odd = SegmentLoad((1e18,) * 4, (1e18,) * 4, (0.0,) * 4, (1e18,) * 4, 1e-9, (1e18,) * 3, None, 1.0)
    assert parts(decided([segment(0, WHOLE, odd)])) == [MAX_PARTS]

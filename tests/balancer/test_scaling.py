"""When a segment is split, at which points, and for whom; when neighbours are merged; and which hot hash makes both
useless."""

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from seaweedq.balancer.load import BINS, HotKeys, KeyHistogram, LoadMeter, SegmentLoad, costs
from seaweedq.balancer.placement import Host
from seaweedq.balancer.scaling import (
    MAX_PARTS,
    Gather,
    HotKey,
    Merge,
    NearestSplit,
    Segment,
    Split,
    cut,
    decide,
    hot_keys,
    nearest_split,
)
from seaweedq.segments.keyrange import KEY_SPACE, KeyRange, tile
from tests.support.balancer.scaled import HOSTS, LONG_S, POLICY, TOPIC, decided, load, row, segment
from tests.support.tiers import examples

WHOLE = tile(1)[0]
MIN_2 = replace(POLICY, min_segments=2)
TARGET = 400
AT_400 = replace(POLICY, target_messages_per_s=TARGET)
STEP_S = 5
RATES = st.floats(0, 12)
WEIGHTS = st.lists(st.floats(0, 1e12) | st.sampled_from([0.0, 1e-300, 1e18]), min_size=0, max_size=BINS)


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


def merged(segments: list[Segment], **how: object) -> list[tuple[int, int]]:
    """The pairs; nothing else may be planned."""
    plans = decided(segments, **how)  # type: ignore[arg-type]
    assert all(isinstance(plan, Merge) for plan in plans)
    return [(plan.left[2], plan.right[2]) for plan in plans if isinstance(plan, Merge)]


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (load(0.2), load(0.29), [(0, 1)]),
        (load(0.2), load(0.3), []),
        (load(0.0), load(0.0), [(0, 1)]),
        (load(0.1), load(0.0, 0.0, 0.0, 0.45), []),
        (load(0.45, 0, 0, 0), load(0.1), []),
        (load(0.1, observed_s=599), load(0.1), []),
        (load(0.1, observed_s=600), load(0.1), [(0, 1)]),
        (load(0, 0, 0, 0.2, observed_s=600), load(0.1), []),  # 0.2 of ten minutes is 0.5 of twenty
    ],
)
def test_together_below_half_the_target_over_all_windows(left: object, right: object, expected: object) -> None:
    assert merged(row(left, right)) == expected  # type: ignore[arg-type]


def test_messages_and_bytes_are_summed_apart() -> None:
    size = POLICY.target_bytes_per_s
    left, right = load(0.4), replace(load(0.05), bytes_per_s=(0.4 * size,) * 4)
    assert merged(row(left, right)) == [(0, 1)]
    assert merged(row(replace(left, bytes_per_s=(0.11 * size,) * 4), right)) == []


def test_the_merge_window_goes_with_the_cool_down() -> None:
    was_warm = load(0.1, 0.9, 0.9, 0.9)
    assert merged(row(was_warm, 0.1), policy=replace(POLICY, cool_down_s=5.0)) == [(0, 1)]
    assert merged(row(was_warm, 0.1), policy=replace(POLICY, cool_down_s=6.0)) == []


def test_what_floods_again_and_again_is_remembered() -> None:
    assert merged(row(load(0.1, peaks=0.2), load(0.1, peaks=0.2))) == [(0, 1)]
    assert merged(row(load(0.1, peaks=0.4), load(0.1, peaks=0.2))) == []


def test_neither_is_young() -> None:
    left, right = row(0.1, 0.1)
    for age_s, expected in ((599.0, []), (600.0, [(0, 1)])):
        assert merged([left, segment(1, right.range, right.load, age_s=age_s)]) == expected


@pytest.mark.parametrize(
    "other",
    [
        segment(1, tile(2)[1], load(0.1), locked=True, becomes=2),
        segment(1, tile(2)[1], None),
        segment(1, tile(2)[1], load(0.1), owner="gone"),
        segment(1, tile(2)[1], load(0.1), owner="draining"),
        segment(1, KeyRange(tile(2)[1].low + 1, tile(2)[1].high), load(0.1)),
        Segment(("t", 1, 1), tile(2)[1], "a", LONG_S, load(0.1)),
        Segment(("u", 0, 1), tile(2)[1], "a", LONG_S, load(0.1)),
    ],
)
def test_what_is_not_merged(other: Segment) -> None:
    assert decided([segment(0, tile(2)[0], load(0.1)), other], hosts=[*HOSTS, Host("draining", draining=True)]) == []


def test_pairs_do_not_overlap_and_equal_ones_go_from_left_to_right() -> None:
    assert merged(row(*[0.1] * 7)) == [(0, 1), (2, 3), (4, 5)]


def test_the_coolest_go_first_and_min_segments_stay() -> None:
    segments = row(0.2, 0.2, 0.1, 0.0, 0.2, 0.2)
    assert merged(segments) == [(2, 3), (0, 1), (4, 5)]
    assert merged(segments, policy=replace(POLICY, min_segments=5)) == [(2, 3)]
    assert merged(segments, policy=replace(POLICY, min_segments=4)) == [(2, 3), (0, 1)]
    assert merged(segments, policy=replace(POLICY, min_segments=6)) == []
    assert merged(segments, limit=2) == [(2, 3), (0, 1)]


def test_merges_under_way_count_for_min_segments() -> None:
    segments = row(*[0.1] * 4)
    under_way = [segment(n, each.range, each.load, locked=True, becomes=0.5) for n, each in enumerate(segments[:2])]
    assert merged([*under_way, *segments[2:]], policy=replace(POLICY, min_segments=3)) == []
    assert merged([*under_way, *segments[2:]], policy=MIN_2) == [(2, 3)]


def test_splits_under_way_do_not_count_for_min_segments() -> None:
    segments = row(*[0.1] * 3)
    under_way = segment(0, segments[0].range, segments[0].load, locked=True, becomes=5)
    assert merged([under_way, *segments[1:]], policy=replace(POLICY, min_segments=3)) == []
    assert merged([under_way, *segments[1:]], policy=MIN_2) == [(1, 2)]


def test_a_merge_leaves_the_topic_even() -> None:
    policy = replace(POLICY, min_segments=3)
    assert merged(row(0.24, 0.24, 0.05, 0.05), policy=policy) == [(2, 3)]
    assert merged(row(0.2, 0.2, 0.0, 0.0, 0.0), policy=policy)[:1] == [(2, 3)]
    assert (0, 1) not in merged(row(0.2, 0.2, 0.0, 0.0, 0.0), policy=policy)


def test_idle_ones_need_not_be_even() -> None:
    assert merged(row(0.02, 0.02, 0.0, 0.0), policy=replace(POLICY, min_segments=2)) == [(0, 1), (2, 3)]


def test_neighbours_of_two_owners_are_gathered_the_cooler_goes() -> None:
    assert decided(row(0.1, 0.2, owners="ab")) == [Gather((*TOPIC, 0), (*TOPIC, 1), "a", "b")]
    assert decided(row(0.2, 0.1, owners="ab")) == [Gather((*TOPIC, 1), (*TOPIC, 0), "b", "a")]
    for point in (10, 1000):
        smaller = 0 if point == 10 else 1
        left, right = KeyRange(0, 1010).cut([point])
        (plan,) = decided([segment(0, left, load(0.1)), segment(1, right, load(0.1), owner="b")])
        assert isinstance(plan, Gather)
        assert plan.segment[2] == smaller
    left, right = KeyRange(0, 20).halves()
    (plan,) = decided([segment(0, left, load(0.1)), segment(1, right, load(0.1), owner="b")])
    assert plan == Gather((*TOPIC, 1), (*TOPIC, 0), "b", "a")


def test_nothing_is_both_split_and_merged() -> None:
    (plan,) = decided(row(load(0.1, 0.1, 1.01, 0.1), 0.1), replace(POLICY, cool_down_s=5.0))
    assert isinstance(plan, Split)


def test_hot_keys_alone_are_those_of_all_decisions() -> None:
    chance, seen = random.Random(1), set()
    for _ in range(200):
        loads = [
            load(chance.choice([0.1, 2.5, 6.0, 9.0]), hottest=4711, hot_share=chance.choice([0.0, 0.4, 0.5, 0.9, 1.0]))
            for _ in range(chance.randrange(1, 6))
        ]
        segments = row(*loads)
        counted = costs({each.id: each.load for each in segments if each.load})
        plans = decide(segments, {TOPIC: POLICY}, counted, HOSTS, 100)
        told = hot_keys(segments, {TOPIC: POLICY}, HOSTS)
        assert told == [plan for plan in plans if isinstance(plan, HotKey)]
        seen |= {len(told)}
    assert len(seen) > 2
    assert hot_keys([], {TOPIC: POLICY}, HOSTS) == []
    assert hot_keys(row(load(9.0, hottest=1, hot_share=1.0)), {}, HOSTS) == []


def after_minutes(minutes: float, per_s: int) -> SegmentLoad:
    """The load of a new segment that takes so much from its beginning."""
    meter = LoadMeter(WHOLE)
    for _ in range(int(minutes * 60 / STEP_S)):
        meter.tick(per_s * STEP_S, 0, STEP_S, POLICY.cool_down_s)
    return meter.load()


@pytest.mark.parametrize(
    ("per_s", "minutes"), [(1.1, 24), (1.5, 11), (1.9, 7.5)], ids=["a tenth over", "half over", "nearly twice"]
)
def test_a_new_segment_splits_later_than_its_mean_says_and_tells_when(per_s: float, minutes: float) -> None:
    rate = round(TARGET * per_s)
    before, after = after_minutes(minutes - 0.5, rate), after_minutes(minutes + 0.5, rate)
    assert before.corrected_messages_per_s[2] == pytest.approx(rate), "what it takes is over the target all along"
    for found, splits in ((before, False), (after, True)):
        assert bool(decided([segment(0, WHOLE, found)], AT_400)) is splits
        told = nearest_split(found, AT_400)
        assert (told.measure, told.window_s, told.splits_at) == ("messages_per_s", 600, TARGET)
        assert (told.now > told.splits_at) is splits
        assert told.now == pytest.approx(TARGET, rel=0.1)


@settings(max_examples=examples(300))
@given(st.tuples(RATES, RATES, RATES, RATES), st.tuples(RATES, RATES, RATES, RATES))
def test_it_is_over_its_bound_exactly_where_the_segment_is_split(
    messages: tuple[float, ...], sizes: tuple[float, ...]
) -> None:
    of = replace(load(*messages), bytes_per_s=tuple(POLICY.target_bytes_per_s * one for one in sizes))
    told = nearest_split(of, POLICY)
    assert any(isinstance(plan, Split) for plan in decided([segment(0, WHOLE, of)])) == (told.now > told.splits_at)


@pytest.mark.parametrize(
    ("rates", "told"),
    [
        ((0, 0, 0, 0), NearestSplit("messages_per_s", 600, 1000, 0)),
        ((4.9, 0.1, 0.2, 50), NearestSplit("messages_per_s", 10, 5000, 4900)),
        ((0, 1.8, 0.8, 0), NearestSplit("messages_per_s", 60, 2000, 1800)),
        ((1, 1, 0.9, 0), NearestSplit("messages_per_s", 600, 1000, 900)),
    ],
)
def test_of_three_averages_the_nearest_is_told(rates: tuple[float, ...], told: NearestSplit) -> None:
    assert nearest_split(load(*rates), POLICY) == told


def test_bytes_are_told_where_they_are_nearer() -> None:
    of = replace(load(0.5), bytes_per_s=(0.0, 0.0, 0.9 * POLICY.target_bytes_per_s, 0.0))
    told = NearestSplit("bytes_per_s", 600, POLICY.target_bytes_per_s, 0.9 * POLICY.target_bytes_per_s)
    assert nearest_split(of, POLICY) == told


@st.composite
def ranges(draw: st.DrawFn, least: int = 2) -> KeyRange:
    size = draw(st.integers(least, KEY_SPACE) | st.integers(least, least + 70))
    low = draw(st.integers(0, KEY_SPACE - size))
    return KeyRange(low, low + size)


@given(ranges(), st.integers(2, 32), WEIGHTS, st.none() | st.integers(0, KEY_SPACE - 1), st.floats(0, 1))
def test_points_rise_within_the_range_and_the_parts_tile_it(
    key_range: KeyRange, parts: int, weights: list[float], hottest: int | None, share: float
) -> None:
    made = cut(key_range, parts, tuple(weights), hottest, share)
    pieces = key_range.cut(made.points)
    assert 2 <= len(pieces) <= parts
    assert (pieces[0].low, pieces[-1].high) == (key_range.low, key_range.high)
    assert len(made.shares) == len(pieces)
    assert sum(made.shares) == pytest.approx(1)
    assert min(made.shares) >= -1e-9


@given(st.integers(2, 32), st.lists(st.floats(0.1, 10), min_size=BINS, max_size=BINS), ranges(10**6))
def test_parts_of_a_wide_range_have_equal_load(parts: int, weights: list[float], key_range: KeyRange) -> None:
    made = cut(key_range, parts, tuple(weights), None, 0.0)
    assert made.shares == pytest.approx([1 / parts] * parts, rel=0.01)


def test_without_a_histogram_the_range_is_halved() -> None:
    assert cut(KeyRange(10, 20), 2, (), None, 0.0).points == (15,)
    assert cut(KeyRange(10, 20), 2, (0.0,) * BINS, None, 0.0).points == (15,)


def test_load_in_one_place_is_cut_there() -> None:
    weights = [0.0] * BINS
    weights[5] = weights[40] = 3.0
    assert cut(WHOLE, 3, tuple(weights), None, 0.0).shares == pytest.approx((1 / 3,) * 3)
    low, high = cut(KeyRange(0, 6400), 3, tuple(weights), None, 0.0).points
    assert (low, high) == (567, 4033)


@given(st.integers(0, 99), st.floats(0.35, 0.95))
def test_a_hash_with_more_than_its_share_gets_a_segment_of_its_own(hottest: int, share: float) -> None:
    made = cut(KeyRange(0, 100), 20, (1.0,) * BINS, hottest, share)
    assert {hottest, hottest + 1} - {0, 100} <= set(made.points)


@pytest.mark.parametrize(("hottest", "points"), [(500, (500,)), (501, (501,)), (499, (500,)), (0, (1,)), (999, (999,))])
def test_two_parts_have_the_hot_hash_between_them(hottest: int, points: tuple[int]) -> None:
    assert cut(KeyRange(0, 1000), 2, (), hottest, 0.8).points in {points, (hottest,), (hottest + 1,)}


def test_the_rest_is_cut_around_the_hot_hash() -> None:
    made = cut(KeyRange(0, 1_000_000), 7, (), 400_000, 3 / 7)
    assert {400_000, 400_001} <= set(made.points)
    assert sorted(made.shares)[-1] == pytest.approx(3 / 7, abs=0.01)
    assert sorted(made.shares)[-2] <= 1 / 7 + 0.01


@given(st.integers(2, 60), st.integers(0, 2**32))
def test_every_hash_of_a_narrow_range_can_be_a_part(size: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    key_range, counts = KeyRange(7, 7 + size), random.integers(1, 100, size)
    rows = np.repeat(np.arange(7, 7 + size, dtype=np.int32), counts)
    histogram, hot = KeyHistogram(key_range), HotKeys()
    histogram.add(rows, len(rows))
    hot.add(rows, len(rows))
    made = cut(key_range, 2, histogram.bins, *hot.hottest())
    (point,) = made.points
    left = counts[: point - 7].sum() / len(rows)
    best = np.abs(np.cumsum(counts)[:-1] / len(rows) - 0.5).min()
    assert abs(left - 0.5) <= best + 1e-9

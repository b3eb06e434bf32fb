"""When neighbours are merged, which of them, and who goes to whom first."""

import pytest
from msgspec.structs import replace

from seaweedq.balancer.placement import Host
from seaweedq.balancer.scaling import Gather, Merge, Segment, Split
from seaweedq.segments.keyrange import KeyRange, tile
from tests.support.balancer.scaled import HOSTS, LONG_S, POLICY, TOPIC, decided, load, row, segment

MIN_2 = replace(POLICY, min_segments=2)


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

"""The average that is nearest to a split is the one by which segments are split."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from seaweedq.balancer.load import LoadMeter, SegmentLoad
from seaweedq.balancer.scaling import NearestSplit, Split, nearest_split
from seaweedq.segments.keyrange import tile
from tests.support.balancer.scaled import POLICY, decided, load, segment
from tests.support.tiers import examples

WHOLE = tile(1)[0]
TARGET = 400
AT_400 = replace(POLICY, target_messages_per_s=TARGET)
STEP_S = 5


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


RATES = st.floats(0, 12)


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

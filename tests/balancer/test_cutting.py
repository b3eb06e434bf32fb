"""Cuts of a key range: strictly rising, within it, into parts of equal load as far as single hashes allow."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seaweedq.balancer.load import BINS, HotKeys, KeyHistogram
from seaweedq.balancer.scaling import cut
from seaweedq.segments.keyrange import KEY_SPACE, KeyRange

WHOLE = KeyRange(0, KEY_SPACE)
WEIGHTS = st.lists(st.floats(0, 1e12) | st.sampled_from([0.0, 1e-300, 1e18]), min_size=0, max_size=BINS)


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

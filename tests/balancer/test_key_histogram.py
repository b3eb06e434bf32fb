"""Where in its range a segment's load falls, and its hottest hash: right for every mix of keys, within bounds."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seaweedq.balancer.load import BINS, COUNTERS, OVER_S, HotKeys, KeyHistogram
from seaweedq.segments.keyrange import KEY_SPACE, KeyRange

WHOLE = KeyRange(0, KEY_SPACE)
BATCHES = st.lists(st.tuples(st.lists(st.integers(0, 40), max_size=60), st.floats(0.1, 100)), max_size=12)


def hashes(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def test_each_hash_falls_into_its_part_of_the_range() -> None:
    histogram = KeyHistogram(KeyRange(1000, 1000 + 10 * BINS))
    histogram.add(hashes(1000, 1009, 1010, 999 + 10 * BINS), 8.0)
    assert histogram.bins == (4.0, 2.0, *(0.0,) * (BINS - 3), 2.0)


def test_the_ends_of_the_key_space_and_what_is_outside_the_range() -> None:
    whole = KeyHistogram(WHOLE)
    whole.add(hashes(0, KEY_SPACE - 1), 2.0)
    assert (whole.bins[0], whole.bins[-1], sum(whole.bins)) == (1.0, 1.0, 2.0)
    narrow = KeyHistogram(KeyRange(5, 8))
    narrow.add(hashes(4, 5, 6, 7, 8), 5.0)
    narrow.add(hashes(), 5.0)
    assert sorted(narrow.bins)[-3:] == [1.0, 1.0, 1.0]
    assert sum(narrow.bins) == 3.0


def test_keyless_rows_are_even_and_all_of_it_fades() -> None:
    histogram = KeyHistogram(WHOLE)
    histogram.add_keyless(64.0)
    assert histogram.bins == (1.0,) * BINS
    histogram.forget(OVER_S)
    assert histogram.bins == pytest.approx((1 / np.e,) * BINS)


@given(BATCHES)
def test_a_counter_is_never_too_high_and_little_too_low(batches: list[tuple[list[int], float]]) -> None:
    keys, truth = HotKeys(), Counter[int]()
    for values, weight in batches:
        keys.add(hashes(*values), weight)
        for value in values:
            truth[value] += weight / len(values)  # type: ignore[assignment]
    total, (hottest, share) = sum(truth.values()), keys.hottest()
    assert (hottest is None) <= (not total or max(truth.values()) <= total / (COUNTERS + 1) * 1.001)
    if hottest is not None:
        assert truth[hottest] / total - 1 / (COUNTERS + 1) <= share + 1e-9
        assert share <= truth[hottest] / total + 1e-9
        assert max(truth.values()) / total <= share + 1 / (COUNTERS + 1) + 1e-9


def test_a_hot_key_among_very_many_is_found() -> None:
    random, keys = np.random.default_rng(1), HotKeys()
    for _ in range(100):
        batch = random.integers(0, KEY_SPACE, 64, dtype=np.int32)
        batch[:16] = 4711
        keys.add(random.permutation(batch), 64.0)
        keys.forget(1.0)
    hottest, share = keys.hottest()
    assert hottest == 4711
    assert 0.18 <= share <= 0.25


def test_a_key_that_becomes_hot_gets_past_those_that_were() -> None:
    keys = HotKeys()
    keys.add(np.repeat(np.arange(COUNTERS, dtype=np.int32), 10), 160.0)
    for number in range(100):
        keys.add(np.array([4711] * 3 + [5000 + 20 * number + each for each in range(20)], np.int32), 23.0)
    hottest, share = keys.hottest()
    assert hottest == 4711
    assert share >= 300 / 2460 - 1 / (COUNTERS + 1)


def test_without_a_hot_key_none_is_seen() -> None:
    random, keys = np.random.default_rng(1), HotKeys()
    for _ in range(100):
        keys.add(random.integers(0, KEY_SPACE, 64, dtype=np.int32), 64.0)
    assert keys.hottest()[1] < 0.01


def test_keyless_rows_make_no_key_hot_and_what_was_hot_is_forgotten() -> None:
    keys = HotKeys()
    assert keys.hottest() == (None, 0.0)
    keys.add(hashes(7), 10.0)
    assert keys.hottest() == (7, 1.0)
    keys.add_keyless(30.0)
    assert keys.hottest() == (7, 0.25)
    keys.forget(10 * OVER_S)
    keys.add(hashes(8), 1.0)
    assert keys.hottest()[0] == 8

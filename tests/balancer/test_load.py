"""The load of a segment: moving averages, the distribution over its range, its report, and its cost."""

from collections import Counter
from math import e, exp

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seaweedq.balancer.load import (
    BINS,
    COUNTERS,
    IDLE,
    KNOWN_S,
    MESSAGE_BYTES,
    OVER_S,
    WINDOWS_S,
    HotKeys,
    KeyHistogram,
    LoadMeter,
    Rate,
    SegmentLoad,
    corrected,
    costs,
    joined,
    with_unknown,
)
from seaweedq.segments.keyrange import KEY_SPACE, KeyRange, tile

COOL_DOWN_S = 600.0
SAMPLES = st.lists(st.tuples(st.integers(0, 10**9), st.floats(0.01, 500)), min_size=1, max_size=20)
WHOLE = KeyRange(0, KEY_SPACE)
BATCHES = st.lists(st.tuples(st.lists(st.integers(0, 40), max_size=60), st.floats(0.1, 100)), max_size=12)
RANGE = tile(1)[0]


def after(samples: list[tuple[int, float]]) -> Rate:
    rate = Rate()
    for count, passed_s in samples:
        rate.add(count, passed_s, COOL_DOWN_S)
    return rate


def test_a_steady_rate_is_known_at_once_and_trusted_slowly() -> None:
    steady = after([(1000, 10.0)])
    assert corrected(steady.per_s, 10.0) == pytest.approx((100.0,) * 4)
    assert steady.per_s == pytest.approx([100 * (1 - exp(-10 / window_s)) for window_s in WINDOWS_S])
    assert steady.per_s[0] == pytest.approx(100 * (1 - 1 / e))
    assert after([(1000, 10.0)] * 1000).per_s == pytest.approx((100.0,) * 4, rel=1e-3)


def test_nothing_observed_is_nothing() -> None:
    assert corrected(IDLE, 0.0) == IDLE
    assert Rate().per_s == Rate().peaks == IDLE


def test_what_comes_at_once_counts() -> None:
    assert after([(100, 0.0)]).per_s[0] == pytest.approx(10.0)


@given(SAMPLES)
def test_how_often_is_sampled_does_not_matter_where_the_rate_is_even(samples: list[tuple[int, float]]) -> None:
    total_s = sum(passed_s for _, passed_s in samples)
    often = after([(round(passed_s * 1e6), passed_s) for _, passed_s in samples])
    assert often.per_s == pytest.approx(after([(round(total_s * 1e6), total_s)]).per_s, rel=1e-3)


@given(SAMPLES)
def test_corrected_is_within_what_was_seen(samples: list[tuple[int, float]]) -> None:
    rates = [count / passed_s for count, passed_s in samples]
    for average in corrected(after(samples).per_s, sum(passed_s for _, passed_s in samples)):
        assert min(rates) * 0.999 <= average <= max(rates) * 1.001


@given(SAMPLES, SAMPLES)
def test_two_times_put_together_are_as_one(first: list[tuple[int, float]], second: list[tuple[int, float]]) -> None:
    later_s = sum(passed_s for _, passed_s in second)
    together = joined(after(first).per_s, after(second).per_s, later_s)
    assert together == pytest.approx(after(first + second).per_s, rel=1e-6, abs=1e-6)


def test_a_peak_is_remembered_for_a_cool_down_and_then_fades() -> None:
    flooded = after([(10_000, 10.0)])
    peak = flooded.peaks[0]
    assert peak == flooded.per_s[0]
    flooded.add(0, COOL_DOWN_S, COOL_DOWN_S)
    assert flooded.per_s[0] < 1e-9
    assert peak / 2 < flooded.peaks[0] < peak
    flooded.add(0, COOL_DOWN_S, COOL_DOWN_S)
    assert flooded.peaks[0] < peak / 2


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


def metered(seconds: int, messages: int, size_bytes: int) -> LoadMeter:
    meter = LoadMeter(RANGE)
    for _ in range(seconds):
        meter.sample(np.array([5, 5, 2**30], np.int32), messages)
        meter.tick(messages, size_bytes, 1.0, COOL_DOWN_S)
    return meter


def test_the_report_goes_over_the_wire_whole() -> None:
    load = metered(30, 100, 5000).load()
    assert load.observed_s == 30
    assert load.corrected_messages_per_s == pytest.approx((100.0,) * 4)
    assert load.corrected_bytes_per_s == pytest.approx((5000.0,) * 4)
    assert load.hottest == 5
    assert load.hot_share == pytest.approx(2 / 3)
    assert load.bins[0] == pytest.approx(2 * load.bins[32])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(load), type=SegmentLoad) == load


def test_a_cool_segment_says_little() -> None:
    load = metered(30, 100, 5000).load(keys=False)
    assert (load.bins, load.hottest, load.hot_share) == ((), None, 0.0)
    assert len(msgspec.msgpack.encode(load)) < 200
    assert LoadMeter(RANGE).load() == SegmentLoad()


def test_keyless_rows_are_even() -> None:
    meter = LoadMeter(RANGE)
    meter.sample_keyless(64.0)
    assert meter.load().bins == (1.0,) * 64
    assert meter.load().hottest is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"messages_per_s": (1.0,) * 3},
        {"bytes_per_s": (float("nan"),) * 4},
        {"bytes_peaks": (float("inf"),) * 4},
        {"observed_s": -1.0},
        {"bins": (1.0,) * 65},
        {"hottest": 2**31 - 1},
        {"hot_share": 1.1},
    ],
)
def test_what_no_owner_can_say_is_not_decoded(wrong: dict[str, object]) -> None:
    told = msgspec.msgpack.encode(SegmentLoad(**wrong))  # type: ignore[arg-type]
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(told, type=SegmentLoad)


def test_a_move_forgets_nothing() -> None:
    whole, first, second = metered(90, 100, 5000), metered(50, 100, 5000), metered(40, 100, 5000)
    joined = second.load().following(first.load(), COOL_DOWN_S)
    assert joined.observed_s == 90
    for name in ("messages_per_s", "bytes_per_s", "messages_peaks", "bytes_peaks"):
        assert getattr(joined, name) == pytest.approx(getattr(whole.load(), name))


def test_a_message_costs_as_much_as_some_bytes() -> None:
    segment = ("t", 0, 1)
    assert costs({segment: metered(20, 0, 1000).load()})[segment] == pytest.approx(1000)
    assert costs({segment: metered(20, 10, 0).load()})[segment] == pytest.approx(10 * MESSAGE_BYTES)


def test_who_is_not_known_yet_counts_as_the_mean_of_its_topic() -> None:
    known = {("t", 0, number): metered(20, 0, size).load() for number, size in enumerate((100, 300))}
    barely = metered(int(KNOWN_S) - 1, 0, 10**6).load()
    fresh = {("t", 0, 7): SegmentLoad(), ("t", 0, 8): barely, ("u", 0, 0): SegmentLoad()}
    counted = costs(known | fresh)
    assert counted[("t", 0, 7)] == counted[("t", 0, 8)] == pytest.approx(200)
    assert counted[("u", 0, 0)] == 0
    assert counted.keys() == (known | fresh).keys()


def test_what_nobody_reports_counts_as_the_mean_of_its_topic_or_of_all() -> None:
    reported = {("t", 0, 0): 100.0, ("t", 0, 1): 300.0, ("t", 1, 0): 800.0}
    counted = with_unknown(reported, [("t", 0, 0), ("t", 0, 7), ("u", 0, 0)])
    assert counted == reported | {("t", 0, 7): 200.0, ("u", 0, 0): 400.0}
    assert with_unknown({}, [("u", 0, 0)]) == {("u", 0, 0): 0.0}

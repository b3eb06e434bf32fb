"""Moving averages: what they are after even and uneven samples, what is observed, what two owners' averages make."""

from math import e, exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seaweedq.balancer.load import IDLE, WINDOWS_S, Rate, corrected, joined

COOL_DOWN_S = 600.0
SAMPLES = st.lists(st.tuples(st.integers(0, 10**9), st.floats(0.01, 500)), min_size=1, max_size=20)


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

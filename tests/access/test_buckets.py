"""Buckets: what they let in, and what a debt costs."""

import math

import pytest

from seaweedq.access.buckets import BURST_S, MOST_WAIT_S, Bucket


def test_a_request_that_costs_more_than_a_bucket_holds_is_served_and_paid_for() -> None:
    bucket = Bucket(10, 0)
    assert bucket.take(100, 0) == 0
    assert bucket.take(1, 0) == pytest.approx(9)
    assert bucket.take(1, 8.9) == pytest.approx(0.1)
    assert bucket.take(1, 9.001) == 0
    bucket.spend(10)
    assert bucket.take(1, 9.501) == pytest.approx(0.6, abs=0.01)


def test_a_bucket_holds_no_more_than_its_burst_and_one_of_nothing_lets_nothing_in() -> None:
    bucket = Bucket(10, 0)
    assert bucket.take(10 * BURST_S, 1000) == 0
    assert bucket.take(1, 1000) == 0, "it was not in debt"
    assert bucket.take(1, 1000) > 0
    assert Bucket(0, 0).take(1, 5) == MOST_WAIT_S


@pytest.mark.parametrize(("rate", "holds"), [(0.01, 0.08), (0.5, 4), (1, 5), (4, 5), (5, 5), (300, 300)])
def test_a_bucket_of_a_low_rate_holds_a_few_requests_as_far_as_eight_seconds_bring_them(
    rate: float, holds: float
) -> None:
    bucket = Bucket(rate, 0)
    let_in = 0
    while bucket.take(1, 0) == 0:
        let_in += 1
    assert let_in == math.floor(holds) + 1, "the last one leaves it in debt"
    assert bucket.level(1e6) > holds
    bucket.take(0, 1e6)
    assert bucket.level(1e6) == pytest.approx(holds)

"""Buckets, and the split of a limit among brokers."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seaweedq.access.limits import BURST_S, FLOOR, IDLE, MOST_WAIT_S, Bucket, Use, split, take_all
from seaweedq.checks import InvariantViolated
from tests.support.tiers import examples


def test_a_request_dearer_than_a_bucket_is_served_and_paid_for() -> None:
    bucket = Bucket(10, 0)
    assert bucket.take(100, 0) == 0
    assert bucket.take(1, 0) == pytest.approx(9)
    assert bucket.take(1, 8.9) == pytest.approx(0.1)
    assert bucket.take(1, 9.001) == 0
    bucket.spend(10)
    assert bucket.take(1, 9.501) == pytest.approx(0.6, abs=0.01)


def test_a_bucket_holds_at_most_its_burst_and_an_empty_one_lets_nothing_in() -> None:
    bucket = Bucket(10, 0)
    assert bucket.take(10 * BURST_S, 1000) == 0
    assert bucket.take(1, 1000) == 0, "it was not in debt"
    assert bucket.take(1, 1000) > 0
    assert Bucket(0, 0).take(1, 5) == MOST_WAIT_S


@pytest.mark.parametrize(("rate", "holds"), [(0.01, 0.08), (0.5, 4), (1, 5), (4, 5), (5, 5), (300, 300)])
def test_a_bucket_of_a_low_rate_holds_the_requests_of_eight_seconds(rate: float, holds: float) -> None:
    bucket = Bucket(rate, 0)
    let_in = 0
    while bucket.take(1, 0) == 0:
        let_in += 1
    assert let_in == math.floor(holds) + 1, "the last one leaves it in debt"
    assert bucket.level(1e6) > holds
    bucket.take(0, 1e6)
    assert bucket.level(1e6) == pytest.approx(holds)


def test_a_bucket_has_no_share_of_a_limit_of_nothing() -> None:
    """Its report divided by zero. No request can set such a limit."""
    with pytest.raises(InvariantViolated):
        Bucket(0, 0, whole=0)


STEPS = st.lists(st.tuples(st.floats(0, 3), st.lists(st.floats(0, 9), min_size=3, max_size=3)), max_size=40)


@settings(max_examples=examples(100))
@given(STEPS, st.lists(st.sampled_from([0, 0.5, 3, 100]), min_size=3, max_size=3))
def test_to_take_of_several_at_once_is_to_take_of_each_or_of_none(
    steps: list[tuple[float, list[float]]], rates: list[float]
) -> None:
    at_once, each = ([Bucket(rate, 0) for rate in rates] for _ in range(2))
    now_s = 0.0
    for passed_s, amounts in steps:
        now_s += passed_s
        waits = [bucket.take(0, now_s) for bucket in each]
        if not any(waits):
            for bucket, amount in zip(each, amounts, strict=True):
                bucket.take(amount, now_s)
        assert take_all(at_once, list(zip(at_once, amounts, strict=True)), now_s) != any(waits)
        for bucket in (*at_once, *each):
            bucket.take(0, now_s)  # what is over its burst is gone
        assert [one.level(now_s) for one in at_once] == [one.level(now_s) for one in each]
        assert [one.used for one in at_once] == [one.used for one in each]


@settings(max_examples=examples(100))
@given(st.lists(st.builds(Use, st.floats(0, 3), st.booleans()), min_size=1, max_size=8), st.integers(0, 3))
def test_a_split_gives_the_limit_and_each_broker_a_tenth_of_an_even_share(uses: list[Use], silent: int) -> None:
    named = {str(number): use for number, use in enumerate(uses)}
    shares = split(named, silent)
    whole, floor = len(uses) / (len(uses) + silent), FLOOR / (len(uses) + silent)
    assert shares.keys() == named.keys()
    assert all(share >= floor * 0.999 for share in shares.values())
    assert whole * 0.999 <= sum(shares.values()) <= whole * (1 + FLOOR) * 1.001
    hungry = [shares[name] for name, use in named.items() if use.refused]
    sated = [shares[name] for name, use in named.items() if not use.refused]
    if hungry:
        assert max(hungry) - min(hungry) < 1e-6
        assert max(sated, default=0) <= max(hungry) * 1.001 + floor


def test_who_wants_more_gets_what_the_others_leave() -> None:
    assert split({}) == {}
    shares = split({"a": Use(0.33, True), "b": Use(0.1), "c": IDLE})
    assert shares == {"a": pytest.approx(0.9), "b": pytest.approx(0.1), "c": pytest.approx(FLOOR / 3)}
    assert split({"a": Use(0.3, True), "b": IDLE}, silent=1)["a"] == pytest.approx(2 / 3), "the third may use its own"
    assert split({"a": Use(5.0), "b": Use(5.0)}) == {"a": 0.5, "b": 0.5}

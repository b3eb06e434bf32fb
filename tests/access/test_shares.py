"""Buckets and shares in simulated time: what a cluster lets in, whatever the load does."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seaweedq.access.buckets import BURST_S, MOST_WAIT_S, Bucket
from seaweedq.access.shares import FLOOR, LAPSE_S, SPLIT_S, Share, Use, split
from tests.support.tiers import examples

STEP_S = 0.02
Load = Callable[[int, float], float]  # of a broker at a time, a second


@dataclass
class Simulated:
    """A broker that takes its share of a limit."""

    limit: float
    brokers: int
    bucket: Bucket = field(init=False)
    share: Share = field(default_factory=Share)
    let_in: float = 0.0
    since: float = 0.0  # the last split
    refused: bool = False
    waiting: float = 0.0  # requests that have not come yet, a part of one

    def __post_init__(self) -> None:
        self.bucket = Bucket(self.limit / self.brokers, 0.0)

    def step(self, load: float, cost: float, now_s: float) -> None:
        self.bucket.set_rate(self.share.rate(self.limit, self.brokers, now_s), now_s)
        self.waiting += load * STEP_S / cost
        while self.waiting >= 1:
            self.waiting -= 1
            if self.bucket.take(cost, now_s):
                self.refused = True
            else:
                self.let_in += cost
                self.since += cost

    def report(self) -> Use:
        used = Use(self.since / SPLIT_S, self.refused)
        self.since, self.refused = 0.0, False
        return used


def run(
    limit: float, brokers: int, seconds: float, load: Load, cost: float, led: Callable[[float], bool]
) -> list[float]:
    """What the cluster has let in at the end of each second."""
    members = [Simulated(limit, brokers) for _ in range(brokers)]
    totals, next_split_s = [], SPLIT_S
    for number in range(round(seconds / STEP_S)):
        now_s = number * STEP_S
        for place, member in enumerate(members):
            member.step(load(place, now_s), cost, now_s)
        if now_s >= next_split_s:
            next_split_s += SPLIT_S
            if led(now_s):
                uses = {str(place): member.report() for place, member in enumerate(members)}
                for place, rate in split(limit, uses).items():
                    members[int(place)].share.grant(rate, now_s)
        if (number + 1) % round(1 / STEP_S) == 0:
            totals.append(sum(member.let_in for member in members))
    return totals


@st.composite
def loads(draw: st.DrawFn) -> tuple[int, Sequence[Sequence[float]], Sequence[float]]:
    """Brokers, what each of them is asked for in three spans (of the limit, together over it), and where spans end."""
    brokers = draw(st.integers(1, 5))
    weight = st.sampled_from([0.0, 0.0, 0.02, 0.3, 1.0, 5.0])
    spans = []
    for _ in range(3):
        weights = draw(st.lists(weight, min_size=brokers, max_size=brokers).filter(any))
        spans.append([2.0 * one / sum(weights) for one in weights])
    return brokers, spans, sorted(draw(st.lists(st.floats(0, 60), min_size=2, max_size=2)))


@settings(max_examples=examples(8), deadline=None)
@given(loads(), st.sampled_from([40.0, 300.0]), st.sampled_from([0.5, 1.0, 10.0]))
def test_what_is_let_in_over_a_minute_is_the_limit(
    drawn: tuple[int, Sequence[Sequence[float]], Sequence[float]], limit: float, cost: float
) -> None:
    brokers, spans, ends = drawn

    def load(place: int, now_s: float) -> float:
        return limit * spans[sum(now_s >= end for end in ends)][place]

    totals = run(limit, brokers, 60, load, cost, lambda _: True)
    assert 0.85 <= totals[-1] / (60 * limit) <= 1.15


@pytest.mark.parametrize("weights", [(2.0, 0.0, 0.0), (1.0, 1.0, 1.0), (1.5, 0.4, 0.1)])
def test_while_there_is_no_leader_shares_lapse(weights: tuple[float, float, float]) -> None:
    limit, gone_s, back_s = 300.0, 21, 45
    totals = run(limit, 3, 60, lambda place, _: limit * weights[place], 1.0, lambda now_s: not gone_s < now_s < back_s)
    without = (totals[back_s - 1] - totals[gone_s - 1]) / ((back_s - gone_s) * limit)
    assert 0.3 <= without <= 1.3
    assert 0.85 <= (totals[-1] - totals[back_s + 3]) / ((56 - back_s) * limit) <= 1.15


@settings(max_examples=examples(100))
@given(st.lists(st.builds(Use, st.floats(0, 1000), st.booleans()), min_size=1, max_size=8), st.floats(0.1, 500))
def test_a_split_gives_the_limit_and_no_broker_less_than_a_tenth_of_an_even_share(
    uses: list[Use], limit: float
) -> None:
    named = {str(number): use for number, use in enumerate(uses)}
    shares = split(limit, named)
    floor = FLOOR * limit / len(uses)
    assert shares.keys() == named.keys()
    assert all(share >= floor * 0.999 for share in shares.values())
    assert limit * 0.999 <= sum(shares.values()) <= limit * (1 + FLOOR) * 1.001
    hungry = [shares[name] for name, use in named.items() if use.refused]
    sated = [shares[name] for name, use in named.items() if not use.refused]
    if hungry:
        assert max(hungry) - min(hungry) < limit * 1e-6
        assert max(sated, default=0) <= max(hungry) * 1.001 + floor


def test_a_share_lapses() -> None:
    share = Share()
    assert share.rate(90, 3, 0) == 30
    share.grant(80, 10)
    assert share.rate(90, 3, 10 + LAPSE_S - 0.01) == 80
    assert share.rate(90, 2, 10 + LAPSE_S) == 45


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

"""The number of brokers that the load needs: over recorded and drawn loads it follows, and does not go to and fro.

`pytest -s` shows how often the number changes with each load, and for how long the brokers are overloaded.
"""

from collections.abc import Callable
from itertools import pairwise
from math import ceil, pi, sin

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seaweedq.balancer.broker_count import FALL_S, RISE_S, TARGETS, BrokerCount, Utilization, least_used, needed
from tests.support.tiers import examples

pytestmark = pytest.mark.simulation
ROUND_S, START_S, HOUR_S = 2.0, 12.0, 3600.0
DAY_S = 24 * HOUR_S


class Fleet:
    """Brokers that start START_S after they are wanted, and stop at once. A load of 1 saturates one broker."""

    def __init__(self, brokers: int = 1, least: int = 1) -> None:
        self.count, self.running, self.least = BrokerCount(), brokers, least
        self.now_s = self.overloaded_s = self.longest_s = self.mean = 0.0
        self.changes: list[tuple[float, int]] = []
        self._due: list[float] = []
        self._cpu = 0.0
        self._since_s: float | None = None

    def run(self, seconds: float, load: Callable[[float], float]) -> None:
        random, end_s = np.random.default_rng(1), self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += ROUND_S
            at = load(self.now_s) * random.normal(1, 0.03)
            self._cpu += (min(1.0, at / self.running) - self._cpu) * 0.18  # an average of 10 s
            reports = [Utilization(cpu=self._cpu * part) for part in random.normal(1, 0.1, self.running)]
            before = self.count.wanted
            wanted = self.count.update(self.now_s, reports, self.running, self.least)
            if before != wanted:
                self.changes.append((self.now_s, wanted))
            self._due = sorted([*self._due, *[self.now_s + START_S] * (wanted - self.running - len(self._due))])
            while self._due and self._due[0] <= self.now_s:
                self._due.pop(0)
                self.running += 1
                self._cpu *= 1 - 1 / self.running  # the new one has had no load yet
            self.running = min(self.running, wanted)
            self.mean += self.running * ROUND_S
            self._since_s = (self._since_s or self.now_s) if at > self.running else None
            if self._since_s:
                self.overloaded_s += ROUND_S
                self.longest_s = max(self.longest_s, self.now_s - self._since_s)
        print(f"{len(self.changes)} changes, overloaded {self.overloaded_s:.0f} s, {self.longest_s:.0f} s at once")

    def turns(self) -> int:
        """How often the number changed its direction."""
        numbers = [wanted for _, wanted in self.changes]
        ways = [one > other for other, one in pairwise(numbers)]
        return sum(one != other for one, other in pairwise(ways))


def test_a_steady_load_starts_and_stops_nothing() -> None:
    fleet = Fleet(4)
    fleet.run(6 * HOUR_S, lambda now_s: 2.3)
    assert (fleet.changes, fleet.running) == ([(ROUND_S, 4)], 4)


def test_a_spike_is_met_within_a_minute_and_given_back() -> None:
    fleet = Fleet(2)
    fleet.run(HOUR_S, lambda now_s: 1.0)
    fleet.run(600, lambda now_s: 5.0)
    assert fleet.longest_s < 60
    assert fleet.running == 8
    fleet.run(HOUR_S, lambda now_s: 1.0)
    assert fleet.running == 2
    assert fleet.turns() == 1


def test_a_burst_shorter_than_the_rise_starts_nothing() -> None:
    fleet = Fleet(2)
    fleet.run(1200, lambda now_s: 1.0)
    fleet.run(RISE_S / 2, lambda now_s: 1.8)
    fleet.run(1200, lambda now_s: 1.0)
    assert fleet.running == 2
    assert len(fleet.changes) == 1


def test_a_ramp_up_and_down() -> None:
    fleet = Fleet(1)
    fleet.run(2 * HOUR_S, lambda now_s: 0.3 + 6 * now_s / (2 * HOUR_S))
    assert fleet.overloaded_s == 0
    assert 10 <= fleet.running <= 13
    fleet.run(2 * HOUR_S, lambda now_s: max(0.3, 6.3 - 6 * (now_s - 2 * HOUR_S) / (2 * HOUR_S)))
    fleet.run(1200, lambda now_s: 0.3)
    assert fleet.running == 1
    assert fleet.turns() == 1


def test_a_saw_keeps_the_brokers_that_its_peaks_need() -> None:
    fleet = Fleet(2)
    fleet.run(3 * HOUR_S, lambda now_s: 1 + 3 * (now_s % 300) / 300)
    assert fleet.turns() == 0
    assert fleet.longest_s < 60


def test_a_day_and_a_night() -> None:
    fleet = Fleet(6)
    fleet.run(DAY_S, lambda now_s: 3.2 - 2.6 * sin(2 * pi * now_s / DAY_S))
    assert fleet.overloaded_s == 0
    assert fleet.turns() <= 3
    assert fleet.mean / fleet.now_s < 1.25 * 3.2 / 0.6  # a quarter more than the load needs on average


@settings(max_examples=examples(10))
@given(st.integers(0, 2**32), st.integers(1, 6))
def test_drawn_loads_never_go_to_and_fro_within_the_fall(seed: int, least: int) -> None:
    random = np.random.default_rng(seed)
    levels = random.uniform(0.1, 6, 12)
    fleet = Fleet(int(random.integers(1, 8)), least)
    fleet.run(HOUR_S, lambda now_s: float(levels[min(11, int(now_s / 300))]))
    assert all(wanted >= least for _, wanted in fleet.changes)
    rose_s = float("-inf")
    for (_, before), (at_s, wanted) in pairwise(fleet.changes):
        if wanted > before:
            rose_s = at_s
        else:
            assert at_s >= rose_s + FALL_S / 2
    assert fleet.longest_s < 120  # from one broker to twelve takes four doublings


def test_brokers_that_do_not_report_count_as_the_others() -> None:
    assert needed([Utilization(cpu=0.55)] * 2, 4) == (4, "cpu")
    assert needed([Utilization(cpu=0.8)], 4) == (6, "cpu")


@pytest.mark.parametrize("resource", Utilization.__struct_fields__)
def test_the_resource_that_needs_most_decides(resource: str) -> None:
    report = Utilization(**{**dict.fromkeys(Utilization.__struct_fields__, 0.2), resource: 1.5})
    assert needed([report] * 3, 3) == (
        6 if resource in ("cpu", "memory") else ceil(4.5 / getattr(TARGETS, resource)),
        resource,
    )


def test_a_decision_begins_anew_behind_a_pause() -> None:
    count = BrokerCount()
    for at_s in range(int(2 * FALL_S)):
        count.update(float(at_s), [Utilization(cpu=0.5)] * 6, 6, 1)
    assert count.wanted == 5  # 3 brokers' worth of load, at 0.6 of each
    again_s = 3 * FALL_S  # another broker led meanwhile, and the load has fallen
    assert count.is_made
    assert count.update(again_s, [Utilization(cpu=0.1)] * 7, 7, 1) == 7
    assert not count.is_made  # the broker that started meanwhile would be stopped
    assert count.update(again_s + RISE_S / 2, [Utilization(cpu=0.1)] * 8, 8, 1) == 8
    assert not count.is_made
    assert count.update(again_s + RISE_S, [Utilization(cpu=0.1)] * 8, 8, 1) == 8
    assert count.is_made


def test_nothing_is_known_without_reports() -> None:
    count = BrokerCount()
    assert count.update(0.0, [], 3, 1) == 3
    assert count.update(RISE_S, [], 3, 1) == 3
    assert count.update(FALL_S, [], 3, 1) == 3


def test_brokers_are_ordered_by_the_resource_nearest_its_target():
    reports = {
        "cpu": Utilization(cpu=0.3),
        "memory": Utilization(cpu=0.1, memory=0.6),
        "b-idle": Utilization(),
        "a-idle": Utilization(),
    }
    assert least_used(reports) == ["a-idle", "b-idle", "cpu", "memory"]

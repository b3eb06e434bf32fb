"""A broker's report of its loads: the mean rate of each segment, whenever that came."""

from types import SimpleNamespace

import pytest

from seaweedq.broker.loads import OVER_S, Loads

ONE, OTHER = ("t", 1, 0), ("t", 1, 1)


class Sampled:
    """A broker with one topic; each step is so many seconds, in which segments take so many bytes a second."""

    def __init__(self):
        self.now_s = 0.0
        self.opened = {}
        topic = SimpleNamespace(name="t", record=SimpleNamespace(incarnation=1), opened=self.opened)
        catalog = SimpleNamespace(find=lambda name: topic, names=lambda: ["t"])
        self.loads = Loads(catalog, SimpleNamespace(monotonic_s=lambda: self.now_s))

    def step(self, seconds, **rates):
        self.now_s += seconds
        for name, rate in rates.items():
            segment = self.opened.setdefault({"one": 0, "other": 1}[name], SimpleNamespace(taken_bytes=0))
            segment.taken_bytes += rate * seconds
        return self.loads.report()


@pytest.fixture
def sampled():
    return Sampled()


def test_a_steady_rate_is_reported_from_the_first_sample_on(sampled):
    for _ in range(5):
        assert sampled.step(2, one=1000) == pytest.approx({ONE: 1000})


def test_a_segment_that_came_later_weighs_as_much_as_one_that_was_there(sampled):
    for _ in range(10):
        sampled.step(2, one=1000)
    assert sampled.step(2, one=1000, other=1000) == pytest.approx({ONE: 1000, OTHER: 1000})


def test_a_rate_that_ends_is_forgotten_within_the_average(sampled):
    for _ in range(20):
        sampled.step(2, one=1000)
    assert sampled.step(OVER_S, one=0)[ONE] == pytest.approx(1000 / 2.718281828, rel=0.05)


def test_a_segment_that_went_is_not_reported_and_begins_anew_when_it_comes_back(sampled):
    sampled.step(2, one=1000)
    del sampled.opened[0]
    assert sampled.step(2, other=1) == pytest.approx({OTHER: 1})
    assert sampled.step(2, one=10, other=1) == pytest.approx({ONE: 10, OTHER: 1})


def test_one_that_was_away_between_two_samples_never_has_a_negative_rate(sampled):
    sampled.step(2, one=1000)
    sampled.opened.clear()
    assert sampled.step(2, one=10)[ONE] >= 0


def test_asking_often_takes_no_samples(sampled):
    before = sampled.step(2, one=1000)
    assert sampled.step(OVER_S / 20, one=500_000) == before

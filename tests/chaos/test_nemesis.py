"""The nemesis carries out its plan: each fault begins at its time, ends when it is over, and stands in the history."""

import pytest

from tests.support.chaos import nemesis as module
from tests.support.chaos.fault import Begun, Fault
from tests.support.chaos.nemesis import Nemesis, Planned


class Time:
    """Moves while somebody sleeps, and else not, however busy the machine is."""

    def __init__(self):
        self.now_s = 0.0

    def monotonic(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds


@pytest.fixture
def time(monkeypatch):
    monkeypatch.setattr(module, "time", found := Time())
    return found


class Unsupervised:
    def supervise(self):
        pass


def fault(name, did, begun=True, orphans=()):
    def begin(cluster, rng):
        did.append(f"begin {name}")
        return Begun(lambda: did.append(f"undo {name}"), "b0", orphans) if begun else None

    return Fault(name, begin, (0, 1))


def test_faults_overlap_as_planned_and_all_are_undone(history, time):
    did, seen = [], []
    planned = [Planned(0.1, 0.6, fault("long", did, orphans=[3]), 1), Planned(0.2, 0.1, fault("short", did), 2)]
    nemesis = Nemesis(Unsupervised(), history, planned)
    nemesis.run(0.5, seen.append)
    assert did == ["begin long", "begin short", "undo short", "undo long"]
    assert nemesis.done == ["long", "short"]
    assert 0.6 < seen[-1] < 2
    assert [(e.type, e.note, e.segment) for e in history.events] == [
        ("invoke", "long", None),
        ("info", "long: b0", 3),
        ("invoke", "short", None),
        ("ok", "short: b0", None),
        ("ok", "long: b0", None),
    ]


def test_a_fault_lasts_from_when_it_has_begun(history, time):
    lasted = []

    def begin(cluster, rng):
        time.sleep(0.3)
        began = time.monotonic()
        return Begun(lambda: lasted.append(time.monotonic() - began), "b0")

    Nemesis(Unsupervised(), history, [Planned(0.0, 0.2, Fault("slow", begin, (0, 1)), 1)]).run(0.1, lambda at: None)
    assert lasted[0] >= 0.2


def test_a_fault_that_takes_long_to_begin_puts_off_the_next_ones(history, time):
    begun = []

    def begin(cluster, rng):
        time.sleep(0.3)
        begun.append(time.monotonic())
        return Begun(lambda: None, "b0")

    planned = [Planned(at, 0.0, Fault("slow", begin, (0, 0)), 1) for at in (0.0, 0.2)]
    Nemesis(Unsupervised(), history, planned).run(2.0, lambda at: None)
    assert begun[1] - begun[0] >= 0.49


def test_what_would_begin_too_late_does_not_begin(history, time):
    did = []
    planned = [Planned(at, 0.0, fault("one", did), 1) for at in (0.0, 0.3)]
    planned.insert(1, Planned(0.1, 0.0, Fault("slow", lambda cluster, rng: time.sleep(0.4), (0, 0)), 1))
    Nemesis(Unsupervised(), history, planned).run(0.4, lambda at: None)
    assert did == ["begin one", "undo one"]


def test_a_fault_that_goes_wrong_is_told_and_does_not_end_the_run(history, time):
    def begin(cluster, rng):
        raise AssertionError("b0 was not gone in 30 s")

    did = []
    planned = [Planned(0.0, 0.0, Fault("stop", begin, (0, 0)), 1), Planned(0.1, 0.0, fault("next", did), 1)]
    nemesis = Nemesis(Unsupervised(), history, planned)
    nemesis.run(0.2, lambda at: None)
    assert nemesis.broken == ["stop: b0 was not gone in 30 s"]
    assert nemesis.done == ["next"]


def test_what_can_not_be_done_now_is_no_fault(history, time):
    did = []
    nemesis = Nemesis(Unsupervised(), history, [Planned(0.0, 0.1, fault("none", did, begun=False), 1)])
    nemesis.run(0.2, lambda at: None)
    assert (did, nemesis.done) == (["begin none"], [])
    assert [e.type for e in history.events] == ["invoke", "fail"]

"""The pure parts: the plan of faults, and the figures that are taken from a history."""

import re
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import seaweedq
from tests.support.chaos.chaos import TRACE
from tests.support.chaos.ends import START_S, STOP_PLACES, phase
from tests.support.chaos.fault import Fault
from tests.support.chaos.faults import ALL, LIES
from tests.support.chaos.figures import calls, failovers, quantile
from tests.support.chaos.leaks import Left, leaked
from tests.support.chaos.nemesis import plan
from tests.support.chaos.process_faults import PLACES, TAKEOVER_PLACES
from tests.support.chaos.return_faults import REBUILD_PLACES
from tests.support.chaos.segment_faults import CHANGE_PLACES
from tests.support.chaos.store_faults import UNSURE, victim
from tests.support.chaos.strangers import STRANGERS
from tests.support.history.history import Event
from tests.support.history.judged import RETURNS


@given(st.integers(), st.floats(0, 500), st.floats(1, 10))
def test_a_plan_is_drawn_from_its_seed_and_keeps_its_time(seed, seconds, lease_s):
    planned = plan(seed, seconds, lease_s, ALL)
    assert planned == plan(seed, seconds, lease_s, ALL)
    assert all(each.at + each.lasts_s <= seconds for each in planned)
    assert [each.at for each in planned] == sorted(each.at for each in planned)


def test_a_long_plan_has_all_faults_of_a_row_equally_often():
    planned = plan(1, 2000, 3, ALL)
    for beside in (False, True):
        names = [each.fault.name for each in planned]
        counts = {names.count(fault.name) for fault in ALL if fault.beside is beside}
        assert max(counts) - min(counts) <= 1 <= min(counts)


def test_others_come_and_go_while_one_beside_them_goes_on():
    def none(cluster, rng):
        return None

    long, short = Fault("long", none, (20, 20), beside=True), Fault("short", none, (1, 1))
    planned = plan(1, 100, 2, [long, short])
    assert sum(each.fault is long for each in planned) == 2
    assert sum(each.fault is short for each in planned) > 15


def test_faults_have_names_of_their_own_and_say_what_they_do():
    assert len({fault.name for fault in ALL}) == len(ALL)
    assert all(isinstance(fault, Fault) and 0 <= fault.lasts[0] <= fault.lasts[1] for fault in ALL)


def test_the_faults_in_which_the_store_lies_are_there():
    assert set(LIES) <= {fault.name for fault in ALL}


def test_brokers_are_stopped_at_places_that_are_there():
    code = "".join(file.read_text() for file in Path(seaweedq.__file__).parent.rglob("*.py"))
    assert [
        place
        for place in (*PLACES, *TAKEOVER_PLACES, *CHANGE_PLACES, *STOP_PLACES, *REBUILD_PLACES)
        if f'reach("{place}")' not in code
    ] == []


def test_a_chaos_run_dies_at_each_write_of_a_rebuild():
    code = "".join(file.read_text() for file in Path(seaweedq.__file__).parent.rglob("rebuilding.py"))
    assert set(re.findall(r'reach\("(.*)"\)', code)) == set(REBUILD_PLACES)


def test_the_faults_behind_which_acks_may_be_forgotten_are_there():
    assert set(RETURNS) <= {fault.name for fault in ALL}


@given(st.integers())
def test_sigterm_comes_at_any_time_of_a_start_or_at_a_place(seed):
    drawn = phase(Random(seed))
    assert drawn == phase(Random(seed))
    assert 0 <= drawn.after_s <= 2 * START_S
    place, count, action = drawn.place.split(":") if drawn.place else ("", "1", "term")
    assert place in ("", *PLACES, *TAKEOVER_PLACES, *CHANGE_PLACES, *STOP_PLACES)
    assert (int(count) >= 1, action) == (True, "term")


@given(st.integers(), st.integers(0, 20))
def test_any_slot_is_lost_of_which_a_newer_one_knows(seed, count):
    names = [f"j/{n:08}" for n in range(count)]
    lost = victim(names[::-1], Random(seed))
    assert (lost in names[:-UNSURE]) if count > UNSURE else lost is None


@given(st.sampled_from(sorted(STRANGERS)), st.integers())
def test_a_stranger_is_connections_with_requests_that_never_end(kind, seed):
    wanted = STRANGERS[kind](Random(seed))
    assert wanted == STRANGERS[kind](Random(seed))
    assert 10 <= wanted.count <= 400
    assert not wanted.first or wanted.first.split(b" ")[0] in (b"GET", b"POST")


FIGURES = {"seaweedq_request_bytes": 0.0, "files": 60.0}
CLEAN = Left(frozenset({"b0.1"}), frozenset({"b0.1"}), frozenset({"b0.1"}), {"b0.1": FIGURES})


def test_nothing_is_left():
    assert [*leaked(CLEAN)] == []
    assert [*leaked(CLEAN._replace(journals=frozenset()))] == []


@pytest.mark.parametrize(
    "more",
    [
        {"keys": frozenset({"b0.1", "b0.0"})},
        {"keys": frozenset()},
        {"journals": frozenset({"b0.1", "b0.0"})},
        {"figures": {"b0.1": {**FIGURES, "seaweedq_request_bytes": 5000.0}}},
        {"figures": {"b0.1": {**FIGURES, "files": 500.0}}},
    ],
)
def test_what_belongs_to_nobody_is_found(more):
    assert len([*leaked(CLEAN._replace(**more))]) == 1


def killed(t: float, segment: int) -> Event:
    return Event(t, "nemesis", "fault", "info", 1, segment=segment, note="kill owner: b0")


def published(begun: float, ended: float, segment: int, call: int) -> list[Event]:
    line = Event(begun, "p", "publish", "invoke", call)
    return [line, replace(line, t=ended, type="ok", segment=segment, offset=0)]


def test_a_wait_lasts_from_the_kill_to_the_first_ok_of_a_later_publish():
    events = [
        *published(9.0, 10.5, 0, 2),
        killed(10.0, 0),
        killed(10.0, 1),
        killed(10.0, 2),
        replace(killed(10.0, 1), note="kill all: b0 b1"),
        *published(10.2, 15.0, 0, 3),
        *published(11.0, 14.0, 0, 4),
        *published(12.0, 13.0, 1, 5),
    ]
    assert failovers(events) == {"kill owner": [4.0, 3.0], "kill all": [3.0]}


def test_calls_are_counted_by_outcome():
    assert calls([*published(1, 2, 0, 1), *published(1, 2, 0, 2), killed(1, 0)]) == {("publish", "ok"): 2}


@pytest.mark.parametrize(("part", "value"), [(0, 1), (0.5, 3), (1, 4)])
def test_quantiles(part, value):
    assert quantile([4, 1, 3, 2], part) == value


def test_a_log_is_asked_what_its_tracebacks_end_with():
    plain = 'Traceback (most recent call last):\n  File "a.py", line 1, in b\n    c()\nx.Bad: no\nINFO: on\n'
    inner = '    | Traceback (most recent call last):\n    |   File "a.py", line 1\n    | a.Fenced: gone\n    +---\n'
    assert TRACE.findall(f"INFO: off\n{plain}{inner}") == ["x.Bad: no", "a.Fenced: gone"]

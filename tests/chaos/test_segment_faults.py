"""Segments change by force: what is asked for comes about, and a broker comes to the place where it is to stop."""

import random

import pytest

from tests.support.chaos.cluster import Cluster, waited
from tests.support.chaos.segment_faults import CHANGE_PLACES, KINDS, Changes, amid_a_change
from tests.support.history.final_read import segments
from tests.support.history.load import create

pytestmark = [pytest.mark.process, pytest.mark.service]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("cluster"), random.Random(0), 2, 2.0) as cluster:
        create(cluster.urls[0], segments=2)
        yield cluster


@pytest.mark.long
def test_each_kind_of_change_comes_about(cluster):
    for kind in ("split", *KINDS):
        changes = Changes(cluster, [kind], random.Random(1))
        changes.start()
        assert waited(lambda done=changes: done.answers, 30), f"no {kind} in 30 s"
        changes.stopped.set()
        changes.join()
    shown = segments(cluster.urls[0]).values()
    assert {(len(one.predecessors) > 1, len(one.successors) > 1) for one in shown} >= {(True, False), (False, True)}
    assert any(len(one.successors) == 1 and len(one.predecessors) < 2 for one in shown)
    assert cluster.strange == []
    assert waited(lambda: cluster.locked() == [], 10)


@pytest.mark.long
def test_a_broker_stops_amid_a_change_and_goes_on(cluster):
    rng = random.Random(3)
    begun = amid_a_change("stop", cluster, rng)
    name, place = begun.hit.split(" at ")
    assert place.split(":")[0] in CHANGE_PLACES
    member = next(one for one in cluster.members if one.name == name)
    assert member.state() == "T"
    begun.undo()
    assert waited(member.process.ready, 30)
    cluster.heal()
    assert waited(lambda: cluster.locked() == [], 30)
    assert cluster.strange == []

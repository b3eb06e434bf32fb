"""Coordination goes back, below three real brokers over etcd and S3: what was acknowledged is there, once, in order."""

from collections.abc import Callable

import pytest

from tests.support.chaos.cluster import waited
from tests.support.history.load import until
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.lost_cluster import LostCluster, on_one_machine, rebuild_as_the_page_has_it

pytestmark = [pytest.mark.process, pytest.mark.service]
Make = Callable[..., LostCluster]


@pytest.mark.long
def test_a_segment_that_was_sealed_since_gives_way(lost_cluster: Make) -> None:
    cluster = lost_cluster()
    cluster.publish("t", 40)
    saved = cluster.lost.save()
    cluster.do("POST", "t/segments/0/split", json={})
    cluster.publish("t", 40)
    cluster.stop()
    cluster.lost.restore(saved)
    cluster.come_back()
    cluster.publish("t", 40, within_s=10)
    assert cluster.complaints("t") == []


@pytest.mark.long
def test_rows_of_a_segment_that_moved_since_are_replayed(lost_cluster: Make) -> None:
    cluster = lost_cluster(segments=1)
    cluster.publish("t", 40)
    saved = cluster.lost.save()
    owner = cluster.owner("t", 0)
    other = (owner + 1) % 3
    cluster.do("POST", "t/segments/0/move", json={"to": f"b{other}"})
    assert waited(lambda: cluster.owner("t", 0) == other, 10)
    cluster.publish("t", 40)
    cluster.kill()
    cluster.lost.restore(saved)
    cluster.come_back()
    assert cluster.complaints("t") == []


@pytest.mark.long
def test_a_topic_that_was_deleted_since_stays_deleted(lost_cluster: Make) -> None:
    cluster = lost_cluster()
    cluster.publish("t", 40)
    assert cluster.complaints("t", "s") == []
    saved = cluster.lost.save()
    cluster.do("DELETE", "t")
    cluster.ledger.told.clear()
    cluster.stop()
    cluster.lost.restore(saved)
    cluster.come_back()
    there = cluster.ask("GET", "t")
    until(lambda: cluster.ask("PUT", "t", json={"initial_segments": 2}).status_code == 201)  # the leader ends it first
    cluster.publish("t", 40)
    assert cluster.complaints("t", "s") == []
    assert there.status_code == 404 or there.json()["type"].endswith("topic-being-deleted")


@pytest.mark.long
def test_coordination_db_is_removed(broker_process: Callable[..., BrokerProcess]) -> None:
    cluster = on_one_machine(broker_process)
    cluster.start()
    cluster.do("PUT", "t", json={"initial_segments": 2})
    cluster.publish("t", 40)
    cluster.do("POST", "t/segments/0/split", json={})
    cluster.publish("t", 40)
    cluster.kill()
    cluster.lost.empty()
    cluster.come_back(rebuild_as_the_page_has_it)
    cluster.publish("t", 40)
    assert cluster.complaints("t") == []
    cluster.stop()
    cluster.http.close()

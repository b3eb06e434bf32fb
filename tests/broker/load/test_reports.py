"""The leader's knowledge of loads: what an owner has reported is not forgotten when the owner is gone."""

from typing import Any

import pytest

from seaweedq.balancer.load import SegmentLoad
from seaweedq.balancer.placement import SegmentId
from seaweedq.broker.load.meters import LoadReport, Reports
from seaweedq.coordination.records import TopicConfig
from seaweedq.errors import Unavailable

RATES = (100.0,) * 4
BUSY = SegmentLoad(bytes_per_s=RATES, bytes_peaks=RATES, observed_s=600.0)
FRESH = SegmentLoad(observed_s=1.0)


class Cluster:
    """Catalog, roster, peers and own loads in one: who owns what, and what each answers."""

    def __init__(self, owned: dict[str, list[SegmentId]]) -> None:
        self.owned = owned
        self.load = dict.fromkeys((one for each in owned.values() for one in each), BUSY)
        self.alive = set(owned)
        self.record = self
        self.config = TopicConfig()

    @property
    def brokers(self) -> dict[str, Any]:
        return {broker: type("Known", (), {"record": type("Record", (), {"url": broker})}) for broker in self.alive}

    def owners(self) -> list[str]:
        return list(self.owned)

    def owned_by(self, broker: str) -> list[SegmentId]:
        return self.owned[broker]

    def find(self, name: str) -> "Cluster":
        return self

    async def call(self, url: str, *_: Any) -> LoadReport:
        if url not in self.alive:
            raise Unavailable("gone")
        return LoadReport([(one, self.load[one]) for one in self.owned[url]], [])

    def report(self) -> LoadReport:
        return LoadReport([(one, self.load[one]) for one in self.owned["a"]], [])


@pytest.fixture
def cluster() -> Cluster:
    return Cluster({name: [("t", 0, at)] for at, name in enumerate("abc")})


def reports_of(cluster: Any) -> Reports:
    return Reports(cluster, cluster, cluster, "a", cluster)


async def test_what_a_dead_broker_reported_last_still_counts(cluster: Cluster) -> None:
    reports = reports_of(cluster)
    await reports.ask()
    before = dict(reports.costs)
    assert min(before.values()) > 0
    cluster.alive.discard("c")
    for _ in range(2):
        await reports.ask()
        assert reports.costs == before
        assert ("t", 0, 2) not in reports.loads, "nobody observes it, so nothing is decided about it"
    assert reports.answered == {"a", "b"}


async def test_the_next_owner_goes_on_where_the_dead_one_ended(cluster: Cluster) -> None:
    reports = reports_of(cluster)
    await reports.ask()
    before = dict(reports.costs)
    cluster.alive.discard("c")
    await reports.ask()
    cluster.owned["b"] += cluster.owned.pop("c")
    cluster.load["t", 0, 2] = FRESH
    await reports.ask()
    assert reports.loads["t", 0, 2].observed_s == BUSY.observed_s + FRESH.observed_s
    assert reports.costs["t", 0, 2] == pytest.approx(before["t", 0, 2], rel=0.1)


async def test_segments_that_are_gone_are_forgotten(cluster: Cluster) -> None:
    reports = reports_of(cluster)
    await reports.ask()
    cluster.alive.discard("c")
    del cluster.owned["c"]
    await reports.ask()
    assert set(reports.costs) == {("t", 0, 0), ("t", 0, 1)}

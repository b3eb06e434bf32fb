"""The chart's autoscaler on a real API server: 2 brokers, 5 while the load needs as many, 2 again.

Kubernetes' own controllers read the metric from a stand-in for an adapter, which scrapes the brokers. The load is
messages of idempotent producers against a stated capacity: no publish may fail, and each message must be stored once,
in the order of its key, though a broker is killed while the others start, and three are stopped by the autoscaler. It
takes 17 minutes: the leader waits ten before it recommends fewer brokers, and they leave one in two minutes."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from seaweedq.api.metrics.cluster import WANTED
from seaweedq.client import AsyncClient
from tests.support.kubernetes.external_metrics import ROOT, ExternalMetrics, serving
from tests.support.kubernetes.kubelet import Kubelet
from tests.support.kubernetes.load import stored_in
from tests.support.kubernetes.release import Release

CAPACITY = 10.0  # messages a second of a broker, 0.7 of which the leader uses
LOW, HIGH = 10.0, 33.0  # need 2 and 5 brokers
PRODUCERS, KEYS = 24, 4
STEADY_S, UP_S, DOWN_S = 30.0, 240.0, 2400.0
POLL_S = 0.5
pytestmark = [pytest.mark.process, pytest.mark.service, pytest.mark.soak, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def more() -> dict[str, Any]:
    """One zone, since each zone needs a broker."""
    return {
        "config": {"auth": "none", "capacity_messages_per_s": CAPACITY},
        "zone": {"name": "here"},
        "autoscaling": {"enabled": True, "minReplicas": 2, "maxReplicas": 8, "metricLabels": {"release": "queue"}},
    }


@pytest.fixture
def metrics(release: Release, kubelet: Kubelet, tmp_path: Path) -> Iterator[ExternalMetrics]:
    """The metric as the brokers that are ready say."""
    found = ExternalMetrics(WANTED.name, lambda: [f"http://{pod.place.ip}:8080" for pod in kubelet.ready()])
    with serving(release.api, tmp_path, found):
        yield found


class Producing:
    """Idempotent producers that send `per_s` messages a second together. Each waits for an answer before it sends
    again, so that what a failure delays comes as no burst, which would need more brokers."""

    def __init__(self, url: str) -> None:
        self.per_s = LOW
        self.failed: list[str] = []
        self.slowest_s = 0.0
        self.sent: defaultdict[str, int] = defaultdict(int)  # by key
        self._url = url
        self._stopped = False

    async def run(self) -> None:
        """Publish until `stop`, and wait for all answers."""
        async with AsyncClient(self._url) as client:
            await client.create_topic("scaled", initial_segments=8)
            await asyncio.gather(*(self._produce(client, f"p{number}") for number in range(PRODUCERS)))

    def stop(self) -> None:
        """Send no more."""
        self._stopped = True

    async def _produce(self, client: AsyncClient, name: str) -> None:
        async with client.producer("scaled") as producer:
            while not self._stopped:
                began_s = time.monotonic()
                key = f"{name}-{sum(self.sent.values()) % KEYS}"
                receipt = await producer.send({"number": self.sent[key]}, key=key)
                self.sent[key] += 1
                if error := await receipt.exception():
                    self.failed.append(repr(error))
                took_s = time.monotonic() - began_s
                self.slowest_s = max(self.slowest_s, took_s)
                await asyncio.sleep(max(0.0, PRODUCERS / self.per_s - took_s))


@asynccontextmanager
async def producing(release: Release) -> AsyncIterator[Producing]:
    """Producers for as long as the body takes."""
    load = Producing(release.url)
    running = asyncio.create_task(load.run())
    try:
        yield load
    finally:
        load.stop()
        await running


class Watch:
    """What a test waits for, and what it saw: the number of brokers over time, and the pods that were told to stop."""

    def __init__(self, release: Release, metrics: ExternalMetrics) -> None:
        self.counts: list[int] = []
        self.stopped: dict[str, bool] = {}  # whether a pod was marked, by its name
        self._release, self._metrics = release, metrics
        self._marked: list[str] = []  # at the last look
        self._began_s = time.monotonic()

    async def until(self, replicas: int, within_s: float) -> None:
        """Wait until the autoscaler wants so many brokers, and they are ready, and no other one is left."""
        end = time.monotonic() + within_s
        while not await asyncio.to_thread(self._look, replicas):
            assert time.monotonic() < end, (self._release.scaler()["status"], self._metrics.value)
            await asyncio.sleep(POLL_S)

    async def steady(self, for_s: float) -> None:
        """Look for a while."""
        end = time.monotonic() + for_s
        while time.monotonic() < end:
            await asyncio.to_thread(self._look, 0)
            await asyncio.sleep(POLL_S)

    def _look(self, replicas: int) -> bool:
        there, marked = self._release.brokers(), self._release.marked()
        for pod in there:
            name = pod["metadata"]["name"]
            if "deletionTimestamp" in pod["metadata"] and name not in self.stopped:
                self.stopped[name] = name in {*marked, *self._marked}
                self._say(f"{name} stops, marked: {self.stopped[name]}")
        self._marked = marked
        now = self._release.replicas()
        if now != (self.counts or [0])[-1]:
            self.counts.append(now)
            self._say(f"{now} brokers, the metric is {self._metrics.value}")
        return now == len(there) == len(self._release.kubelet.ready()) == replicas

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began_s:7.1f} s: {text}", flush=True)


async def test_two_five_and_two_brokers_without_a_failed_publish(
    release: Release, kubelet: Kubelet, metrics: ExternalMetrics
) -> None:
    watch = Watch(release, metrics)
    scalers = release.api.items(f"/apis/autoscaling/v2/namespaces/{release.namespace}/horizontalpodautoscalers")
    assert [one["metadata"]["labels"]["app.kubernetes.io/managed-by"] for one in scalers] == ["Helm"]
    async with producing(release) as load:
        await watch.until(2, UP_S)
        await watch.steady(STEADY_S)
        assert watch.counts == [2]
        killed = release.brokers()[0]["metadata"]["name"]
        load.per_s = HIGH
        async with asyncio.timeout(UP_S):
            while watch.counts == [2]:
                await watch.steady(POLL_S)
        kubelet.crash(killed)
        await watch.until(5, UP_S)
        await watch.steady(STEADY_S)
        assert watch.counts[-1] == max(watch.counts) == 5
        load.per_s = LOW
        await watch.until(2, DOWN_S)
        await watch.steady(STEADY_S)
    print(f"{sum(load.sent.values())} messages, slowest answer {load.slowest_s:.1f} s", *load.failed[:5], sep="\n")
    assert load.failed == []
    assert watch.counts[-4:] == [5, 4, 3, 2]
    assert list(watch.stopped.values()) == [True] * 3
    asked = f"{ROOT}/namespaces/{release.namespace}/{WANTED.name}?labelSelector=release%3Dqueue"
    assert metrics.asked[asked] > 10
    found: defaultdict[str, list[int]] = defaultdict(list)
    async with httpx.AsyncClient(base_url=release.url, trust_env=False, timeout=30) as http:
        async for message in stored_in(http, "/v1/topics/scaled"):
            found[message["key"]].append(message["value"]["number"])
    assert found == {key: list(range(count)) for key, count in load.sent.items()}

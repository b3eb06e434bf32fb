"""What three brokers ask of the store: nothing at rest; a put for each message of a trickle, and what else."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.cluster_processes import Cluster
from benchmarks.result import Result
from seaweedq import Client

REST_S, IDLE_S, TRICKLE_S, RATE, SEGMENTS = 15.0, 60.0, 30.0, 10.0, 6


def measure(folder: Path) -> Iterator[Result]:
    """A topic that was written and flushed, then left alone; then the trickle, round its segments."""
    with Cluster(folder) as cluster, Client(cluster.urls) as client:
        client.create_topic("requests", initial_segments=SEGMENTS)
        client.publish("requests", [{"key": f"k{n}", "value": n} for n in range(1000)])
        client.flush("requests")
        time.sleep(REST_S)
        idle = _meanwhile(cluster, lambda: time.sleep(IDLE_S))
        trickle = _meanwhile(cluster, lambda: _trickle(client))
    yield Result(
        name="cluster requests, idle",
        figure=idle.total(),
        unit="requests",
        target=0,
        better="lower",
        note=f"in {IDLE_S:g} s{_of(idle)}",
    )
    yield Result(
        name="cluster requests, trickle",
        figure=trickle.total() / TRICKLE_S,
        unit="requests/s",
        limit=RATE,
        limit_is="a put for each message",
        better="lower",
        note=f"{RATE:g} msg/s for {TRICKLE_S:g} s{_of(trickle)}",
    )


def _of(requests: Counter[str]) -> str:
    return "".join(f", {count} {operation}" for operation, count in requests.most_common())


def _meanwhile(cluster: Cluster, work: Callable[[], None]) -> Counter[str]:
    """What all brokers asked of the store while `work` ran."""
    before = _asked(cluster)
    work()
    return _asked(cluster) - before


def _asked(cluster: Cluster) -> Counter[str]:
    return sum((Counter(broker.store_requests()) for broker in cluster.brokers), Counter())


def _trickle(client: Client) -> None:
    began = time.perf_counter()
    for number in range(int(RATE * TRICKLE_S)):
        time.sleep(max(0.0, began + number / RATE - time.perf_counter()))
        client.publish("requests", {"key": f"k{number}", "value": number})

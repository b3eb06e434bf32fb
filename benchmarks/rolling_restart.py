"""All three brokers are stopped and started again, one after the other, under producers that know all of them: how many
publishes fail, and how long a broker takes."""

import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.cluster_load import Load
from benchmarks.cluster_processes import Broker, Cluster
from benchmarks.failover import key_of_each
from benchmarks.result import Result
from seaweedq import Client

SEGMENTS, BETWEEN_S = 60, 3.0


def measure(folder: Path) -> Iterator[Result]:
    """A plain and an idempotent producer begin at each broker."""
    with Cluster(folder) as cluster:
        urls = cluster.urls
        with Client(urls) as client:
            client.create_topic("rolling", initial_segments=SEGMENTS)
            names = key_of_each(client.segments("rolling"))
        turned = [urls[n:] + urls[:n] for n in range(len(urls))]
        with Load("rolling", names, [(kind, each) for each in turned for kind in ("plain", "idempotent")]) as load:
            time.sleep(BETWEEN_S)
            times = [_restart(broker) for broker in cluster.brokers]
    for kind in ("plain", "idempotent"):
        said = "; ".join({text for text in load.said if text.startswith(kind)})
        yield Result(
            name=f"rolling restart, failed, {kind}",
            figure=load.errors[kind],
            unit="",
            target=0,
            better="lower",
            note=f"of {len(load.took_s[kind])}, the longest took {load.worst_s(kind):.2f} s{said and f'; {said}'}",
        )
    for at, name in enumerate(("stop", "start")):
        each = [one[at] for one in times]
        note = "each: " + ", ".join(f"{took:.2f}" for took in each)
        yield Result(name=f"rolling restart, longest {name}", figure=max(each), unit="s", better="lower", note=note)


def _restart(broker: Broker) -> tuple[float, float]:
    """Seconds from SIGTERM to its end, and from its start until it can take work."""
    began = time.perf_counter()
    broker.stop()
    ended = time.perf_counter()
    broker.start()
    ready = time.perf_counter()
    time.sleep(BETWEEN_S)
    return ended - began, ready - ended

"""All three brokers are stopped and started again, one after the other, under producers that know all of them: how many
publishes fail, and how long a broker takes. Of a publish that fails or is slow, the brokers' logs around it are
printed."""

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from benchmarks.cluster_load import Load
from benchmarks.cluster_processes import Broker, Cluster
from benchmarks.failover import key_of_each
from benchmarks.result import Result
from seaweedq import Client

SEGMENTS, BETWEEN_S, AROUND_S, TOLD = 60, 3.0, 1.0, 10


def measure(folder: Path) -> Iterator[Result]:
    """Of clusters with object journals."""
    with Cluster(folder) as cluster:
        load, times = rolled(cluster, SEGMENTS)
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


def rolled(cluster: Cluster, segments: int, rounds: int = 1) -> tuple[Load, list[tuple[float, float]]]:
    """Restarts all brokers so many times, while a plain and an idempotent producer begin at each broker. Returns how
    long each stop and start took."""
    urls = cluster.urls
    with Client(urls) as client:
        client.create_topic("rolling", initial_segments=segments)
        names = key_of_each(client.segments("rolling"))
    turned = [urls[n:] + urls[:n] for n in range(len(urls))]
    with Load("rolling", names, [(kind, each) for each in turned for kind in ("plain", "idempotent")]) as load:
        time.sleep(BETWEEN_S)
        times = [restart(broker) for _ in range(rounds) for broker in cluster.brokers]
    print("".join(f"\n  {line}" for line in timeline(load, cluster.brokers)), file=sys.stderr)
    return load, times


def timeline(load: Load, brokers: list[Broker]) -> list[str]:
    """The publishes that failed or were slowest, and what brokers logged around them, in the order of time."""
    worst = sorted(load.slow, key=lambda one: (not one.has_failed, -one.took_s))[:TOLD]
    lines = [(one.at_s, one.text) for one in worst]
    for broker in brokers:
        for line in broker.log.read_text().splitlines():
            with suppress(ValueError):  # without a time
                at_s = datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f").timestamp()
                if any(-AROUND_S < at_s - one.at_s < one.took_s + AROUND_S for one in worst):
                    lines.append((at_s, f"{broker.name}: {line[24:]}"))
    return [f"{datetime.fromtimestamp(at_s):%H:%M:%S.%f} {text}" for at_s, text in sorted(lines)]


def restart(broker: Broker) -> tuple[float, float]:
    """Seconds from SIGTERM to its end, and from its start until it can take work."""
    began = time.perf_counter()
    broker.stop()
    ended = time.perf_counter()
    broker.start()
    ready = time.perf_counter()
    time.sleep(BETWEEN_S)
    return ended - began, ready - ended

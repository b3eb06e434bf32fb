"""Acknowledged publishes through HTTP at the owner, on a mirrored journal and on an object journal: 20 producers that
send 1,000 messages a second together. The limit is two bare requests at once, to two other brokers."""

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import uvloop

from benchmarks.cluster_processes import Cluster
from benchmarks.http import NDJSON, Connection, request
from benchmarks.quantiles import quantile
from benchmarks.result import Result
from benchmarks.schedule import producers_ms
from seaweedq import Client

SECONDS, WARM_S, PRODUCERS, RATE, CALLS = 8.0, 4.0, 20, 1000.0, 400
TARGETS_MS = {0.5: 2.0, 0.99: 10.0}
PUBLISH = request("/v1/topics/latency/messages", b'{"key":"k","value":{"n":1}}', NDJSON)
HEALTH = request("/healthz", b"", NDJSON, "GET")


def measure(folder: Path) -> Iterator[Result]:
    """The bare calls before and after, with the same brokers."""
    for kind in ("mirrored", "object"):
        (folder / kind).mkdir()
        with Cluster(folder / kind, options=("--journal", kind)) as cluster:
            with Client(cluster.urls) as client:
                client.create_topic("latency")
                owner = cluster.by_url(client.segments("latency")[0]["owner_url"])
            others = [one.port for one in cluster.brokers if one is not owner]
            bare = uvloop.run(_calls(others))
            times = uvloop.run(producers_ms(owner.port, PUBLISH, PRODUCERS, RATE, WARM_S, SECONDS))
            bare += uvloop.run(_calls(others))
            puts = owner.store_requests().get("create", 0)
        for part, target in TARGETS_MS.items():
            yield Result(
                name=f"mirrored journal, {kind}, p{100 * part:g}",
                figure=quantile(times, part),
                unit="ms",
                limit=quantile(bare, part),
                limit_is="two bare requests at once",
                target=target if kind == "mirrored" else None,
                better="lower",
                note=f"{PRODUCERS} send {RATE:g} msg/s together, {SECONDS:g} s; {puts} puts to the store; load average "
                f"{os.getloadavg()[0]:.1f}",
            )


async def _calls(ports: list[int]) -> list[float]:
    connections = [await Connection.to(port) for port in ports]
    times = []
    for _ in range(CALLS):
        begun = time.perf_counter()
        await asyncio.gather(*(connection.ask(HEALTH) for connection in connections))
        times.append((time.perf_counter() - begun) * 1000)
    for connection in connections:
        connection.close()
    return times

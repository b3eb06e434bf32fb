"""Acknowledged publishes through HTTP at the owner, on the object journal: one producer, and 20 that send 100 messages
a second together. The limit is the store's own put of as many bytes, one after the other."""

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

SECONDS, WARM_S, PRODUCERS, RATE, PUTS, SLOT_BYTES = 8.0, 2.0, 20, 100.0, 60, 1024
MOST_ADDED_MS = 20.0
PUBLISH = request("/v1/topics/latency/messages", b'{"key":"k","value":{"n":1}}', NDJSON)


def measure(folder: Path) -> Iterator[Result]:
    """Bare puts before, between and after."""
    with Cluster(folder) as cluster:
        with Client(cluster.urls) as client:
            client.create_topic("latency")
            owner = cluster.by_url(client.segments("latency")[0]["owner_url"])
        bare = uvloop.run(puts_ms(cluster))
        alone = uvloop.run(_in_turn(owner.port))
        bare += uvloop.run(puts_ms(cluster))
        together = uvloop.run(producers_ms(owner.port, PUBLISH, PRODUCERS, RATE, WARM_S, SECONDS))
        bare += uvloop.run(puts_ms(cluster))
    for name, times in (("one producer", alone), (f"{PRODUCERS} producers", together)):
        for share, part in (("median", 0.5), ("p99", 0.99)):
            limit = quantile(bare, part)
            yield Result(
                name=f"cluster latency, {name}, {share}",
                figure=quantile(times, part),
                unit="ms",
                limit=limit,
                limit_is=f"the store's own put of {SLOT_BYTES} bytes",
                target=limit + MOST_ADDED_MS if share == "median" else None,
                better="lower",
                note=f"{PRODUCERS} send {RATE:g} msg/s together; {SECONDS:g} s",
            )


async def puts_ms(cluster: Cluster) -> list[float]:
    """Milliseconds of each of some bare puts, one after the other."""
    store, times = cluster.store(), []
    for number in range(PUTS):
        begun = time.perf_counter()
        assert await store.create(f"{time.time_ns()}", os.urandom(SLOT_BYTES))
        if number >= PUTS // 10:
            times.append((time.perf_counter() - begun) * 1000)
    await store.close()
    return times


async def _in_turn(port: int) -> list[float]:
    connection, times = await Connection.to(port), []
    end = (began := time.perf_counter()) + WARM_S + SECONDS
    while (begun := time.perf_counter()) < end:
        await connection.ask(PUBLISH)
        if begun > began + WARM_S:
            times.append((time.perf_counter() - begun) * 1000)
    connection.close()
    return times

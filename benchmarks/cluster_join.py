"""A third broker joins two that share 60 segments under load: how long until it has its share of them."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import uvloop

from benchmarks.cluster_load import Load
from benchmarks.cluster_processes import Broker, Cluster
from benchmarks.failover import key_of_each
from benchmarks.result import Result
from seaweedq import Client
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Change, Entry

SEGMENTS, BROKERS = 60, 3
SETTLE_S, QUIET_S, MOST_S, TARGET_S = 15.0, 5.0, 60.0, 10.0
SHARE = int(SEGMENTS / BROKERS * 0.7)  # what is within the balancer's tolerance


def measure(folder: Path) -> Iterator[Result]:
    """The clock starts when the new one can take work."""
    with Cluster(folder, BROKERS - 1) as cluster, Client(cluster.urls) as client:
        client.create_topic("join", initial_segments=SEGMENTS)
        names = key_of_each(client.segments("join"))
        producers = [(kind, [url]) for url in cluster.urls for kind in ("plain", "idempotent")]
        with Load("join", names, producers) as load:
            time.sleep(SETTLE_S)
            joining = cluster.add()
            took, count = uvloop.run(_joined(cluster, joining))
    yield Result(
        name="cluster join",
        figure=took,
        unit="s",
        target=TARGET_S,
        better="lower",
        note=f"until it had the last of its {count} of {SEGMENTS}; {len(load.took_s['plain'])} plain and "
        f"{len(load.took_s['idempotent'])} idempotent publishes meanwhile, {load.errors.total()} failed, "
        f"longest {max(load.worst_s('plain'), load.worst_s('idempotent')):.2f} s",
    )


async def _joined(cluster: Cluster, joining: Broker) -> tuple[float, int]:
    """Seconds until it got its last segment, and how many it has; raises TimeoutError if it gets less than a share."""
    coordination = cluster.coordination()
    page = await coordination.range(keys.LEADER.key())
    owned: set[str] = set()
    last = 0.0

    async def watch() -> None:
        nonlocal last
        async for changes in coordination.watch(keys.SEGMENTS.prefix(), page.revision):
            for change in changes:
                (owned.add if _owner(change) == joining.name else owned.discard)(change.key)
            last = time.perf_counter()

    watching = asyncio.create_task(watch())
    await asyncio.to_thread(joining.start)
    began = time.perf_counter()
    async with asyncio.timeout(MOST_S):
        while len(owned) < SHARE or time.perf_counter() < last + QUIET_S:
            if watching.done():
                watching.result()  # raises what ended it
            await asyncio.sleep(0.1)
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
    await coordination.close()
    return last - began, len(owned)


def _owner(change: Change) -> str | None:
    """The name of the broker that owns a segment after its change."""
    if change.value is None:
        return None
    owner = keys.SEGMENTS.require(Entry(change.key, change.value, change.revision)).record.owner
    return owner and owner.split(".")[0]

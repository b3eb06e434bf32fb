"""As split_pause, at two brokers with object journals on S3 and etcd: on moto's server, and on MinIO where its binary
is. A pause may be as long as on a local folder and two of the store's own puts. Both are taken at p99: the puts are
bare ones that go on all the while.
"""

import asyncio
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter

import uvloop

from benchmarks.changing import Seen, watch_changes
from benchmarks.cluster_processes import Cluster, minio
from benchmarks.quantiles import quantile
from benchmarks.result import Result
from benchmarks.split_pause import TARGET_MS, results

COUNT, CONNECTIONS, BROKERS, PUTS = 60, 4, 2, 2  # two brokers, etcd and the store share the cores: fewer connections
PUT_BYTES, EVERY_S = 16_384, 0.1


def measure(folder: Path) -> Iterator[Result]:
    """Bare puts all the while."""
    for name, binary in (("moto", None), ("MinIO", minio())):
        if name == "moto" or binary:
            yield from _measure(folder / name, name, binary)


def _measure(folder: Path, name: str, binary: str | None) -> Iterator[Result]:
    folder.mkdir()
    with Cluster(folder, BROKERS, binary) as cluster:
        seen, puts = uvloop.run(_watch(cluster))
    put = quantile(puts, 0.99)
    note = (
        f", {BROKERS} brokers; the target is {TARGET_MS:g} ms and {PUTS} of the store's own puts, which take "
        f"{put:.3g} ms at p99 and {median(puts):.3g} ms at the median of {len(puts)}"
    )
    yield from results(f"split pause on {name}", seen, CONNECTIONS, TARGET_MS + PUTS * put, note)


async def _watch(cluster: Cluster) -> tuple[Seen, list[float]]:
    """What came of the changes, and the milliseconds of each of the puts beside them."""
    puts: list[float] = []
    putting = asyncio.create_task(_put_often(cluster, puts))
    try:
        seen = await watch_changes([broker.port for broker in cluster.brokers], CONNECTIONS, COUNT)
    finally:
        putting.cancel()
        await asyncio.wait([putting])
    return seen, puts


async def _put_often(cluster: Cluster, times: list[float]) -> None:
    store = cluster.store()
    try:
        for number in itertools.count():
            begun = perf_counter()
            await store.create(f"beside/{number}", os.urandom(PUT_BYTES))
            times.append((perf_counter() - begun) * 1000)
            await asyncio.sleep(EVERY_S)
    finally:
        await store.close()

"""As split_pause, at two brokers with object journals on S3 and etcd: on moto's server, and on MinIO where its binary
is. A pause may be as long as on a local folder and two of the store's own puts."""

from collections.abc import Iterator
from pathlib import Path
from statistics import median

import uvloop

from benchmarks.changing import watch_changes
from benchmarks.cluster_latency import puts_ms
from benchmarks.cluster_processes import Cluster, minio
from benchmarks.result import Result
from benchmarks.split_pause import TARGET_MS, results

COUNT, CONNECTIONS, BROKERS, PUTS = 60, 4, 2, 2  # two brokers, etcd and the store share the cores: fewer connections


def measure(folder: Path) -> Iterator[Result]:
    """Bare puts before and after."""
    for name, binary in (("moto", None), ("MinIO", minio())):
        if name == "moto" or binary:
            yield from _measure(folder / name, name, binary)


def _measure(folder: Path, name: str, binary: str | None) -> Iterator[Result]:
    folder.mkdir()
    with Cluster(folder, BROKERS, binary) as cluster:
        bare = uvloop.run(puts_ms(cluster))
        seen = uvloop.run(watch_changes([broker.port for broker in cluster.brokers], CONNECTIONS, COUNT))
        bare += uvloop.run(puts_ms(cluster))
    put = median(bare)
    note = f", {BROKERS} brokers; the target is {TARGET_MS:g} ms and {PUTS} of the store's own puts of {put:.3g} ms"
    yield from results(f"split pause on {name}", seen, CONNECTIONS, TARGET_MS + PUTS * put, note)

"""As failover, over MinIO, where its binary is: moto answers one request at a time, and is a limit of the figures."""

import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.cluster_processes import minio
from benchmarks.failover import failovers
from benchmarks.result import Result


def measure(folder: Path) -> Iterator[Result]:
    """Nothing without the binary, and it says so."""
    if binary := minio():
        yield from failovers(folder, binary, " on MinIO")
    else:
        print("no minio binary: `make minio` builds it", file=sys.stderr)

"""The looks of `seaweedq doctor` at a broker's machine: packages, descriptors, data folder. In the data folder it
writes a file, and removes it.
"""

import os
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from seaweedq.cli import doctor_findings as findings
from seaweedq.cli.doctor_findings import Finding, Verdict
from seaweedq.cli.server.machine import check_folders, connections_of, raise_limit
from seaweedq.clock import Clock
from seaweedq.settings import Settings

FSYNCS = 5
PACKAGES = ("pyarrow", "uvicorn", "s3fs", "botocore", "etcd3", "grpcio", "duckdb")


def installed() -> Finding:
    """Returns the versions of what is installed."""
    found = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return Finding(Verdict.OK, "packages", ", ".join(found))


def has_folder(settings: Settings) -> bool:
    """Tells whether there is a data folder to look at."""
    return settings.data_dir.is_dir()


def findings_of_machine(settings: Settings, clock: Clock) -> Iterator[Finding]:
    """Yields the findings of this machine for a broker with these settings."""
    limit = raise_limit()
    yield findings.files(limit, connections_of(0, limit)[0])
    try:
        check_folders(settings)
        yield findings.space(shutil.disk_usage(settings.data_dir).free, str(settings.data_dir))
        yield findings.fsync(fsync_s(settings.data_dir, clock))
    except OSError as error:
        yield findings.failed("disk", error)


def fsync_s(folder: Path, clock: Clock) -> float:
    """Returns how long an fsync of a page takes, the median of some."""
    took_s = []
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".doctor-") as file:
        for _ in range(FSYNCS):
            file.write(bytes(4096))
            file.flush()
            began_s = clock.monotonic_s()
            os.fsync(file.fileno())
            took_s.append(clock.monotonic_s() - began_s)
    return statistics.median(took_s)

"""The looks of `seaweedq doctor` at a broker's machine: descriptors, data folder, store, clock, coordination.

It writes little: a file in the data folder, and below `_probe/` in the store what each start of a broker writes there;
it removes both. What the first broker makes it leaves to it, who may be another user.
"""

import asyncio
import os
import shutil
import statistics
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from seaweedq.cli.doctor import findings
from seaweedq.cli.doctor.findings import Finding, Verdict
from seaweedq.cli.server.coordinations import open_coordination
from seaweedq.cli.server.data_folder import check_folders
from seaweedq.cli.server.open_files import connections_of, raise_limit
from seaweedq.cli.server.stores import open_store
from seaweedq.clock import Clock, Ids
from seaweedq.concurrency.pools import Pools
from seaweedq.errors import SeaweedqError
from seaweedq.settings import Settings
from seaweedq.storage.counting import Counted
from seaweedq.storage.probe import probe

LOOK_S = 20.0
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


def looked_at(settings: Settings, clock: Clock, ids: Ids) -> Iterator[Finding]:
    """Yields the findings for a broker with these settings."""
    limit = raise_limit()
    yield findings.files(limit, connections_of(0, limit)[0])
    yield from _folder(settings, clock)
    yield from asyncio.run(_services(settings, clock, ids))


def _folder(settings: Settings, clock: Clock) -> Iterator[Finding]:
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


async def _services(settings: Settings, clock: Clock, ids: Ids) -> list[Finding]:
    pools = Pools()
    try:
        return [
            *[one async for one in _each("store", lambda: _store(settings, clock, ids, pools))],
            *[one async for one in _each("coordination", lambda: _coordination(settings, clock, pools))],
        ]
    finally:
        pools.close()


async def _each(what: str, look: Callable[[], AsyncIterator[Finding]]) -> AsyncIterator[Finding]:
    """Yields the findings of a look, and one that it failed where it did or took too long."""
    try:
        async with asyncio.timeout(LOOK_S):
            async for one in look():
                yield one
    except TimeoutError:
        yield findings.failed(what, f"no answer within {LOOK_S:g} s")
    except (SeaweedqError, OSError) as error:
        yield findings.failed(what, error)


def _is_new(settings: Settings) -> bool:
    """Tells whether the store is a folder that is not there yet."""
    scheme, _, folder = settings.store_path.partition("://")
    return scheme == "file" and not Path(folder).is_dir()


async def _store(settings: Settings, clock: Clock, ids: Ids, pools: Pools) -> AsyncIterator[Finding]:
    if _is_new(settings):
        yield Finding(Verdict.OK, "store", f"{settings.store_path}, which the first broker makes")
        return
    opened = open_store(settings, ids, pools)
    store = Counted(opened, clock)
    try:
        began_s = clock.monotonic_s()
        await probe(store.payloads, ids)
        took_s = clock.monotonic_s() - began_s
        yield Finding(Verdict.OK, "store", f"{settings.store_path} does all that is asked of it, in {took_s:.1f} s")
        name = f"_probe/{ids.nonce()}"
        await store.create(name, b"clock")
        try:
            listed = await store.listed(name)
            yield findings.clock("the store", (clock.now_us() - listed[0].modified_us) / 1e6)
        finally:
            await store.delete(name)
    finally:
        await opened.close()


async def _coordination(settings: Settings, clock: Clock, pools: Pools) -> AsyncIterator[Finding]:
    if settings.coordination == "embedded" and not (settings.data_dir / "coordination.db").exists():
        yield Finding(Verdict.OK, "coordination", "embedded, in a file that the first broker makes")
        return
    coordination = open_coordination(settings, clock, pools)
    try:
        began_s = clock.monotonic_s()
        await coordination.get("doctor")
        yield findings.coordination(settings.coordination, clock.monotonic_s() - began_s)
    finally:
        await coordination.close()

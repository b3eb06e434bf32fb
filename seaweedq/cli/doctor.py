"""`seaweedq doctor`: finds problems with this machine, the store, coordination and brokers, and names remedies.

Findings are judged by pure functions. The checks write only a file in the data folder, and in the store the same probe
objects below `_probe/` as a starting broker; they remove both. The checks create nothing that the first broker creates,
because another user may run that broker. Packages that only brokers need are imported late, and may be missing."""

import asyncio
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import seaweedq
from seaweedq.cli.shared.common import DEFAULT_URL, counted, printable, run, say
from seaweedq.cli.shared.contexts import credentials_of, current_url
from seaweedq.cli.shared.output import JSON, TABLE, Output, say_json
from seaweedq.errors import ConnectionFailed, Forbidden, SeaweedqError

if TYPE_CHECKING:
    from seaweedq.client.http import Credentials
    from seaweedq.clock import Clock, Ids
    from seaweedq.concurrency.pools import Pools
    from seaweedq.settings import Settings

GIB = 1024**3
FEW_FILES = 4_096
LITTLE_SPACE = 2 * GIB
SLOW_FSYNC_S, SLOW_COORDINATION_S = 0.05, 0.25
CLOCK_S = 2.0  # stores and HTTP tell whole seconds
FSYNCS = 5
PACKAGES = ("pyarrow", "uvicorn", "s3fs", "botocore", "etcd3", "grpcio", "duckdb")
CHECK_S, READY_S = 20.0, 5.0


class Verdict(StrEnum):
    """The severity of a finding; `FAIL` makes the exit code 1."""

    OK = "ok"
    NOTE = "note"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    verdict: Verdict
    what: str
    told: str


def judge_files(limit: int, connections: int) -> Finding:
    """Judges the limit of open files, which determines how many connections a broker accepts."""
    if limit >= FEW_FILES:
        return Finding(Verdict.OK, "descriptors", f"{limit:,} files may be open")
    told = f"{limit:,} files may be open, enough for {counted(connections, 'connection')}; raise the limit (nofile)"
    return Finding(Verdict.WARN, "descriptors", told)


def judge_space(free: int, folder: str) -> Finding:
    """Judges how many bytes are free in the data folder."""
    verdict = Verdict.OK if free >= LITTLE_SPACE else Verdict.WARN
    return Finding(verdict, "disk", f"{free / GIB:,.1f} GiB are free at {folder}")


def judge_fsync(took_s: float) -> Finding:
    """Judges how long an fsync takes; each commit of the journal waits for one."""
    told = f"an fsync takes {took_s * 1000:.1f} ms"
    if took_s <= SLOW_FSYNC_S:
        return Finding(Verdict.OK, "fsync", told)
    return Finding(Verdict.WARN, "fsync", f"{told}; each commit of the journal waits for an fsync")


def judge_clock(where: str, ahead_s: float) -> Finding:
    """Judges this machine's clock by how far it is ahead of another clock."""
    if abs(ahead_s) <= CLOCK_S:
        return Finding(Verdict.OK, "clock", f"agrees with the clock of {where} within {CLOCK_S:g} s")
    told = f"{abs(ahead_s):,.0f} s {'ahead of' if ahead_s > 0 else 'behind'} the clock of {where}"
    return Finding(Verdict.WARN, "clock", f"{told}; timestamps and expiry depend on it")


def seconds_ahead(now_s: float, date: str) -> float | None:
    """Returns how far a clock is ahead of a Date header; None if the header is invalid."""
    try:
        return now_s - parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None


def judge_coordination(where: str, took_s: float) -> Finding:
    """Judges how long coordination takes to answer."""
    verdict = Verdict.OK if took_s <= SLOW_COORDINATION_S else Verdict.WARN
    return Finding(verdict, "coordination", f"{where} answers in {took_s * 1000:.0f} ms")


def judge_cluster(facts: dict[str, Any]) -> list[Finding]:
    """Judges a broker's answer about the cluster (GET /v1/cluster)."""
    brokers = facts["brokers"]
    versions = sorted({one["version"] or "unknown" for one in brokers})
    found = [Finding(Verdict.OK, "cluster", f"{counted(len(brokers), 'broker')}, level {facts['level']}")]
    if not facts["leader"]:
        found.append(
            Finding(Verdict.FAIL, "leader", "there is no leader: segments that lose their owner get no new owner")
        )
    if len(versions) > 1:
        found.append(Finding(Verdict.NOTE, "versions", f"brokers run different versions: {', '.join(versions)}"))
    if facts["level_possible"] > facts["level"]:
        told = f"the cluster can be upgraded: seaweedq cluster level {facts['level_possible']}"
        found.append(Finding(Verdict.NOTE, "level", told))
    states = [f"{one['id']} is {state}" for one in brokers for state in ("starting", "draining") if one[state]]
    return [*found, *(Finding(Verdict.NOTE, "broker", told) for told in states)]


def failed(what: str, error: BaseException | str) -> Finding:
    """Returns a finding for a check that failed with an error."""
    text = error if isinstance(error, str) else str(error) or type(error).__name__
    return Finding(Verdict.FAIL, what, " ".join(text.split()))


def findings_of_machine(settings: "Settings", clock: "Clock") -> Iterator[Finding]:
    """Yields the findings of this machine for a broker with these settings."""
    from seaweedq.cli.server.machine import check_folders, connections_of, raise_limit

    limit = raise_limit()
    yield judge_files(limit, connections_of(0, limit)[0])
    try:
        check_folders(settings)
        yield judge_space(shutil.disk_usage(settings.data_dir).free, str(settings.data_dir))
        yield judge_fsync(fsync_s(settings.data_dir, clock))
    except OSError as error:
        yield failed("disk", error)


def fsync_s(folder: Path, clock: "Clock") -> float:
    """Returns the median time of several fsyncs of one page."""
    took_s = []
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".doctor-") as file:
        for _ in range(FSYNCS):
            file.write(bytes(4096))
            file.flush()
            began_s = clock.monotonic_s()
            os.fsync(file.fileno())
            took_s.append(clock.monotonic_s() - began_s)
    return statistics.median(took_s)


async def findings_of_services(settings: "Settings", clock: "Clock", ids: "Ids") -> list[Finding]:
    """Returns the findings about the store and coordination of a broker with these settings. A check that fails, or
    takes too long, also yields a finding."""
    from seaweedq.concurrency.pools import Pools

    pools, found = Pools(), []
    checks = {"store": _store(settings, clock, ids, pools), "coordination": _coordination(settings, clock, pools)}
    try:
        for what, check in checks.items():
            try:
                async with asyncio.timeout(CHECK_S):
                    async for one in check:
                        found.append(one)  # noqa: PERF401 - those before a failure count
            except TimeoutError:
                found.append(failed(what, f"no answer within {CHECK_S:g} s"))
            except (SeaweedqError, OSError) as error:
                found.append(failed(what, error))
    finally:
        pools.close()
    return found


def _is_new(settings: "Settings") -> bool:
    """Returns whether the store is a folder that does not exist yet."""
    scheme, _, folder = settings.store_path.partition("://")
    return scheme == "file" and not Path(folder).is_dir()


async def _store(settings: "Settings", clock: "Clock", ids: "Ids", pools: "Pools") -> AsyncIterator[Finding]:
    from seaweedq.cli.server.backends import open_store
    from seaweedq.storage.instrumented import InstrumentedStore
    from seaweedq.storage.probe import probe

    if _is_new(settings):
        yield Finding(Verdict.OK, "store", f"{settings.store_path}, which the first broker will create")
        return
    opened = open_store(settings, ids, pools)
    store = InstrumentedStore(opened, clock)
    try:
        began_s = clock.monotonic_s()
        await probe(store.payloads, ids)
        took_s = clock.monotonic_s() - began_s
        yield Finding(
            Verdict.OK,
            "store",
            f"{settings.store_path} has everything that brokers need; the check took {took_s:.1f} s",
        )
        name = f"_probe/{ids.nonce()}"
        before_us = clock.now_us()
        await store.create(name, b"clock")
        after_us = clock.now_us()
        try:
            (listed,) = await store.listed(name)
            # A slow store may have taken its time from any moment between the two.
            ahead_us = max(before_us - listed.modified_us, min(after_us - listed.modified_us, 0))
            yield judge_clock("the store", ahead_us / 1e6)
        finally:
            await store.delete(name)
    finally:
        await opened.close()


async def _coordination(settings: "Settings", clock: "Clock", pools: "Pools") -> AsyncIterator[Finding]:
    from seaweedq.cli.server.backends import open_coordination

    if settings.coordination == "embedded" and not (settings.data_dir / "coordination.db").exists():
        yield Finding(Verdict.OK, "coordination", "embedded, in a file that the first broker will create")
        return
    coordination = open_coordination(settings, clock, pools)
    try:
        began_s = clock.monotonic_s()
        await coordination.get("doctor")
        yield judge_coordination(settings.coordination, clock.monotonic_s() - began_s)
    finally:
        await coordination.close()


def findings_of_brokers(url: str, named: bool) -> Iterator[Finding]:
    """Yields the findings about the cluster at `url`. If the user did not name the URL, no broker has to answer
    there."""
    from seaweedq.client.core.calls import call

    try:
        facts: dict[str, Any] = run(url, call("GET", "/v1/cluster"))
    except ConnectionFailed as error:
        if named:
            yield failed("brokers", error)
        else:
            yield Finding(Verdict.NOTE, "brokers", f"no broker answers at {url}; name one with --url")
        return
    except Forbidden as error:
        yield Finding(Verdict.NOTE, "brokers", f"the cluster was not checked: {error}")
        return
    except SeaweedqError as error:
        yield failed("brokers", error)
        return
    yield from judge_cluster(facts)
    for one in facts["brokers"]:
        yield from _check_broker(one, credentials_of(url))
    known = {one["url"].rstrip("/") for one in facts["brokers"]}
    for address in url.split(","):
        if (there := address.strip().rstrip("/")) and there not in known:
            yield from _check_address(there, credentials_of(url))


def _check_broker(one: dict[str, Any], credentials: "Credentials") -> Iterator[Finding]:
    import httpx

    try:
        answer = httpx.get(f"{one['url']}/readyz", timeout=READY_S, verify=credentials.verify(one["url"]))
    except httpx.HTTPError as error:
        yield failed(one["id"], f"{one['url']} does not answer from this machine: {error}")
        return
    if answer.status_code == 200:
        yield Finding(Verdict.OK, one["id"], f"ready at {one['url']}, version {one['version'] or 'unknown'}")
    else:
        yield failed(one["id"], f"not ready: {answer.text[:300]}")
    ahead_s = seconds_ahead(time.time(), answer.headers.get("date", ""))
    if ahead_s is not None and abs(ahead_s) > CLOCK_S:
        yield judge_clock(one["id"], ahead_s)


def _check_address(address: str, credentials: "Credentials") -> Iterator[Finding]:
    """Yields a finding for an address that the user named but that no broker of the cluster has, such as that of a dead
    broker. Yields nothing if a broker answers there, for example behind a load balancer."""
    import httpx

    try:
        httpx.get(f"{address}/healthz", timeout=READY_S, verify=credentials.verify(address))
    except httpx.HTTPError as error:
        yield failed("brokers", f"{address} does not answer from this machine: {error}")


EXAMPLES = """Examples: seaweedq doctor · seaweedq doctor --config broker.toml · seaweedq doctor -o json ·
seaweedq doctor --url http://broker-1:8080,http://broker-2:8080"""

Config = Annotated[
    Path | None, typer.Option("--config", envvar="SEAWEEDQ_CONFIG", help="TOML file with the broker's settings.")
]
DataDir = Annotated[
    Path | None, typer.Option(help="Data folder of the broker; by default, the folder in the setting data_dir.")
]


def doctor(
    config: Config = None,
    data_dir: DataDir = None,
    output: Output = TABLE,
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            envvar="SEAWEEDQ_URL",
            help="Brokers to check, comma-separated; by default those of the current context.",
            callback=lambda url: url or current_url("") or None,
        ),
    ] = None,
) -> None:
    """Check the open-file limit, disk and clock of this machine, and check the object store, the coordination database
    (etcd or SQLite) and the brokers at --url. The exit code is 1 if a check fails.

    The command reads the same settings as `seaweedq serve`, from the environment and from the file that --config
    names."""
    is_failed = False
    for finding in findings(config, data_dir, url):
        is_failed |= finding.verdict is Verdict.FAIL
        if output == JSON:
            say_json(finding)
        else:
            say(printable(f"{finding.verdict:<5} {finding.what:<13} {finding.told}"))
    raise typer.Exit(int(is_failed))


def findings(config: Path | None, data_dir: Path | None, url: str | None) -> Iterator[Finding]:
    """Yields the findings about this machine, and about the cluster at `url`, or at the default URL if a broker answers
    there."""
    machine = f"Python {platform.python_version()}, {platform.system()} {platform.release()}"
    yield Finding(Verdict.OK, "seaweedq", f"{seaweedq.__version__}, {machine}")
    try:
        yield from _findings_of_broker(config, data_dir)
    except ModuleNotFoundError as error:
        told = f"this machine was not checked, because the package {error.name}, which brokers need, is missing"
        yield Finding(Verdict.NOTE, "broker", told)
    yield from findings_of_brokers(url or DEFAULT_URL, url is not None)


def _findings_of_broker(config: Path | None, data_dir: Path | None) -> Iterator[Finding]:
    """Yields the findings about a broker's machine. A machine without a data folder has no broker."""
    from seaweedq.cli.server.given_settings import settings_of, unknown_variables
    from seaweedq.clock import SystemClock, SystemIds

    found = []
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    yield Finding(Verdict.OK, "packages", ", ".join(found))
    try:
        settings = settings_of(config, {"data_dir": data_dir})
    except SeaweedqError as error:
        yield failed("settings", error)
        return
    yield from (Finding(Verdict.WARN, "settings", warning) for warning in unknown_variables(os.environ))
    if settings.data_dir.is_dir():
        yield from findings_of_machine(settings, SystemClock())
        yield from asyncio.run(findings_of_services(settings, SystemClock(), SystemIds()))
    else:
        told = (
            f"no data folder at {settings.data_dir}: store and coordination were not checked; name the folder with "
            "--data-dir"
        )
        yield Finding(Verdict.FAIL if data_dir or config else Verdict.NOTE, "broker", told)

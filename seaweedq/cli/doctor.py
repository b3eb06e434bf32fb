"""`seaweedq doctor`: says what is wrong with a machine, a store, a coordination or brokers, and what to do."""

import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import seaweedq
from seaweedq.cli import doctor_findings as findings
from seaweedq.cli.doctor_findings import Finding, Verdict, failed
from seaweedq.cli.shared.common import DEFAULT_URL, printable, run, say
from seaweedq.cli.shared.output import JSON, TABLE, Output, say_json
from seaweedq.errors import ConnectionFailed, Forbidden, SeaweedqError

READY_S = 5.0


def findings_of_brokers(url: str, named: bool) -> Iterator[Finding]:
    """Yields the findings of the cluster at `url`; if nobody named it, it need not be there."""
    from seaweedq.client.core.calls import call

    try:
        facts: dict[str, Any] = run(url, call("GET", "/v1/cluster"))
    except ConnectionFailed as error:
        if named:
            yield findings.failed("brokers", error)
        else:
            yield Finding(Verdict.NOTE, "brokers", f"none answers at {url}; name one with --url")
        return
    except Forbidden as error:
        yield Finding(Verdict.NOTE, "brokers", f"the cluster was not looked at: {error}")
        return
    except SeaweedqError as error:
        yield findings.failed("brokers", error)
        return
    yield from findings.cluster(facts)
    for one in facts["brokers"]:
        yield from _broker(one)
    known = {one["url"].rstrip("/") for one in facts["brokers"]}
    for address in url.split(","):
        if (there := address.strip().rstrip("/")) and there not in known:
            yield from _named(there)


def _broker(one: dict[str, Any]) -> Iterator[Finding]:
    import httpx

    try:
        answer = httpx.get(f"{one['url']}/readyz", timeout=READY_S)
    except httpx.HTTPError as error:
        yield findings.failed(one["id"], f"{one['url']} does not answer from here: {error}")
        return
    if answer.status_code == 200:
        yield Finding(Verdict.OK, one["id"], f"ready at {one['url']}, version {one['version'] or 'unknown'}")
    else:
        yield findings.failed(one["id"], f"not ready: {answer.text[:300]}")
    ahead_s = findings.ahead_s(time.time(), answer.headers.get("date", ""))
    if ahead_s is not None and abs(ahead_s) > findings.CLOCK_S:
        yield findings.clock(one["id"], ahead_s)


def _named(address: str) -> Iterator[Finding]:
    """Yields the finding of an address that somebody named, and no broker of the cluster has, as of one that is dead;
    nothing if a broker answers there, as behind a load balancer."""
    import httpx

    try:
        httpx.get(f"{address}/healthz", timeout=READY_S)
    except httpx.HTTPError as error:
        yield findings.failed("brokers", f"{address} does not answer from here: {error}")


if TYPE_CHECKING:
    from seaweedq.settings import Settings

EXAMPLES = """Examples: seaweedq doctor · seaweedq doctor --config broker.toml · seaweedq doctor -o json ·
seaweedq doctor --url http://broker-1:8080,http://broker-2:8080"""


def doctor(
    config: Annotated[
        Path | None,
        typer.Option("--config", envvar="SEAWEEDQ_CONFIG", help="The TOML file with the broker's settings."),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="The broker's data folder; by default the one that the settings name.")
    ] = None,
    output: Output = TABLE,
    url: Annotated[
        str | None, typer.Option("--url", envvar="SEAWEEDQ_URL", help="Brokers to look at, separated by commas.")
    ] = None,
) -> None:
    """Look at what a broker needs here (open files, disk, store, clock, coordination), and at brokers that run.

    The settings are those that `seaweedq serve` would take from the environment and the file. The exit code is 1 if
    something fails.
    """
    worst = False
    for finding in _findings(config, data_dir, url):
        worst |= finding.verdict is Verdict.FAIL
        _print(finding, output)
    raise typer.Exit(int(worst))


def _findings(config: Path | None, data_dir: Path | None, url: str | None) -> Iterator[Finding]:
    machine = f"Python {platform.python_version()}, {platform.system()} {platform.release()}"
    yield Finding(Verdict.OK, "seaweedq", f"{seaweedq.__version__}, {machine}")
    yield from _here(config, data_dir)
    yield from findings_of_brokers(url or DEFAULT_URL, url is not None)


def _here(config: Path | None, data_dir: Path | None) -> Iterator[Finding]:
    """Yields the findings of this machine."""
    try:
        yield from _of_broker(config, data_dir)
    except ModuleNotFoundError as error:
        told = f"this machine was not looked at: {error.name} is missing, which brokers need"
        yield Finding(Verdict.NOTE, "broker", told)


def _of_broker(config: Path | None, data_dir: Path | None) -> Iterator[Finding]:
    """Yields the findings of the broker's machine; without a data folder it is not one of a broker."""
    import os

    from seaweedq.cli import doctor_machine as machine
    from seaweedq.cli.server.given_settings import settings_of, unknown_variables
    from seaweedq.clock import SystemClock, SystemIds

    yield machine.installed()
    try:
        settings: Settings = settings_of(config, {"data_dir": data_dir})
    except SeaweedqError as error:
        yield failed("settings", error)
        return
    yield from (Finding(Verdict.WARN, "settings", warning) for warning in unknown_variables(os.environ))
    if machine.has_folder(settings):
        from seaweedq.cli import doctor_services as services  # takes longer than all other looks

        yield from machine.findings_of_machine(settings, SystemClock())
        yield from services.looked_at(settings, SystemClock(), SystemIds())
    else:
        told = (
            f"no data folder at {settings.data_dir}, so store and coordination were not looked at; --data-dir names one"
        )
        yield Finding(Verdict.FAIL if data_dir or config else Verdict.NOTE, "broker", told)


def _print(finding: Finding, output: str) -> None:
    if output == JSON:
        say_json(finding)
    else:
        say(printable(f"{finding.verdict:<5} {finding.what:<13} {finding.told}"))

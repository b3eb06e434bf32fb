"""`seaweedq doctor`: says what is wrong with a machine, a store, a coordination or brokers, and what to do."""

import platform
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import seaweedq
from seaweedq.cli.doctor.findings import Finding, Verdict, failed
from seaweedq.cli.shared.common import DEFAULT_URL, printable, say
from seaweedq.cli.shared.output import JSON, TABLE, Output, say_json
from seaweedq.errors import SeaweedqError

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
    from seaweedq.cli.doctor.running import looked_at

    yield from looked_at(url or DEFAULT_URL, url is not None)


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

    from seaweedq.cli.doctor import machine
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
        from seaweedq.cli.doctor import services  # takes longer than all other looks

        yield from machine.looked_at(settings, SystemClock())
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

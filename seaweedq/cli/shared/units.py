"""Options whose values are durations, sizes or times: they take units, and their help names these."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import typer

from seaweedq.units import bytes_of, moment_of, seconds_of

DURATIONS = "Seconds, or with units: 500ms, 90s, 1h30m, 7d, 2w."
SIZES = "Bytes, or with a unit: 10GB (10^9 bytes each), 512MiB (2^20)."
PLACES = "earliest, latest, a time such as 2026-01-31T12:00:00Z, or how long ago: 5m, 7d."


def duration(about: str, least: float = 0) -> Any:
    """Returns an option that is a duration of at least so many seconds."""
    return typer.Option(help=f"{about} {DURATIONS}", metavar="DURATION", parser=_parsed(seconds_of, least, "seconds"))


def size(about: str, least: float = 0, most: float | None = None) -> Any:
    """Returns an option that is a size within these bytes."""
    return typer.Option(help=f"{about} {SIZES}", metavar="SIZE", parser=_parsed(bytes_of, least, "bytes", most))


def place(text: str, option: str) -> str | dict[str, str]:
    """Returns a place of a topic as the API takes it. Raises BadParameter."""
    if text in ("earliest", "latest"):
        return text
    try:
        return {"timestamp": moment_of(text, datetime.now(UTC)).isoformat()}
    except ValueError as error:
        raise typer.BadParameter(f"{error}; or earliest, or latest", param_hint=option) from None


def _parsed(
    parse: Callable[[str], float], least: float, unit: str, most: float | None = None
) -> Callable[[str | float], float]:
    def parsed(text: str | float) -> float:
        if not isinstance(text, str):  # the default, which Typer parses, too
            return text
        try:
            found = parse(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        if found < least or (most is not None and found > most):
            bound = f"from {least:,} to {most:,}" if most is not None else f"at least {least:,}"
            raise typer.BadParameter(f"{text!r} is {found:,} {unit}; it must be {bound}")
        return found

    return parsed

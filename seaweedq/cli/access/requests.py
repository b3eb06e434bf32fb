"""Grants, limits and times as words, which the commands of this room have in common."""

import re
from typing import Any

import typer

from seaweedq.access.actions import Action
from seaweedq.access.limits import RATES, Limits
from seaweedq.cli.shared.common import printable
from seaweedq.units import bytes_of

GRANT = "`actions:topics:subscriptions`, each a list with commas, as `describe,publish:flights*`; may be repeated."
LIMIT = (
    "`NAME=NUMBER`, as `requests=100` or `bytes_in=10MB`, which are each second; `NAME=none` takes it away; may be "
    "repeated. Others stay as they are."
)
NO_BOUND = "none"
SIZES = ("bytes_in", "bytes_out")


def grant_of(text: str) -> dict[str, list[str]]:
    """Returns a grant as the API takes it. Raises BadParameter."""
    parts = [[one for one in part.split(",") if one] for part in text.split(":")]
    if not parts[0] or len(parts) > 3:
        raise typer.BadParameter(f"{text!r} is no grant: {GRANT}", param_hint="--grant")
    if unknown := [one for one in parts[0] if one not in list(Action)]:
        raise typer.BadParameter(f"{unknown[0]!r} is no action; actions are {', '.join(Action)}", param_hint="--grant")
    return dict(zip(("actions", "topics", "subscriptions"), parts, strict=False))


def limit_of(text: str) -> tuple[str, float | None]:
    """Returns the name of a limit and its number, None for no bound. Raises BadParameter."""
    name, _, number = text.partition("=")
    if name not in Limits.__struct_fields__:
        every = ", ".join(Limits.__struct_fields__)
        raise typer.BadParameter(f"{name!r} is no limit; limits are {every}", param_hint="--limit")
    if number == NO_BOUND:
        return name, None
    if not re.fullmatch(r"[0-9]{1,16}(\.[0-9]{1,9})?" if name in RATES else r"[0-9]{1,16}", number):
        if name in SIZES:
            try:
                return name, float(bytes_of(number))
            except ValueError as error:
                raise typer.BadParameter(f"{name}: {error}", param_hint="--limit") from None
        raise typer.BadParameter(f"{text!r} has no such number: {LIMIT}", param_hint="--limit")
    return name, float(number) if name in RATES else int(number)


def words_of(grants: list[dict[str, Any]]) -> str:
    """Returns grants as the command line takes them."""
    return printable(" ".join(":".join(",".join(names) for names in one.values() if names) for one in grants))


def limits_in_words(limits: dict[str, float | None]) -> str:
    """Returns the limits that there are as the command line takes them."""
    return printable(
        " ".join(f"{name}={number!r}".removesuffix(".0") for name, number in limits.items() if number is not None)
    )

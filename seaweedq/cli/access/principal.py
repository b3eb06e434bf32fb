"""`seaweedq principal`: creates, shows, lists and removes principals."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from seaweedq.cli.access.requests import GRANT, LIMIT, grant_of, limit_of, limits_in_words, words_of
from seaweedq.cli.shared.common import DEFAULT_URL, Url, run
from seaweedq.cli.shared.output import JSON, TABLE, Output, columns, say_done, say_json, say_page, say_table
from seaweedq.errors import PrincipalNotFound

if TYPE_CHECKING:
    from seaweedq.client.core.effects import Steps

app = typer.Typer(no_args_is_help=True, help="Create, change, show, list and remove principals.")
_LISTED = columns("name, state, grants, limits")
Name = Annotated[str, typer.Argument(help="Name of the principal.", show_default=False)]


@app.command(epilog="Example: seaweedq principal put importer --grant 'describe,publish:flights*' --limit requests=100")
def put(
    name: Name,
    grant: Annotated[list[str] | None, typer.Option(help=GRANT, show_default=False)] = None,
    limit: Annotated[list[str] | None, typer.Option(help=LIMIT, show_default=False)] = None,
    disabled: Annotated[
        bool | None,
        typer.Option(
            "--disabled/--enabled",
            help="With --disabled no token of the principal counts, until --enabled.",
            show_default=False,
        ),
    ] = None,
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Create a principal, or change one: grants replace those that it has; what is not given stays as it is."""
    grants, limits = [grant_of(one) for one in grant or []], dict(limit_of(one) for one in limit or [])
    found = run(url, _changed(name, grants, limits, disabled))
    say_done(output, f"{name} may {_words(found)}", **found)


def _changed(
    name: str, grants: list[dict[str, list[str]]], limits: dict[str, float | None], disabled: bool | None
) -> "Steps[Any]":
    """Puts what a principal has and what is given together: the broker replaces all of it."""
    from seaweedq.client.core.calls import access_path, call

    path = access_path("principals", name)
    try:
        there = yield from call("GET", path)
    except PrincipalNotFound:
        there = {"grants": [], "limits": {}, "disabled": False}
    body = {
        "grants": grants or there["grants"],
        "limits": there["limits"] | limits,
        "disabled": there["disabled"] if disabled is None else disabled,
    }
    return (yield from call("PUT", path, body))


@app.command(epilog="Example: seaweedq principal show importer")
def show(name: Name, output: Output = TABLE, url: Url = DEFAULT_URL) -> None:
    """Show a principal: its grants and limits."""
    from seaweedq.client.core.calls import access_path, call

    found = run(url, call("GET", access_path("principals", name)))
    if output == JSON:
        say_json(found)
    else:
        say_page(zip((column.name for column in _LISTED), _row(found), strict=True))


@app.command("list", epilog="Example: seaweedq principal list")
def list_principals(output: Output = TABLE, url: Url = DEFAULT_URL) -> None:
    """List all principals with their grants and limits."""
    from seaweedq.client.core.calls import pages

    found = run(url, pages("/v1/principals", "principals"))
    if output == JSON:
        for one in found:
            say_json(one)
    else:
        say_table(output, _LISTED, map(_row, found), "no principal yet; seaweedq principal put NAME makes one")


@app.command(epilog="Example: seaweedq principal remove importer")
def remove(name: Name, output: Output = TABLE, url: Url = DEFAULT_URL) -> None:
    """Remove a principal; all its tokens end with it."""
    from seaweedq.client.core.calls import access_path, call

    run(url, call("DELETE", access_path("principals", name)))
    say_done(output, f"removed {name} and all its tokens", name=name, removed=True)


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    state = "disabled" if one["disabled"] else "enabled"
    return one["name"], state, words_of(one["grants"]), limits_in_words(one["limits"])


def _words(found: dict[str, Any]) -> str:
    """Returns what a principal may do, and how much."""
    limits = limits_in_words(found["limits"])
    return (words_of(found["grants"]) or "do nothing") + (f", at most {limits}" if limits else "")

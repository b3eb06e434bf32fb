"""`seaweedq principal`: creates, shows, lists and removes principals."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from seaweedq.cli.access.requests import GRANT, LIMIT, grant_of, limit_of, limits_in_words, words_of
from seaweedq.cli.shared.common import DEFAULT_URL, Url, printable, run, say
from seaweedq.errors import PrincipalNotFound

if TYPE_CHECKING:
    from seaweedq.client.core.protocol.effects import Steps

app = typer.Typer(no_args_is_help=True, help="Create, change, show, list and remove principals.")
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
    url: Url = DEFAULT_URL,
) -> None:
    """Create a principal, or change one: grants replace those that it has; what is not given stays as it is."""
    grants, limits = [grant_of(one) for one in grant or []], dict(limit_of(one) for one in limit or [])
    found = run(url, _changed(name, grants, limits, disabled))
    say(f"{name} may {_words(found)}")


def _changed(
    name: str, grants: list[dict[str, list[str]]], limits: dict[str, float | None], disabled: bool | None
) -> "Steps[Any]":
    """Puts what a principal has and what is given together: the broker replaces all of it."""
    from seaweedq.client.core.topics.calls import access_path, call

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
def show(name: Name, url: Url = DEFAULT_URL) -> None:
    """Print a principal as JSON."""
    import msgspec

    from seaweedq.client.core.topics.calls import access_path, call

    found = msgspec.json.encode(run(url, call("GET", access_path("principals", name))))
    for line in msgspec.json.format(found).decode().split("\n"):
        say(printable(line))


@app.command("list", epilog="Example: seaweedq principal list")
def list_principals(url: Url = DEFAULT_URL) -> None:
    """Print all principals and what they may do."""
    from seaweedq.client.core.topics.calls import pages

    for one in run(url, pages("/v1/principals", "principals")):
        state = " (disabled)" if one["disabled"] else ""
        say(printable(f"{one['name']}{state}  {words_of(one['grants'])}  {limits_in_words(one['limits'])}").rstrip())


@app.command(epilog="Example: seaweedq principal remove importer")
def remove(name: Name, url: Url = DEFAULT_URL) -> None:
    """Remove a principal; all its tokens end with it."""
    from seaweedq.client.core.topics.calls import access_path, call

    run(url, call("DELETE", access_path("principals", name)))
    say(f"removed {name} and all its tokens")


def _words(found: dict[str, Any]) -> str:
    """Returns what a principal may do, and how much."""
    limits = limits_in_words(found["limits"])
    return (words_of(found["grants"]) or "do nothing") + (f", at most {limits}" if limits else "")

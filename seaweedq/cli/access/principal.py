"""`seaweedq principal`: creates, shows, lists and removes principals."""

from typing import Annotated

import typer

from seaweedq.cli.access.requests import GRANT, grant_of, words_of
from seaweedq.cli.shared.common import DEFAULT_URL, Url, printable, run, say

app = typer.Typer(no_args_is_help=True, help="Who may do what: create, show, list and remove principals.")
Name = Annotated[str, typer.Argument(help="Name of the principal.", show_default=False)]


@app.command(epilog="Example: seaweedq principal put importer --grant 'describe,publish:flights*'")
def put(
    name: Name,
    grant: Annotated[list[str] | None, typer.Option(help=GRANT, show_default=False)] = None,
    disabled: Annotated[bool, typer.Option("--disabled", help="No token of it counts meanwhile.")] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Create a principal, or replace all that it may do. Its limits become none."""
    from seaweedq.client.core.topics.calls import call

    body = {"grants": [grant_of(one) for one in grant or []], "disabled": disabled}
    found = run(url, call("PUT", f"/v1/principals/{name}", body))
    say(f"{name} may {words_of(found['grants']) or 'do nothing'}")


@app.command(epilog="Example: seaweedq principal show importer")
def show(name: Name, url: Url = DEFAULT_URL) -> None:
    """Print a principal as JSON."""
    import msgspec

    from seaweedq.client.core.topics.calls import call

    found = msgspec.json.encode(run(url, call("GET", f"/v1/principals/{name}")))
    for line in msgspec.json.format(found).decode().split("\n"):
        say(printable(line))


@app.command("list", epilog="Example: seaweedq principal list")
def list_principals(url: Url = DEFAULT_URL) -> None:
    """Print all principals and what they may do."""
    from seaweedq.client.core.topics.calls import pages

    for one in run(url, pages("/v1/principals", "principals")):
        say(printable(f"{one['name']}{' (disabled)' if one['disabled'] else ''}  {words_of(one['grants'])}"))


@app.command(epilog="Example: seaweedq principal remove importer")
def remove(name: Name, url: Url = DEFAULT_URL) -> None:
    """Remove a principal; all its tokens end with it."""
    from seaweedq.client.core.topics.calls import call

    run(url, call("DELETE", f"/v1/principals/{name}"))
    say(f"removed {name} and all its tokens")

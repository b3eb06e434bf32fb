"""`seaweedq token`: issues, lists and revokes tokens; `seaweedq whoami`."""

from typing import Annotated, Any

import typer

from seaweedq.cli.principal import GRANT, grant_of, words_of
from seaweedq.cli.shared.common import DEFAULT_URL, Url, duration, run
from seaweedq.cli.shared.output import JSON, TABLE, Output, columns, say_done, say_json, say_page, say_table

WHOAMI = "Example: SEAWEEDQ_TOKEN_FILE=seaweedq-data/admin-token seaweedq whoami"
_LISTED = columns("id, principal, state, until, note")
app = typer.Typer(no_args_is_help=True, help="Issue, list and revoke tokens.")


@app.command(epilog="Example: seaweedq token create importer --expires 30d --note 'nightly run'")
def create(
    principal: Annotated[
        str | None,
        typer.Argument(
            help="Principal that the token is for; without one the token comes from the caller's own.",
            show_default=False,
        ),
    ] = None,
    expires: Annotated[float | None, duration("Time after which the token ends.")] = None,
    grant: Annotated[list[str] | None, typer.Option(help=f"Narrows it: {GRANT}", show_default=False)] = None,
    note: Annotated[str, typer.Option(help="A text for people.")] = "",
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Issue a token, and print it: it is shown once."""
    from seaweedq.client.core.calls import call

    body: dict[str, Any] = {"note": note}
    if principal is not None:
        body["principal"] = principal
    if expires is not None:
        body["expires_s"] = expires
    if grant:
        body["grants"] = [grant_of(one) for one in grant]
    issued = run(url, call("POST", "/v1/tokens", body))
    say_done(output, issued["token"], **issued)


@app.command("list", epilog="Example: seaweedq token list")
def list_tokens(output: Output = TABLE, url: Url = DEFAULT_URL) -> None:
    """List tokens by id: all with the right to access, else the caller's own and those that came of it."""
    from seaweedq.client.core.calls import pages

    found = run(url, pages("/v1/tokens", "tokens"))
    if output == JSON:
        for one in found:
            say_json(one)
        return
    rows = (
        (one["id"], one["principal"], "counts" if one["counts"] else "does not count", _until(one), one["note"])
        for one in found
    )
    say_table(output, _LISTED, rows, "no token")


@app.command(epilog="Example: seaweedq token revoke 5f2b8a6c90d1e2f3")
def revoke(
    token: Annotated[str, typer.Argument(help="Its id, which is not secret.", show_default=False)],
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """End a token, and all that came of it."""
    from seaweedq.client.core.calls import access_path, call

    run(url, call("DELETE", access_path("tokens", token)))
    say_done(output, f"revoked {token}", id=token, revoked=True)


def whoami(output: Output = TABLE, url: Url = DEFAULT_URL) -> None:
    """Print who the caller is, and what it may do."""
    from seaweedq.client.core.calls import call

    found = run(url, call("GET", "/v1/whoami"))
    if output == JSON:
        say_json(found)
        return
    token = [("token", f"{found['token']}, until {_until(found)}")] if found["token"] else []
    grants = [("may", words_of(grants) or "do nothing") for grants in found["grants"]]
    say_page([("principal", found["principal"] or "(anonymous)"), *token, *grants])


def _until(token: dict[str, Any]) -> str:
    return str(token["expires_at"] or "revoked")

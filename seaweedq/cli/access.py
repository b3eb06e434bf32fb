"""`seaweedq principal`, `token`, `denial` and `whoami`: manage principals, tokens and denials, and show the caller.
Grants and limits are given as text."""

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seaweedq.access import rights
from seaweedq.access.limits import RATES, Limits
from seaweedq.access.rights import GRANT_FORM
from seaweedq.cli.shared.common import DEFAULT_URL, Url, duration, printable, run
from seaweedq.cli.shared.output import JSON, TABLE, Output, columns, say_done, say_json, say_page, say_table
from seaweedq.errors import PrincipalNotFound
from seaweedq.units import bytes_of

if TYPE_CHECKING:
    from seaweedq.client.core.effects import Steps

GRANT = f"{GRANT_FORM}. Repeatable."
LIMIT = (
    "Limit as `NAME=NUMBER`, such as `requests=100` or `bytes_in=10MB` (per second), or as `NAME=none`. Repeatable. "
    "Limits that you omit keep their values."
)
NO_BOUND = "none"
SIZES = ("bytes_in", "bytes_out")


def grant_of(text: str) -> dict[str, list[str]]:
    """Parses a grant for the API. Raises BadParameter."""
    try:
        found = rights.grant_of(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--grant") from None
    parts = [[str(one) for one in part] for part in (found.actions, found.topics, found.subscriptions)]
    return dict(zip(("actions", "topics", "subscriptions"), parts[: text.count(":") + 1], strict=False))


def limit_of(text: str) -> tuple[str, float | None]:
    """Parses a limit into its name and number. The number is None if the limit is removed. Raises BadParameter."""
    name, _, number = text.partition("=")
    if name not in Limits.__struct_fields__:
        every = ", ".join(Limits.__struct_fields__)
        raise typer.BadParameter(f"{name!r} is not a limit; the limits are {every}", param_hint="--limit")
    if number == NO_BOUND:
        return name, None
    if not re.fullmatch(r"[0-9]{1,16}(\.[0-9]{1,9})?" if name in RATES else r"[0-9]{1,16}", number):
        if name in SIZES:
            try:
                return name, float(bytes_of(number))
            except ValueError as error:
                raise typer.BadParameter(f"{name} {error}", param_hint="--limit") from None
        raise typer.BadParameter(
            f"a limit must be NAME=NUMBER or NAME=none, such as requests=100, not {text!r}", param_hint="--limit"
        )
    return name, float(number) if name in RATES else int(number)


def words_of(grants: list[dict[str, Any]]) -> str:
    """Formats grants as the command line accepts them."""
    return printable(" ".join(":".join(",".join(names) for names in one.values() if names) for one in grants))


def limits_in_words(limits: dict[str, float | None]) -> str:
    """Formats the limits that are set, as the command line accepts them."""
    return printable(
        " ".join(f"{name}={number!r}".removesuffix(".0") for name, number in limits.items() if number is not None)
    )


principals = typer.Typer(no_args_is_help=True, help="Create, change, show, list and remove principals.")
_PRINCIPALS = columns("name, state, grants, limits")
Name = Annotated[str, typer.Argument(help="Name of the principal.", show_default=False)]


@principals.command(
    epilog="Example: seaweedq principal put importer --grant 'describe,publish:flights*' --limit requests=100"
)
def put(
    name: Name,
    grant: Annotated[list[str] | None, typer.Option(help=f"Grant as {GRANT}", show_default=False)] = None,
    limit: Annotated[list[str] | None, typer.Option(help=LIMIT, show_default=False)] = None,
    disabled: Annotated[
        bool | None,
        typer.Option(
            "--disabled/--enabled",
            help="Disable all of the principal's tokens until you pass --enabled.",
            show_default=False,
        ),
    ] = None,
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Create or change a principal. If you pass grants, they replace all existing grants. Options that you omit keep
    their values. Each limit of the principal `*` applies to every principal for which this limit is not set."""
    grants, limits = [grant_of(one) for one in grant or []], dict(limit_of(one) for one in limit or [])
    found = run(url, _changed(name, grants, limits, disabled))
    bounds = limits_in_words(found["limits"])
    may = (words_of(found["grants"]) or "do nothing") + (f", at most {bounds}" if bounds else "")
    say_done(output, f"{name} may {may}", **found)


def _changed(
    name: str, grants: list[dict[str, list[str]]], limits: dict[str, float | None], disabled: bool | None
) -> "Steps[Any]":
    """Merges the given fields into the principal's, because the broker replaces all fields."""
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


@principals.command(epilog="Example: seaweedq principal show importer")
def show(name: Name, output: Output = TABLE, url: Url = DEFAULT_URL) -> None:
    """Show the grants and limits of a principal."""
    from seaweedq.client.core.calls import access_path, call

    found = run(url, call("GET", access_path("principals", name)))
    if output == JSON:
        say_json(found)
    else:
        say_page(zip((column.name for column in _PRINCIPALS), _row(found), strict=True))


@principals.command("list", epilog="Example: seaweedq principal list")
def list_principals(output: Output = TABLE, url: Url = DEFAULT_URL) -> None:
    """List all principals with their grants and limits."""
    from seaweedq.client.core.calls import pages

    found = run(url, pages("/v1/principals", "principals"))
    if output == JSON:
        for one in found:
            say_json(one)
    else:
        say_table(
            output, _PRINCIPALS, map(_row, found), "no principals yet; to create one: seaweedq principal put NAME"
        )


@principals.command(epilog="Example: seaweedq principal remove importer")
def remove(name: Name, output: Output = TABLE, url: Url = DEFAULT_URL) -> None:
    """Remove a principal and revoke its tokens."""
    from seaweedq.client.core.calls import access_path, call

    run(url, call("DELETE", access_path("principals", name)))
    say_done(output, f"removed {name} and all its tokens", name=name, removed=True)


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    state = "disabled" if one["disabled"] else "enabled"
    return one["name"], state, words_of(one["grants"]), limits_in_words(one["limits"])


WHOAMI = "Examples: seaweedq whoami · SEAWEEDQ_TOKEN_FILE=seaweedq-data/admin-token seaweedq whoami"
_TOKENS = columns("id, principal, state, until, note")
tokens = typer.Typer(no_args_is_help=True, help="Issue, list and revoke tokens.")


@tokens.command(epilog="Example: seaweedq token create importer --expires 30d --note 'nightly run'")
def create(
    principal: Annotated[
        str | None,
        typer.Argument(
            help="Principal to which the new token belongs. Without PRINCIPAL, the new token belongs to your own "
            "principal, and can do no more than the token that you use.",
            show_default=False,
        ),
    ] = None,
    expires: Annotated[float | None, duration("Lifetime of the token.")] = None,
    grant: Annotated[
        list[str] | None,
        typer.Option(
            help="Restrict the token to this grant, written as for `principal put`. Repeatable.", show_default=False
        ),
    ] = None,
    note: Annotated[str, typer.Option(help="Note in free text.")] = "",
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Issue a token and print its text, which is shown only once."""
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


@tokens.command("list", epilog="Example: seaweedq token list")
def list_tokens(output: Output = TABLE, url: Url = DEFAULT_URL) -> None:
    """List all tokens if your grants include the action `access`, otherwise only your own token and the tokens derived
    from it."""
    from seaweedq.client.core.calls import pages

    found = run(url, pages("/v1/tokens", "tokens"))
    if output == JSON:
        for one in found:
            say_json(one)
        return
    rows = (
        (one["id"], one["principal"], "valid" if one["counts"] else "not valid", _until(one), one["note"])
        for one in found
    )
    say_table(output, _TOKENS, rows, "no token")


@tokens.command(epilog="Example: seaweedq token revoke 5f2b8a6c90d1e2f3")
def revoke(
    token: Annotated[str, typer.Argument(help="Token ID, or the whole token.", show_default=False)],
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Revoke a token and all tokens derived from it."""
    from seaweedq.client.core.calls import access_path, call

    name = token.split("_")[1] if token.startswith("sq1_") and token.count("_") > 1 else token
    run(url, call("DELETE", access_path("tokens", name)))
    say_done(output, f"revoked {name}", id=name, revoked=True)


_DENIALS = columns("id, kind, value, until, note")
denials = typer.Typer(no_args_is_help=True, help="Deny, list and allow JSON Web Tokens of an OpenID Connect issuer.")


@denials.command("create", epilog="Example: seaweedq denial create --sub alice --note 'left the company'")
def deny(
    jti: Annotated[str | None, typer.Option(help="ID (`jti`) of the token to deny.", show_default=False)] = None,
    sub: Annotated[
        str | None, typer.Option(help="Deny all present and future tokens of this subject (`sub`).", show_default=False)
    ] = None,
    expires: Annotated[float | None, duration("Time after which the denial ends.")] = None,
    note: Annotated[str, typer.Option(help="Note in free text.")] = "",
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Deny one JSON Web Token, or all JSON Web Tokens of a subject. Within a second, all brokers refuse the denied
    tokens."""
    from seaweedq.client.core.calls import call

    if (jti is None) == (sub is None):
        raise typer.BadParameter("give either --jti or --sub", param_hint="--jti")
    kind, value = ("jti", jti) if jti is not None else ("sub", sub)
    body = {"kind": kind, "value": value, "note": note} | ({} if expires is None else {"expires_s": expires})
    made = run(url, call("POST", "/v1/denials", body))
    say_done(
        output, f"denied {kind} {printable(made['value'])}; to allow it: seaweedq denial remove {made['id']}", **made
    )


@denials.command("list", epilog="Example: seaweedq denial list")
def list_denials(output: Output = TABLE, url: Url = DEFAULT_URL) -> None:
    """List all denials of JSON Web Tokens."""
    from seaweedq.client.core.calls import pages

    found = run(url, pages("/v1/denials", "denials"))
    if output == JSON:
        for one in found:
            say_json(one)
        return
    rows = (
        (one["id"], one["kind"], printable(one["value"]), str(one["expires_at"] or "removed"), one["note"])
        for one in found
    )
    say_table(output, _DENIALS, rows, "no denials")


@denials.command("remove", epilog="Example: seaweedq denial remove sub-0f3e8a12c4b5d6e7f8091a2b3c4d5e6f")
def allow(
    denial: Annotated[str, typer.Argument(help="ID of the denial.", show_default=False)],
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Remove a denial, so that the denied tokens are valid again until they expire."""
    from seaweedq.client.core.calls import access_path, call

    run(url, call("DELETE", access_path("denials", denial)))
    say_done(output, f"removed {denial}", id=denial, removed=True)


def whoami(output: Output = TABLE, url: Url = DEFAULT_URL) -> None:
    """Show your own identity and permissions."""
    from seaweedq.client.core.calls import call

    found = run(url, call("GET", "/v1/whoami"))
    if output == JSON:
        say_json(found)
        return
    token = [("token", f"{found['token']}, until {_until(found)}")] if found["token"] else []
    grants = [("may", words_of(grants) or "do nothing") for grants in found["grants"]]
    identity = [("identity", found["identity"])] if found["identity"] else []
    say_page([("principal", found["principal"] or "(anonymous)"), *identity, *token, *grants])


def _until(token: dict[str, Any]) -> str:
    return str(token["expires_at"] or "revoked")

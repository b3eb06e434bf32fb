"""`seaweedq context`: names for brokers, so that commands need neither --url nor a token file."""

import os
import re
import ssl
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from seaweedq.cli.shared.common import remark
from seaweedq.cli.shared.contexts import Contexts, contexts_path, read_contexts, write_contexts
from seaweedq.cli.shared.output import JSON, TABLE, Output, columns, say_done, say_json, say_page, say_table
from seaweedq.cli.shared.usage import nearest
from seaweedq.client.core.attempts import parse_urls
from seaweedq.errors import ClientError

app = typer.Typer(
    no_args_is_help=True,
    help="Save the URLs of brokers under names (contexts), and choose the context that commands use.",
)
_HEAD = columns("current, name, url, token file, CA")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def _names(incomplete: str) -> list[str]:
    """Returns the names of contexts that begin with this text, for shell completion."""
    try:
        return [name for name in sorted(read_contexts()[1]) if name.startswith(incomplete)]
    except ClientError:
        return []


def _new_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise typer.BadParameter(f"invalid context name {name!r}: use at most 64 letters, digits, '.', '_' and '-'")
    return name


def _urls(url: str) -> str:
    try:
        parse_urls(url)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if any(urlsplit(one.strip()).username is not None for one in url.split(",")):
        raise typer.BadParameter(
            "a context must not contain a secret; remove the part of the URL before @, and give "
            "the token's file with --token-file"
        )
    return url


def _token_file(path: Path | None) -> Path | None:
    if path is None:
        return None
    if str(path).startswith("sq1_"):
        raise typer.BadParameter(
            "this is a token, not a file; write the token to a file that only you can read, and "
            "give the path of that file"
        )
    return _readable(path)


def _ca_file(path: Path | None) -> Path | None:
    if path is None:
        return None
    try:
        ssl.create_default_context(cafile=_readable(path))
    except ssl.SSLError:
        raise typer.BadParameter(f"{str(path)!r} contains no PEM certificate") from None
    return path


def _readable(path: Path) -> Path:
    try:
        path.open("rb").close()
    except OSError as error:
        raise typer.BadParameter(f"{str(path)!r} cannot be read: {error.strerror}") from None
    return path


Known = Annotated[str, typer.Argument(help="Name of the context.", show_default=False, autocompletion=_names)]


@app.command(epilog="Example: seaweedq context add prod --url https://queue.example.com --token-file ~/prod.token")
def add(
    name: Annotated[str, typer.Argument(help="Name of the context.", show_default=False, callback=_new_name)],
    url: Annotated[str, typer.Option("--url", help="URL of any broker, or several, comma-separated.", callback=_urls)],
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with your token; the context stores only the path of the file.", callback=_token_file),
    ] = None,
    ca_file: Annotated[
        Path | None, typer.Option(help="PEM file with the CA of the brokers' certificates.", callback=_ca_file)
    ] = None,
    use: Annotated[
        bool, typer.Option("--use", help="Make the new context current; the first context always becomes current.")
    ] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace an existing context of this name.")] = False,
    output: Output = TABLE,
) -> None:
    """Save a context: a name for the URL of one or more brokers and, optionally, for a token file and a CA file.

    The Python class `Client`
    ignores contexts. The command stores contexts, without tokens, in ~/.config/seaweedq/contexts.json or in
    $XDG_CONFIG_HOME/seaweedq/contexts.json."""
    current, contexts = read_contexts()
    if name in contexts and not replace:
        raise ClientError(f"context {name} already exists; use --replace to replace it")
    context = {"url": url}
    context |= {"token_file": str(token_file.absolute())} if token_file else {}
    context |= {"ca_file": str(ca_file.absolute())} if ca_file else {}
    current = name if use or not contexts else current
    write_contexts(current, {**contexts, name: context})
    chosen = " and chose" if current == name else ""
    say_done(output, f"added{chosen} context {name}", name=name, current=current == name, **context)
    _remark_variable()


@app.command(epilog="Example: seaweedq context use prod")
def use(name: Known, output: Output = TABLE) -> None:
    """Choose the context that later commands use by default."""
    _, contexts = read_contexts()
    write_contexts(_known(name, contexts), contexts)
    say_done(output, f"commands use context {name} ({contexts[name]['url']})", name=name, current=True)
    _remark_variable()


@app.command("list", epilog="Example: seaweedq context list")
def list_contexts(output: Output = TABLE) -> None:
    """List all contexts; a * marks the current context."""
    current, contexts = read_contexts()
    if output == JSON:
        for name in sorted(contexts):
            say_json(_facts(name, current, contexts))
        return
    rows = (
        ("*" if name == current else "", name, one["url"], one.get("token_file", ""), one.get("ca_file", ""))
        for name, one in sorted(contexts.items())
    )
    say_table(output, _HEAD, rows, "no contexts yet; to add one: seaweedq context add NAME --url URL")
    if contexts:
        _remark_variable()


@app.command(epilog="Examples: seaweedq context show · seaweedq context show prod")
def show(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of the context; by default, the current context.", show_default=False, autocompletion=_names
        ),
    ] = None,
    output: Output = TABLE,
) -> None:
    """Show a context, by default the current context, and the path of the file that stores all contexts."""
    current, contexts = read_contexts()
    if name is None and current is None:
        raise ClientError("there is no current context; to choose one: seaweedq context use NAME")
    facts = _facts(_known(name or current or "", contexts), current, contexts)
    if output == JSON:
        say_json(facts)
        return
    say_page((label.replace("_", " "), str(value)) for label, value in {**facts, "kept in": contexts_path()}.items())
    for label in ("token_file", "ca_file"):
        if label in facts and not Path(str(facts[label])).exists():
            remark(f"{facts[label]} does not exist")


@app.command(epilog="Example: seaweedq context remove prod")
def remove(name: Known, output: Output = TABLE) -> None:
    """Remove a context, but not its token file."""
    current, contexts = read_contexts()
    left = {one: context for one, context in contexts.items() if one != _known(name, contexts)}
    write_contexts(None if current == name else current, left)
    none = "; there is no current context now" if current == name else ""
    say_done(output, f"removed context {name}{none}", name=name, removed=True)


def _known(name: str, contexts: Contexts) -> str:
    if name not in contexts:
        raise ClientError(f"there is no context {name!r}{nearest(name, contexts)}")
    return name


def _facts(name: str, current: str | None, contexts: Contexts) -> dict[str, object]:
    return {"name": name, "current": name == current, **contexts[name]}


def _remark_variable() -> None:
    if os.environ.get("SEAWEEDQ_URL"):
        remark("SEAWEEDQ_URL is set and overrides every context")

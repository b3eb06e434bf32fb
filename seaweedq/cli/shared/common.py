"""The common parts of commands: options (also with units), a client, printing of errors and results, and commands to
paste that reach a topic from curl, SQL and Spark. Imports nothing heavy.

If a broker requires tokens, the curl command reads the header with the token from a pipe (`-H @-`). So no token is
printed, and none is in a process's arguments, which every user of the machine can see."""

import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seaweedq.cli.shared.contexts import ContextUrl, credentials_of, current_url
from seaweedq.errors import ConnectionFailed, SeaweedqError
from seaweedq.units import bytes_of, moment_of, seconds_of

if TYPE_CHECKING:
    from seaweedq.client import Client
    from seaweedq.client.core.attempts import OnRetry
    from seaweedq.client.core.effects import Steps
    from seaweedq.client.sync.transport import SyncTransport

DEFAULT_URL = "http://127.0.0.1:8080"


def chosen_url(context: typer.Context, url: str) -> str:
    """Returns the given URL, or else that of the current context, or else the default."""
    source = context.get_parameter_source("url")
    return current_url(url) if source is not None and source.name == "DEFAULT" else url


Url = Annotated[
    str,
    typer.Option(
        "--url",
        envvar="SEAWEEDQ_URL",
        help="URL of any broker, or comma-separated URLs; the current context overrides the default.",
        callback=chosen_url,
    ),
]
CLIENT_S = 30.0
_OBEYED = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
COMPLETION_S = 1.0
_REFUSED = "Connection refused"


def _topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns the names of topics that begin with this text, for shell completion; none if no broker answers
    quickly."""
    from seaweedq.client.core.calls import pages

    try:
        url = ctx.params.get("url") or os.environ.get("SEAWEEDQ_URL") or current_url(DEFAULT_URL)
        with calling(url, COMPLETION_S) as transport:
            names = [str(one["name"]) for one in transport.run(pages("/v1/topics", "topics"))]
    except (SeaweedqError, typer.BadParameter):
        return []
    return [name for name in names if name.startswith(incomplete)]


Topic = Annotated[str, typer.Argument(help="Name of the topic.", show_default=False, autocompletion=_topics)]


def connect(url: str, on_retry: "OnRetry | None" = None) -> "Client":
    """Returns a client for the brokers at `url`. An invalid URL is a usage error."""
    from seaweedq.client import Client

    try:
        return Client(url, on_retry=on_retry, **(url.files() if isinstance(url, ContextUrl) else {}))
    except ValueError as error:
        raise unusable(error) from error


@contextmanager
def calling(url: str, timeout_s: float = CLIENT_S) -> Iterator["SyncTransport"]:
    """Opens a transport that runs the core's calls at the brokers at `url`. An invalid URL is a usage error."""
    from seaweedq.client.core.attempts import Brokers, parse_urls
    from seaweedq.client.sync.transport import SyncTransport

    try:
        transport = SyncTransport(
            Brokers(parse_urls(url), time.monotonic), timeout_s, None, credentials=credentials_of(url)
        )
    except ValueError as error:
        raise unusable(error) from error
    try:
        yield transport
    finally:
        transport.close()


def run(url: str, steps: "Steps[Any]") -> Any:
    """Returns the answer of the brokers at `url`."""
    with calling(url) as transport:
        return transport.run(steps)


def unusable(error: ValueError) -> typer.BadParameter:
    """Returns the usage error for an invalid URL, or an invalid token in the environment."""
    from seaweedq.client.http import InvalidToken

    return typer.BadParameter(str(error), param_hint=None if isinstance(error, InvalidToken) else "--url")


def first_url(url: str) -> str:
    """Returns the first of the brokers at `url`, for commands that use only one broker."""
    return url.first() if isinstance(url, ContextUrl) else url.split(",")[0].strip()


def one_line(error: BaseException) -> str:
    """Formats an error as one line: the problem and a hint."""
    detail = str(error) or type(error).__name__
    fields: dict[str, Any] = getattr(error, "fields", {})
    parts = [detail.rstrip(".")]
    rows = fields.get("errors")
    if isinstance(rows, list) and rows:
        shown = [row for row in rows[:3] if isinstance(row, dict) and not _is_told(row, detail)]
        parts += [f"message {row.get('index')}: {row.get('reason')}" for row in shown]
    if (hint := fields.get("hint")) and str(hint) not in detail:
        parts.append(str(hint))
    if isinstance(error, ConnectionFailed) and _REFUSED in detail:
        parts.append("start a broker with seaweedq serve, or name another one with --url")
    return "; ".join(" ".join(part.split()) for part in parts)


def _is_told(row: dict[str, Any], detail: str) -> bool:
    """Returns whether an error's detail already contains this message and its reason."""
    return f"message {row.get('index')}" in detail and str(row.get("reason")) in detail


def printable(text: str) -> str:
    """Escapes characters in foreign text that a terminal would act on: control characters, and characters that change
    the text direction. The escapes are those of JSON."""
    return _OBEYED.sub(lambda one: f"\\u{ord(one[0]):04x}", text)


def path_text(path: Path) -> str:
    """Returns a path as text, with escapes for bytes that are not UTF-8, because no encoder accepts Python's
    surrogates."""
    return os.fsencode(path).decode(errors="backslashreplace")


def regular_files(paths: Sequence[Path], option: str) -> None:
    """Raises BadParameter if a path is not a regular file: it is read more than once, and a device or a pipe returns
    its bytes only once."""
    for path in paths:
        if not path.is_file():
            kind = "a pipe" if path.is_fifo() else "a folder" if path.is_dir() else "a device"
            what = f"is {kind}, not a regular file" if path.exists() else "does not exist"
            raise typer.BadParameter(f"{path_text(path)!r} {what}", param_hint=option)


def counted(number: int, thing: str) -> str:
    """Returns a number with its noun, such as "1 message" or "2,310 messages"."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def complain(text: str, excerpt: str = "") -> None:
    """Prints an error to stderr on one line and, below it, an excerpt of the input, with an optional caret."""
    for line in (f"seaweedq: {text}", *excerpt.splitlines()):
        print(printable(line), file=sys.stderr)  # noqa: T201


def remark(text: str) -> None:
    """Prints a line to stderr that is no error."""
    print(text, file=sys.stderr)  # noqa: T201


def say(text: str = "") -> None:
    """Prints a line to stdout, unchanged."""
    typer.echo(text)


DURATIONS = "Seconds, or with units: 500ms, 90s, 1h30m, 7d, 2w."
SIZES = "Bytes, or with a unit: 10GB (10^9 bytes each), 512MiB (2^20)."
PLACES = "earliest, latest, a time such as 2026-01-31T12:00:00Z, or a duration before now, such as 5m or 7d."


def duration(about: str, least: float = 0) -> Any:
    """Returns an option for a duration of at least this many seconds."""
    return typer.Option(help=f"{about} {DURATIONS}", metavar="DURATION", parser=_parsed(seconds_of, least, "seconds"))


def size(about: str, least: float = 0, most: float | None = None) -> Any:
    """Returns an option for a size within these bounds, in bytes."""
    return typer.Option(help=f"{about} {SIZES}", metavar="SIZE", parser=_parsed(bytes_of, least, "bytes", most))


def place(text: str, option: str) -> str | dict[str, str]:
    """Parses a position in a topic for the API. Raises BadParameter."""
    if text in ("earliest", "latest"):
        return text
    try:
        return {"timestamp": moment_of(text, datetime.now(UTC)).isoformat()}
    except ValueError as error:
        raise typer.BadParameter(f"the value {error}; earliest and latest are also valid", param_hint=option) from None


def _parsed(
    parse: Callable[[str], float], least: float, unit: str, most: float | None = None
) -> Callable[[str | float], float]:
    def parsed(text: str | float) -> float:
        if not isinstance(text, str):  # the default, which Typer parses, too
            return text
        try:
            found = parse(text)
        except ValueError as error:
            raise typer.BadParameter(f"the value {error}") from None
        if found < least or (most is not None and found > most):
            bound = f"from {least:,} to {most:,}" if most is not None else f"at least {least:,}"
            raise typer.BadParameter(f"the value must be {bound} {unit}, not {text!r}")
        return found

    return parsed


def lines(url: str, topic: str, path: str, value: str = '{"n": 1}', header: str = "") -> list[str]:
    """Returns commands to paste for a topic. `url` is a broker's URL, and `path` is the URL of the topic's directory in
    the store.

    `value` is a valid value for the topic, as JSON; if it is empty, no command publishes. `header` is a shell command
    that prints the header with the token; if it is empty, curl sends no token."""
    curl = f"{header} | curl -H @-" if header else "curl"
    curl += f" --cacert {quote(url.ca_file)}" if isinstance(url, ContextUrl) and url.ca_file else ""
    body = f"-H 'content-type: application/json' -d '{{\"value\": {value}}}'"
    publish = f"{curl} {url}/v1/topics/{topic}/messages {body}"
    shown = f"{curl} {url}/v1/topics/{topic}"
    fetch = f"{curl} '{url}/v1/topics/{topic}/segments/0/messages?limit=2'"
    named = "" if isinstance(url, ContextUrl) else f" --url {url}"  # with the option it would be no context's token
    name = topic if re.fullmatch("[A-Za-z][A-Za-z0-9_]*", topic) else f'"{topic}"'
    return [
        *([publish, shown] if value else [shown, fetch]),
        f"seaweedq pull {topic} --subscription mine --start earliest{named}",
        f"seaweedq sql {quote(f'SELECT segment, count(*) FROM {name} GROUP BY segment')}{named}",
        f'spark.read.parquet("{location(path)}").show()  # in pyspark',
    ]


def header_of(environment: Mapping[str, str], url: str = "") -> str:
    """Returns a shell command that prints the header with the token, which comes from these variables or from the URL's
    context; empty without a token."""
    if environment.get("SEAWEEDQ_TOKEN"):
        return """printf 'Authorization: Bearer %s' "$SEAWEEDQ_TOKEN\""""  # a builtin: no process has the token
    of_context = quote(url.token_file) if isinstance(url, ContextUrl) and url.token_file else ""
    file = '"$SEAWEEDQ_TOKEN_FILE"' if environment.get("SEAWEEDQ_TOKEN_FILE") else of_context
    return f"sed 's/^/Authorization: Bearer /' {file}" if file else ""


def location(path: str) -> str:
    """Converts a directory's URL for Spark: a plain path for file://, and s3a:// for s3://."""
    return re.sub("^s3://", "s3a://", path.removeprefix("file://").rstrip("/"))

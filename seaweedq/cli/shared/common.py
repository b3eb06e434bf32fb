"""What the commands share: options, a client, and how errors and facts are printed. Nothing heavy is imported here."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from seaweedq.client import Client

Url = Annotated[str, typer.Option("--url", envvar="SEAWEEDQ_URL", help="Any broker, or several separated by commas.")]
DEFAULT_URL = "http://127.0.0.1:8080"
Topic = Annotated[str, typer.Argument(help="Name of the topic.", show_default=False)]


def connect(url: str) -> "Client":
    """A client of the brokers at `url`; a URL that is none is a usage error."""
    from seaweedq.client import Client

    try:
        return Client(url)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--url") from error


def first_url(url: str) -> str:
    """The first of the brokers at `url`, for what takes one alone."""
    return url.split(",")[0].strip()


def one_line(error: BaseException) -> str:
    """An error as one clear line: what was wrong, and what helps to mend it."""
    detail = str(error) or type(error).__name__
    fields: dict[str, Any] = getattr(error, "fields", {})
    parts = [detail.rstrip(".")]
    rows = fields.get("errors")
    if isinstance(rows, list) and rows:
        parts += [f"message {row.get('index')}: {row.get('reason')}" for row in rows[:3] if isinstance(row, dict)]
    if hint := fields.get("hint"):
        parts.append(str(hint))
    return "; ".join(" ".join(part.split()) for part in parts)


def complain(text: str) -> None:
    """Print an error to stderr."""
    print(f"seaweedq: {text}", file=sys.stderr)  # noqa: T201


def say(text: str = "") -> None:
    """Print a line to stdout, as it is."""
    typer.echo(text)

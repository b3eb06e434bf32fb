"""`seaweedq publish`: publishes the records of a file, or of stdin; or whole files."""

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from seaweedq.cli.shared.common import DEFAULT_URL, Topic, Url, connect, say
from seaweedq.errors import SeaweedqError

if TYPE_CHECKING:
    from rich.progress import Progress

    from seaweedq.cli.data.records import InputFormat

EXAMPLES = """Examples: seaweedq publish events events.ndjson ·
seaweedq publish flights flights.csv --key-field carrier ·
echo '{"key": "a", "value": 1}' | seaweedq publish events --envelope ·
seaweedq publish films --file one.mp4 --file two.mp4 --key mine"""


def publish(
    topic: Topic,
    file: Annotated[
        Path | None,
        typer.Argument(exists=True, dir_okay=False, help="The file; left out or -: stdin.", allow_dash=True),
    ] = None,
    input_format: Annotated[
        str | None, typer.Option(help="ndjson, csv or parquet; by default that of the file's suffix.")
    ] = None,
    key_field: Annotated[
        str | None,
        typer.Option(help="Field of the record to use as the key, if the topic has no key_field of its own."),
    ] = None,
    envelope: Annotated[
        bool,
        typer.Option("--envelope", help="Each NDJSON line is a whole message with key, value, headers, timestamp."),
    ] = False,
    batch: Annotated[
        int | None, typer.Option(min=1, max=100_000, help="Maximum number of messages per request; 10,000 by default.")
    ] = None,
    files: Annotated[
        list[Path] | None,
        typer.Option("--file", exists=True, dir_okay=False, help="A file of any size as one message; may be repeated."),
    ] = None,
    key: Annotated[str | None, typer.Option(help="The key of the messages of --file.")] = None,
    content_type: Annotated[
        str | None, typer.Option(help="Media type of each --file; by default that of its suffix.")
    ] = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Publish the records of FILE, each exactly once: NDJSON (one value per line), CSV or Parquet.

    With --file instead, publish each file as a whole: its bytes go to the store, and the message refers to them.
    """
    from seaweedq.cli.data.records import InputFormat

    if files:
        of_records = {"FILE": file, "--input-format": input_format, "--key-field": key_field, "--batch": batch}
        _refuse(
            {**of_records, "--envelope": envelope or None},
            "the option is only for records, but --file sends whole files",
        )
        from seaweedq.cli.data.publish_files import publish_files

        publish_files(topic, files, key, content_type, url)
        return
    _refuse(
        {"--key": key, "--content-type": content_type},
        "the option is only for --file; for records use --key-field or --envelope",
    )
    path = None if file is None or str(file) == "-" else file
    format = _input_format(input_format, path)
    if envelope and (format is not InputFormat.NDJSON or key_field):
        raise typer.BadParameter(
            "--envelope is only for NDJSON, and excludes --key-field: the message has its key", param_hint="--envelope"
        )
    _publish_records(topic, path, format, (envelope, key_field), batch or 10_000, url)


def _input_format(named: str | None, path: Path | None) -> "InputFormat":
    """Returns the format that was named, or that of the file's suffix."""
    from seaweedq.cli.data.records import InputFormat, format_of

    if named is not None and named not in list(InputFormat):
        raise typer.BadParameter(f"{named!r} is not one of {', '.join(InputFormat)}", param_hint="--input-format")
    return InputFormat(named) if named else format_of(path)


def _publish_records(
    topic: str, path: Path | None, format: "InputFormat", how: tuple[bool, str | None], batch: int, url: str
) -> None:
    from seaweedq.cli.data.records import records

    started_s = time.monotonic()
    with ExitStack() as stack:
        source: BinaryIO = stack.enter_context(path.open("rb")) if path else sys.stdin.buffer
        client = stack.enter_context(connect(url))
        producer = stack.enter_context(client.producer(topic, batch_messages=batch))
        found = records(source, format)
        try:
            for arguments in _progress(stack, _arguments(found, *how)):
                producer.send(**arguments)
            producer.flush()
        except SeaweedqError:
            say(f"published {producer.acknowledged:,} messages to {topic}; the others were not published:")
            raise
        count = producer.acknowledged
    took_s = time.monotonic() - started_s
    say(f"published {count:,} messages to {topic} in {took_s:.1f} s ({count / max(took_s, 1e-9):,.0f}/s)")


def _refuse(options: dict[str, Any], reason: str) -> None:
    for name, value in options.items():
        if value is not None:
            raise typer.BadParameter(reason, param_hint=name)


def _arguments(found: Iterator[Any], envelope: bool, key_field: str | None) -> Iterator[dict[str, Any]]:
    from seaweedq.cli.data.records import envelopes, key_of

    if envelope:
        return envelopes(found)
    if key_field is None:
        return ({"value": record} for record in found)
    return ({"value": record, "key": key_of(record, key_field, number)} for number, record in enumerate(found, 1))


def _progress(stack: ExitStack, items: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    if not sys.stderr.isatty():
        return items
    progress = stack.enter_context(_bar())
    return progress.track(items, description="publishing")


def _bar() -> "Progress":
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description} {task.completed:,.0f}"), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)

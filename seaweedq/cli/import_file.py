"""`seaweedq import`: publishes the rows of a file of any size as messages. The file goes directly to the store."""

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seaweedq.cli.shared.common import DEFAULT_URL, Topic, Url, complain, connect, counted, regular_files
from seaweedq.cli.shared.output import TABLE, Output, say_done
from seaweedq.errors import ClientError, Unavailable

if TYPE_CHECKING:
    from seaweedq.client.core.uploading import Format

EXAMPLES = """Examples: seaweedq import flights flights.parquet ·
seaweedq import events events.ndjson --envelope ·
seaweedq import flights --upload 20260131-0-9f86d081884c7d659a2feaa0c55ad015 --format parquet"""


def import_file(
    topic: Topic,
    file: Annotated[
        Path | None,
        typer.Argument(exists=True, dir_okay=False, help="Parquet, NDJSON or Arrow file; each row becomes a message."),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(help="Format of FILE: parquet, ndjson or arrow; by default, the file's suffix decides."),
    ] = None,
    envelope: Annotated[
        bool,
        typer.Option(
            "--envelope", help="Read each NDJSON line as a whole message with key, value, headers and timestamp."
        ),
    ] = False,
    upload: Annotated[
        str | None,
        typer.Option(
            help="ID of an earlier upload, instead of FILE. With --upload, the command begins the import of the "
            "earlier upload if the import has not begun yet, waits until the import ends, and shows the result. "
            "Requires --format."
        ),
    ] = None,
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Publish each row of FILE as a message. If any row is invalid, no row is published. After the upload, a broker
    publishes the rows, even if you interrupt the command."""
    if (file is None) == (upload is None):
        raise typer.BadParameter("give either FILE or --upload", param_hint="FILE")
    kind = _format(file, format)
    if envelope and kind != "ndjson":
        raise typer.BadParameter(
            f"--envelope can be used only with NDJSON, but the format is {kind}", param_hint="--envelope"
        )
    bare = kind == "ndjson" and not envelope
    if file is not None:
        regular_files([file], "FILE")
    started_s = time.monotonic()
    with ExitStack() as stack:
        client = stack.enter_context(connect(url))
        bytes_told, rows_told = _bars(stack, file)
        upload_id = upload or ""
        if file is not None:
            upload_id = client.upload(topic, file, progress=bytes_told)
        try:
            done = client.import_upload(topic, upload_id, kind, bare, rows_told)
        except (KeyboardInterrupt, ClientError, Unavailable):  # the same file once more would double its rows
            again = f"seaweedq import {topic} --upload {upload_id} --format {kind}{' --envelope' if envelope else ''}"
            complain(f"the brokers continue the import; to show the result: {again}")
            raise
    took_s = time.monotonic() - started_s
    rate = done.count / max(took_s, 1e-9)
    told = f"imported {counted(done.count, 'row')} into {topic} in {took_s:.1f} s ({rate:,.0f}/s)"
    say_done(output, told, topic=topic, rows=done.count, seconds=took_s)


def _format(file: Path | None, format: str | None) -> "Format":
    from seaweedq.client.core.uploading import check_format, format_of

    try:
        kind = format or format_of(file.name if file else "")
        check_format(kind, bare=False)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--format") from None
    return kind  # type: ignore[return-value]


def _bars(
    stack: ExitStack, file: Path | None
) -> tuple[Callable[[int, int], None] | None, Callable[[int, int | None], None] | None]:
    """Returns progress callbacks for the uploaded bytes and the imported rows; None without a terminal."""
    if not sys.stderr.isatty():
        return None, None
    from rich.console import Console
    from rich.filesize import decimal
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[far]}"), TimeElapsedColumn())
    bar = stack.enter_context(Progress(*columns, console=Console(stderr=True), transient=True))
    upload = bar.add_task("uploading", total=None, visible=file is not None, far="")
    rows = bar.add_task("checking", total=None, visible=file is None, far="")

    def bytes_told(done: int, total: int) -> None:
        bar.update(upload, completed=done, total=total, far=f"{decimal(done)} of {decimal(total)}")

    def rows_told(done: int, total: int | None) -> None:
        if total is not None:
            bar.update(rows, description="importing", far=f"{done:,} of {total:,} rows")
        bar.update(rows, visible=True, completed=done, total=total)

    return bytes_told, rows_told

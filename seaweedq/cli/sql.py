"""`seaweedq sql`: runs SQL over topics, complete to the last acknowledged message."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seaweedq.cli.shared.common import DEFAULT_URL, Url, calling, complain, duration, one_line, say
from seaweedq.cli.shared.output import JSON, TABLE, WIDE, drawing, layout, output_option, say_table, terminal_width
from seaweedq.errors import ConnectionFailed, FileMissing, TopicNotFound, Unavailable
from seaweedq.extras import hidden

if TYPE_CHECKING:
    from rich.console import RenderableType

    from seaweedq.cli.sql_database import Database

EXAMPLES = """Examples: seaweedq sql "SELECT count(*) FROM flights" ·
seaweedq sql "SELECT value->>'carrier' AS carrier, count(*) FROM flights GROUP BY 1 ORDER BY 2 DESC" --watch ·
seaweedq sql 'FROM "app.logs" WHERE _timestamp > now() - INTERVAL 1 HOUR' --output-file logs.parquet ·
seaweedq sql "SHOW TABLES" · seaweedq sql --explain "SELECT count(*) FROM flights"
"""
FILES = ("csv", JSON, "parquet")
FORMATS = (TABLE, WIDE, *FILES)
_ABOUT_OUTPUT = "table; wide: uncut; csv; json, an object a line; parquet; by default that of FILE."
PLANS = 3  # retention may take files between a plan and its read


def sql(
    statement: Annotated[str, typer.Argument(help="One statement of DuckDB's SQL; - reads it from stdin.")],
    output: Annotated[str | None, output_option(FORMATS, _ABOUT_OUTPUT)] = None,
    output_file: Annotated[
        Path | None, typer.Option("--output-file", metavar="FILE", help="Write to this file instead of stdout.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say which files and which rows of brokers it reads, and DuckDB's plan.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show the table again and again, until Ctrl-C.")] = False,
    every_s: Annotated[float, duration("Time between two looks of --watch.", 0.1)] = 2.0,
    rows: Annotated[int, typer.Option(min=1, help="Most rows of a table.")] = 100,
    keep_expired: Annotated[bool, typer.Option("--keep-expired", help="See messages that have expired, too.")] = False,
    memory: Annotated[str, typer.Option(help="What DuckDB may use, such as 1GB; by default most of the machine.")] = "",
    s3_endpoint: Annotated[
        str, typer.Option(help="URL of the S3-compatible store, if it is not the one that brokers name.")
    ] = "",
    url: Url = DEFAULT_URL,
) -> None:
    """Run SQL over topics: each is a view, complete to the last acknowledged message.

    Names with dots or dashes are in double quotes. DuckDB reads the Parquet files of the store itself, on S3 with the
    credentials in the environment; what is in no file yet comes from the brokers.
    """
    from seaweedq.cli.sql_database import opened

    kind = _format(output, output_file, watch)
    text = sys.stdin.read() if statement == "-" else statement
    # Arrow would import numpy, which takes as long as all of DuckDB.
    with (
        hidden("numpy", "pandas"),
        calling(url) as transport,
        opened(transport, memory, s3_endpoint, "keep" if keep_expired else "skip") as database,
    ):
        statement = database.single(text)
        if explain:
            _repeated(database, statement, lambda: _explain(database, statement))
        elif watch:
            _watch(database, statement, rows, every_s, kind == WIDE)
        else:
            _repeated(database, statement, lambda: _once(database, statement, kind, output_file, rows))


def _format(named: str | None, file: Path | None, watch: bool) -> str:
    """Returns the format that was named, or that of the file's suffix."""
    suffix = file.suffix.lstrip(".").lower().replace("ndjson", "json") if file else TABLE
    kind = named or suffix
    if file and kind not in FILES:
        raise typer.BadParameter(f"a file is {', '.join(FILES)}, not {kind!r}", param_hint="--output")
    if file and not file.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {file.parent}", param_hint="--output-file")
    if watch and (kind not in (TABLE, WIDE) or file):
        raise typer.BadParameter("--watch shows a table", param_hint="--watch")
    if kind == "parquet" and not file and sys.stdout.isatty():
        raise typer.BadParameter("a terminal shows no Parquet; name a file with --output-file", param_hint="--output")
    return kind


def _repeated(database: "Database", statement: str, act: Any) -> None:
    """Acts, and acts again with a new plan where a file was gone before anything was read of it."""
    import duckdb

    from seaweedq.cli.sql_database import of_store, refused, unquoted

    for left in reversed(range(PLANS)):
        try:
            act()
            return
        except (duckdb.Error, FileNotFoundError) as error:
            reason = of_store(error)
            if reason is None:
                if isinstance(error, duckdb.CatalogException) and database.unknown:
                    text = f"there is no topic {' or '.join(map(repr, sorted(database.unknown)))}"
                    raise TopicNotFound(text + unquoted(statement)) from None
                raise refused(error, statement) from None
            if not left:
                raise FileMissing(f"not all Parquet files are visible from this machine: {reason}") from None


def _once(database: "Database", statement: str, kind: str, file: Path | None, rows: int) -> None:
    from seaweedq.cli.sql_outputs import interruptible, stream, table, write

    with database.over(statement) as (connection, _):
        if file:
            interruptible(connection, lambda: write(connection, statement, kind, file))
        elif kind in FILES:
            interruptible(connection, lambda: stream(connection, statement, kind))
        else:
            shown = interruptible(connection, lambda: table(connection, statement, rows))
            say_table(kind, shown.head, shown.rows)
            if shown.more:
                complain(f"these are the first {rows:,} rows; --rows shows more, -o csv all")


def _explain(database: "Database", statement: str) -> None:
    from seaweedq.cli.sql_database import explained

    with database.over(statement, tails=False) as (connection, reads):
        for read in reads:
            for line in explained(read):
                say(line)
        say()
        for _, plan in connection.execute(f"EXPLAIN {statement}").fetchall():
            say(plan.rstrip())


def _watch(database: "Database", statement: str, rows: int, every_s: float, wide: bool) -> None:
    from rich.live import Live

    from seaweedq.cli.shared.process import Interrupts

    console, shown = drawing(), None
    with Interrupts() as interrupts:
        looks = interrupts.until_stopped(repeat(database, statement, rows, every_s, wide))
        if not console.is_terminal:
            for shown in looks:
                console.print(shown)
            return
        with Live(console=console, screen=True, auto_refresh=False) as live:
            for shown in looks:
                live.update(shown, refresh=True)
        if shown is not None:  # else the first look was interrupted
            console.print(shown)


def repeat(database: "Database", statement: str, rows: int, every_s: float, wide: bool) -> "Iterator[RenderableType]":
    """Yields a table again and again, or the error of a look that may be repeated."""
    from rich.console import Group
    from rich.text import Text

    from seaweedq.cli.sql_outputs import table

    found: list[RenderableType] = []

    def look() -> None:
        with database.over(statement) as (connection, _):
            shown = table(connection, statement, rows)
            lines = layout(shown.head, shown.rows, None if wide else terminal_width())
            text = Text("\n".join(lines), no_wrap=True, overflow="crop")
            text.stylize("bold", 0, len(lines[0]))
            found[:] = [text, Text("..." if shown.more else "")]

    while True:
        head = Text(f"{time.strftime('%H:%M:%S')}  {' '.join(statement.split())}", style="dim", overflow="ellipsis")
        try:
            _repeated(database, statement, look)
        except (Unavailable, ConnectionFailed, FileMissing) as error:
            head = Text(one_line(error), style="red")
        yield Group(head, *found)
        time.sleep(every_s)

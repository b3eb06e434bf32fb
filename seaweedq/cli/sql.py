"""`seaweedq sql`: runs SQL over topics, complete to the last acknowledged message.

The result of a statement is a table for people, or CSV, JSON or Parquet, which DuckDB itself writes. The whole result
is never in memory: a table shows only the first rows, and the other formats are written row by row. Output to stdout
passes through a named pipe, because DuckDB writes to paths. NaN and infinity become null in JSON, as in messages,
because strict JSON readers do not accept them."""

import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import typer

from seaweedq.cli.shared.common import DEFAULT_URL, Url, calling, complain, duration, one_line, say
from seaweedq.cli.shared.output import (
    JSON,
    TABLE,
    WIDE,
    Column,
    drawing,
    layout,
    output_option,
    say_table,
    terminal_width,
)
from seaweedq.cli.sql_database import Database, explained, literal, of_store, opened, refused, unquoted
from seaweedq.errors import ConnectionFailed, FileMissing, TopicNotFound, Unavailable
from seaweedq.extras import hidden

if TYPE_CHECKING:
    import duckdb
    from rich.console import RenderableType

_FLOATS = ("float", "double")
_NESTED = ("list", "array", "struct", "map")


def finite(connection: "duckdb.DuckDBPyConnection", statement: str) -> str:
    """Returns the statement with null for each float that is not finite, or the unchanged statement if its result has
    no floats."""
    columns = connection.execute(f"SELECT * FROM ({statement}\n) LIMIT 0").description or []
    if not any(_holds_floats(kind) for _, kind, *_ in columns):
        return statement
    names = [f"c{number}" for number in range(len(columns))]
    shown = [
        f"{_finite(name, kind)} AS {_quoted(column[0])}"
        for name, column in zip(names, columns, strict=True)
        for kind in [column[1]]
    ]
    return f"SELECT {', '.join(shown)} FROM ({statement}\n) AS found({', '.join(names)})"


def _holds_floats(kind: Any) -> bool:
    if kind.id not in _NESTED:
        return kind.id in _FLOATS
    return any(_holds_floats(child) for _, child in kind.children if not isinstance(child, int))


def _finite(value: str, kind: Any, depth: int = 0) -> str:
    """Returns an expression that replaces NaN and infinity in a value by null."""
    if not _holds_floats(kind):
        return value
    if kind.id in _FLOATS:
        return f"CASE WHEN isfinite({value}) THEN {value} END"
    children = dict(kind.children)
    each = f"e{depth}"
    if kind.id == "struct":
        fields = (
            f"{_quoted(name)} := {_finite(f'{value}.{_quoted(name)}', child, depth)}"
            for name, child in children.items()
        )
        return f"CASE WHEN {value} IS NOT NULL THEN struct_pack({', '.join(fields)}) END"
    if kind.id == "map":
        values = f"list_transform(map_values({value}), lambda {each}: {_finite(each, children['value'], depth + 1)})"
        return f"CASE WHEN {value} IS NOT NULL THEN map(map_keys({value}), {values}) END"
    return f"list_transform({value}, lambda {each}: {_finite(each, children['child'], depth + 1)})"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


R = TypeVar("R")
_SIGNALS_S = 0.2  # a signal that comes just before a wait does not end it
_NUMBERS = ("INT", "DOUBLE", "FLOAT", "DECIMAL")


def interruptible(connection: "duckdb.DuckDBPyConnection", work: Callable[[], R]) -> R:
    """Runs `work` with the connection in a thread, because a signal would wait until a DuckDB call ends. An interrupt
    ends the statement."""
    with ThreadPoolExecutor(1) as thread:
        working = thread.submit(work)
        try:
            while not wait((working,), _SIGNALS_S).done:
                pass
            return working.result()
        except KeyboardInterrupt:
            connection.interrupt()
            raise


class FirstRows(NamedTuple):
    """The first rows of a result, and whether there are more."""

    head: list[Column]
    rows: list[list[str]]
    more: bool


def table(connection: "duckdb.DuckDBPyConnection", statement: str, most: int) -> FirstRows:
    """Returns the first rows. DuckDB formats the values as text, because Python times would need pytz, which no extra
    includes, and Python has no time for `infinity`."""
    import duckdb

    try:
        found = connection.sql(statement)
    except duckdb.Error:
        connection.execute(statement)  # whose error has the line and the place in it
        raise
    head = [
        Column(name, number=any(number in str(kind) for number in _NUMBERS))
        for name, kind in zip(found.columns, found.types, strict=True)
    ]
    rows = found.limit(most + 1).project("CAST(COLUMNS(*) AS VARCHAR)").fetchall()
    return FirstRows(head, [[value or "" for value in row] for row in rows[:most]], len(rows) > most)


def write(connection: "duckdb.DuckDBPyConnection", statement: str, format: str, path: Path) -> None:
    """Writes all rows to a file, which appears only when it is complete."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        connection.execute(_copy(connection, statement, format, draft))
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def stream(connection: "duckdb.DuckDBPyConnection", statement: str, format: str) -> None:
    """Writes all rows to stdout. Raises OSError if stdout is closed."""
    import duckdb

    with tempfile.TemporaryDirectory(prefix="seaweedq-sql-") as folder:
        pipe = Path(folder) / "pipe"
        os.mkfifo(pipe)
        copying = _PipeCopier(pipe)
        copying.start()
        try:
            connection.execute(_copy(connection, statement, format, pipe))
        except duckdb.Error:
            if copying.failure is None:
                raise
        finally:
            copying.end()
        if copying.failure is not None:
            raise copying.failure


class _PipeCopier(threading.Thread):
    """Copies a named pipe to stdout."""

    def __init__(self, pipe: Path) -> None:
        super().__init__(daemon=True)
        self._pipe = pipe
        self.failure: OSError | None = None

    def run(self) -> None:
        """Copies until the writer closes the pipe, or stdout is closed."""
        with self._pipe.open("rb") as source:
            try:
                shutil.copyfileobj(source, sys.stdout.buffer)
                sys.stdout.buffer.flush()
            except OSError as error:
                self.failure = error

    def end(self) -> None:
        """Waits until everything is copied. If DuckDB never opened the pipe, opens it instead, so that the copying
        ends."""
        os.close(os.open(self._pipe, os.O_RDWR))
        self.join()


def _copy(connection: "duckdb.DuckDBPyConnection", statement: str, format: str, path: Path) -> str:
    if format == "json":
        statement = finite(connection, statement)
    options = ", HEADER" if format == "csv" else ""
    return f"COPY (FROM ({statement}\n)) TO {literal(str(path))} (FORMAT {format}{options}, USE_TMP_FILE false)"


EXAMPLES = """Examples: seaweedq sql "SELECT count(*) FROM flights" ·
seaweedq sql "SELECT value->>'carrier' AS carrier, count(*) FROM flights GROUP BY 1 ORDER BY 2 DESC" --watch ·
seaweedq sql 'FROM "app.logs" WHERE _timestamp > now() - INTERVAL 1 HOUR' --output-file logs.parquet ·
seaweedq sql "SHOW TABLES" · seaweedq sql --explain "SELECT count(*) FROM flights"
"""
FILES = ("csv", JSON, "parquet")
FORMATS = (TABLE, WIDE, *FILES)
_ABOUT_OUTPUT = (
    "Format of the output; wide truncates no value. By default, the suffix of --output-file decides the "
    "format; without --output-file, the format is table."
)
PLANS = 3  # retention may take files between a plan and its read


def sql(
    statement: Annotated[
        str, typer.Argument(help="One statement in DuckDB's SQL, or - to read the statement from stdin.")
    ],
    output: Annotated[str | None, output_option(FORMATS, _ABOUT_OUTPUT)] = None,
    output_file: Annotated[
        Path | None, typer.Option("--output-file", metavar="FILE", help="Write to this file instead of stdout.")
    ] = None,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Show the files that the statement reads, the number of rows that brokers return, and DuckDB's query "
            "plan.",
        ),
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh the table until Ctrl-C.")] = False,
    every_s: Annotated[float, duration("Refresh interval of --watch.", 0.1)] = 2.0,
    rows: Annotated[int, typer.Option(min=1, help="Maximum number of rows to show.")] = 100,
    keep_expired: Annotated[bool, typer.Option("--keep-expired", help="Include expired messages.")] = False,
    memory: Annotated[
        str, typer.Option(help="Memory limit for DuckDB, such as 1GB; by default, most of the machine's memory.")
    ] = "",
    s3_endpoint: Annotated[
        str,
        typer.Option(help="URL at which this machine reaches the S3-compatible store, if the brokers use another URL."),
    ] = "",
    url: Url = DEFAULT_URL,
) -> None:
    """Run SQL over topics. Each topic is a view that includes every message that brokers have acknowledged so far. Put
    topic names with dots or dashes in double quotes. If a topic has the name of one of DuckDB's built-in
    views, write `topics.NAME` to query the topic.

    DuckDB reads the Parquet files directly from the store. For S3, this machine needs AWS credentials and the extra
    `s3`. The brokers supply the messages that are not yet in Parquet files."""
    kind = _format(output, output_file, watch)
    text = _of_stdin() if statement == "-" else statement
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


def _of_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        found = f"stdin is not UTF-8: byte 0x{error.object[error.start]:02x} at position {error.start}"
        raise typer.BadParameter(found, param_hint="STATEMENT") from None


def _format(named: str | None, file: Path | None, watch: bool) -> str:
    """Returns the given format, or the format of the file's suffix."""
    suffix = file.suffix.lstrip(".").lower().replace("ndjson", "json") if file else TABLE
    kind = named or suffix
    if file and kind not in FILES:
        raise typer.BadParameter(
            f"the format of the output file must be one of {', '.join(FILES)}, not {kind!r}", param_hint="--output"
        )
    if file and not file.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {file.parent}", param_hint="--output-file")
    if watch and (kind not in (TABLE, WIDE) or file):
        raise typer.BadParameter("--watch shows a table", param_hint="--watch")
    if kind == "parquet" and not file and sys.stdout.isatty():
        raise typer.BadParameter(
            "a terminal cannot show Parquet; write to a file with --output-file", param_hint="--output"
        )
    return kind


def _repeated(database: Database, statement: str, act: Any) -> None:
    """Runs the statement, and runs it again with a new plan if a file disappeared before any of its rows were read."""
    import duckdb

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
                raise FileMissing(f"this machine cannot read some of the Parquet files: {reason}") from None


def _once(database: Database, statement: str, kind: str, file: Path | None, rows: int) -> None:
    with database.over(statement) as (connection, _):
        if file:
            interruptible(connection, lambda: write(connection, statement, kind, file))
        elif kind in FILES:
            interruptible(connection, lambda: stream(connection, statement, kind))
        else:
            shown = interruptible(connection, lambda: table(connection, statement, rows))
            say_table(kind, shown.head, shown.rows)
            if shown.more:
                complain(f"only the first {rows:,} rows are shown; --rows shows more, and -o csv prints all")


def _explain(database: Database, statement: str) -> None:
    with database.over(statement, tails=False) as (connection, reads):
        for read in reads:
            for line in explained(read):
                say(line)
        say()
        for _, plan in connection.execute(f"EXPLAIN {statement}").fetchall():
            say(plan.rstrip())


def _watch(database: Database, statement: str, rows: int, every_s: float, wide: bool) -> None:
    from rich.live import Live

    from seaweedq.cli.shared.process import Interrupts

    console, shown = drawing(), None
    with Interrupts() as interrupts:
        pictures = interrupts.until_stopped(repeat(database, statement, rows, every_s, wide))
        if not console.is_terminal:
            for shown in pictures:
                console.print(shown)
            return
        with Live(console=console, screen=True, auto_refresh=False) as live:
            for shown in pictures:
                live.update(shown, refresh=True)
        if shown is not None:  # else the first look was interrupted
            console.print(shown)


def repeat(database: Database, statement: str, rows: int, every_s: float, wide: bool) -> "Iterator[RenderableType]":
    """Yields a fresh table repeatedly, or an error after which the command can continue."""
    from rich.console import Group
    from rich.text import Text

    found: list[RenderableType] = []

    def refresh() -> None:
        with database.over(statement) as (connection, _):
            shown = table(connection, statement, rows)
            lines = layout(shown.head, shown.rows, None if wide else terminal_width())
            text = Text("\n".join(lines), no_wrap=True, overflow="crop")
            text.stylize("bold", 0, len(lines[0]))
            found[:] = [text, Text("..." if shown.more else "")]

    while True:
        head = Text(f"{time.strftime('%H:%M:%S')}  {' '.join(statement.split())}", style="dim", overflow="ellipsis")
        try:
            _repeated(database, statement, refresh)
        except (Unavailable, ConnectionFailed, FileMissing) as error:
            head = Text(one_line(error), style="red")
        yield Group(head, *found)
        time.sleep(every_s)

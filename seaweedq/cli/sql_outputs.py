"""The rows that a statement finds, as a table for people, or as CSV, JSON or Parquet, which DuckDB writes itself.

Neither holds the whole result: a table shows its first rows alone, and the others are written as they come. To stdout
they go through a named pipe, since DuckDB writes to paths. JSON has no NaN and no infinity: such floats become null, as
they do in messages; DuckDB would write them as they are, and no strict reader takes that.
"""

import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from seaweedq.cli.shared.output import Column
from seaweedq.cli.sql_database import literal

if TYPE_CHECKING:
    import duckdb

_FLOATS = ("float", "double")
_NESTED = ("list", "array", "struct", "map")


def finite(connection: "duckdb.DuckDBPyConnection", statement: str) -> str:
    """Returns the statement with null for each float that is not finite; as it is where it finds no floats."""
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
    """Returns the expression of a value without NaN and infinity."""
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


if TYPE_CHECKING:
    import duckdb

R = TypeVar("R")
_NUMBERS = ("INT", "DOUBLE", "FLOAT", "DECIMAL")


def interruptible(connection: "duckdb.DuckDBPyConnection", work: Callable[[], R]) -> R:
    """Returns what `work` does with the connection, in a thread: amid a call of DuckDB a signal would wait for its end.
    An interrupt ends the statement."""
    with ThreadPoolExecutor(1) as thread:
        working = thread.submit(work)
        try:
            return working.result()
        except KeyboardInterrupt:
            connection.interrupt()
            raise


class Shown(NamedTuple):
    """The first rows that a statement finds, and whether there are more."""

    head: list[Column]
    rows: list[list[str]]
    more: bool


def table(connection: "duckdb.DuckDBPyConnection", statement: str, most: int) -> Shown:
    """Returns the first rows. DuckDB makes the texts: for a time of Python's it needs pytz, which no extra has, and
    Python has none for `infinity`."""
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
    return Shown(head, [[value or "" for value in row] for row in rows[:most]], len(rows) > most)


def write(connection: "duckdb.DuckDBPyConnection", statement: str, format: str, path: Path) -> None:
    """Writes all rows to a file, which is there only when it is whole."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        connection.execute(_copy(connection, statement, format, draft))
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def stream(connection: "duckdb.DuckDBPyConnection", statement: str, format: str) -> None:
    """Writes all rows to stdout. Raises OSError where it takes no more."""
    import duckdb

    with tempfile.TemporaryDirectory(prefix="seaweedq-sql-") as folder:
        pipe = Path(folder) / "pipe"
        os.mkfifo(pipe)
        copying = _Copying(pipe)
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


class _Copying(threading.Thread):
    """Copies what comes through a named pipe to stdout."""

    def __init__(self, pipe: Path) -> None:
        super().__init__(daemon=True)
        self._pipe = pipe
        self.failure: OSError | None = None

    def run(self) -> None:
        """Copies until the writer closes the pipe, or stdout takes no more."""
        with self._pipe.open("rb") as source:
            try:
                shutil.copyfileobj(source, sys.stdout.buffer)
                sys.stdout.buffer.flush()
            except OSError as error:
                self.failure = error

    def end(self) -> None:
        """Waits for what was written; where DuckDB never opened the pipe, opens it in its place."""
        os.close(os.open(self._pipe, os.O_RDWR))
        self.join()


def _copy(connection: "duckdb.DuckDBPyConnection", statement: str, format: str, path: Path) -> str:
    if format == "json":
        statement = finite(connection, statement)
    options = ", HEADER" if format == "csv" else ""
    return f"COPY (FROM ({statement}\n)) TO {literal(str(path))} (FORMAT {format}{options}, USE_TMP_FILE false)"

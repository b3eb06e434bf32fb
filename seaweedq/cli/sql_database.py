"""An in-memory DuckDB database whose views are topics.

Before each statement, the topics that the statement names are planned again and their tails are fetched, so the
statement sees everything acknowledged when it began. Tails are copied into DuckDB piece by piece. DuckDB reads the
files itself, within its memory limit, and spills to a temporary folder. Files on S3 are read by s3fs with the caller's
credentials.

A view has exactly the rows of one plan (`client.core.table`): whole files, ranges of offsets in files, and the tail,
without rows that had expired when the plan was made. So a view includes every message acknowledged at that moment
exactly once, whatever brokers flush in the meantime."""

import os
import random
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import typer

from seaweedq.cli.shared.common import complain, counted
from seaweedq.errors import ClientError, InvalidName, InvalidRequest, TopicNotFound
from seaweedq.extras import install_command, needs

if TYPE_CHECKING:
    from seaweedq.client.core.table import FilePart, TableRead

_HIVE = "hive_partitioning = true, hive_types = {'segment': INTEGER}"


def quoted(name: str) -> str:
    """Quotes a name for SQL, whatever its characters."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Quotes text for SQL."""
    return "'" + text.replace("'", "''") + "'"


def view(read: "TableRead", root: str, tail: str) -> str:
    """Returns the SELECT for a topic, given the folder of its files and the table with its tail."""
    whole = [part for part in read.files if part.is_whole]
    earlier: dict[str, list[str]] = {}  # under which files of earlier versions of the schema have the values
    if read.has_versions:
        from seaweedq.segments.evolution import distinct

        earlier = {one: distinct(one, names) for one, names in read.aliases.items() if one in read.columns.names}
    pairs = [(name, one) for name, names in earlier.items() for one in names]
    more = "".join(f", CASE WHEN false THEN {quoted(name)} END AS {quoted(one)}" for name, one in pairs)
    selects = [f"SELECT *{more} FROM {tail}"]
    if whole:
        by_name = ", union_by_name = true" if read.has_versions else ""  # of columns, for which it opens all files
        selects.append(f"SELECT * FROM {_parquet(root, whole, by_name)}")
    for part in read.files:
        if not part.is_whole:
            within = f"_offset >= {part.start} AND _offset < {part.end}"
            selects.append(f"SELECT * FROM {_parquet(root, [part])} WHERE {within}")
    columns = ", ".join(_first_of(name, earlier.get(name, ())) for name in read.columns.names)
    kept = f" WHERE _expires IS NULL OR _expires > TIMESTAMPTZ '{read.as_of.isoformat()}'" if read.as_of else ""
    return f"SELECT {columns} FROM ({' UNION ALL BY NAME '.join(selects)}){kept}"


def _first_of(name: str, others: Sequence[str]) -> str:
    """Returns the one of these columns that has a value, as the column of a name."""
    names = [quoted(one) for one in (name, *others)]
    return f"coalesce({', '.join(names)}) AS {names[0]}" if others else names[0]


def _parquet(root: str, parts: Sequence["FilePart"], more: str = "") -> str:
    files = ", ".join(literal(f"{root}/{part.file.path}") for part in parts)
    return f"read_parquet([{files}], {_HIVE}{more})"


def explained(read: "TableRead") -> Iterator[str]:
    """Describes, line by line, where the rows of a topic come from."""
    rows = sum(part.end - part.start for part in read.files)
    size, tail = sum(part.file.bytes for part in read.files), sum(map(len, read.tail))
    whole = f"{counted(rows, 'row')} of {counted(len(read.files), 'file')} ({counted(size, 'byte')})"
    yield f"{read.topic}: {whole} in {read.folder}"
    for part in read.files:
        some = "" if part.is_whole else f", of which offsets {part.start:,} to {part.end - 1:,}"
        count = part.file.next_offset - part.file.first_offset
        yield f"  {part.file.path}  {counted(count, 'row')}, {counted(part.file.bytes, 'byte')}{some}"
    yield f"{read.topic}: {counted(tail, 'row')} from brokers, not in files yet"
    for one in read.tail:
        yield f"  segment {one.segment}  offsets {one.start:,} to {one.end - 1:,}"
    if read.as_of:
        yield f"{read.topic}: rows that expired at {read.as_of.isoformat()} or earlier are left out"


if TYPE_CHECKING:
    import duckdb

    from seaweedq.client.core.calls import Expired
    from seaweedq.client.core.table import TableRead
    from seaweedq.client.sync.transport import SyncTransport

PATIENCE_S = 30.0
PAUSES_S = (0.1, 0.3, 1.0, 3.0)  # between two looks for the newest version of a schema
PIECE_ROWS = 100_000  # of a tail, that are Arrow at a time
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_TRACEBACK = "Traceback (most recent call last)"
_TAILS = "tails"  # a database of its own, so that SHOW TABLES lists topics alone
_TOPICS = "topics"  # a schema for topics that have the name of a view of DuckDB, which comes first without a schema
_OF_ALL = re.compile(r"\b(show|describe|information_schema|duckdb_\w+)\b", re.IGNORECASE)
_WORDS = re.compile(r"""\"(?:[^"]|"")+"|'[^']*'|\w+""")
_NO_COLUMN = re.compile(r'Referenced column "([^"]+)" not found')
_UNQUOTED = re.compile(r"\b(?:from|join|describe|summarize)\s+([a-z0-9_]+[-.][a-z0-9_.-]+)", re.IGNORECASE)


class Database:
    """Runs statements over the topics of a cluster."""

    def __init__(
        self, connection: "duckdb.DuckDBPyConnection", transport: "SyncTransport", endpoint: str, expired: "Expired"
    ) -> None:
        self._connection, self._transport, self._endpoint, self._expired = connection, transport, endpoint, expired
        self._filesystems: set[str] = set()
        self._left_out: set[str] = set()  # topics of which it was said
        own = "SELECT lower(view_name) FROM duckdb_views() WHERE internal"
        self._own = {name for (name,) in connection.execute(own).fetchall()}  # DuckDB's
        self.unknown: set[str] = set()  # names in the last statement that are no topics, and perhaps no tables either

    def single(self, text: str) -> str:
        """Returns the only statement of a text, without its terminator. Raises InvalidRequest for several statements,
        or none."""
        import duckdb

        try:
            found = duckdb.extract_statements(text)
        except duckdb.Error as error:
            raise refused(error, text) from None
        if len(found) != 1:
            raise InvalidRequest(f"the SQL text has {len(found)} statements; give exactly one statement")
        return str(found[0].query).strip().rstrip(";")

    def planned(self, statement: str) -> "list[TableRead]":
        """Returns the plans of the topics that a statement names. Raises InvalidRequest for invalid SQL."""
        return [self._planned(topic) for topic in self._topics(statement)]

    def _planned(self, topic: str) -> "TableRead":
        """Returns a topic's plan in which no file is of a later version than the columns: DuckDB finds columns by their
        names, and would show null in renamed ones. Raises ClientError if the broker does not learn the version."""
        from seaweedq.client.core.table import ReadOptions, plan_table

        wanted = ReadOptions(live=True, expired=self._expired)
        for pause_s in PAUSES_S:
            read = self._transport.run(plan_table(topic, wanted))
            if not read.is_behind:
                return read
            time.sleep(pause_s)
        raise ClientError(
            f"the broker does not know the newest version of the schema of topic {topic!r} yet; "
            "run the statement again",
            name=topic,
        )

    @contextmanager
    def over(
        self, statement: str, tails: bool = True
    ) -> "Iterator[tuple[duckdb.DuckDBPyConnection, Sequence[TableRead]]]":
        """Creates the views of the topics that a statement names. Yields the connection and the plans. Without `tails`,
        the views contain only rows in files."""
        reads = self.planned(statement)
        try:
            for number, read in enumerate(reads):
                tail = self._tail(f"tail {number}", read, tails)
                select = view(read, self._root(read), tail)
                self._connection.execute(f"CREATE VIEW {self._name(read.topic)} AS {select}")
            yield self._connection, reads
        finally:
            for number, read in enumerate(reads):
                self._connection.execute(f"DROP VIEW IF EXISTS {self._name(read.topic)}")
                self._connection.execute(f"DROP TABLE IF EXISTS {_TAILS}.{quoted(f'tail {number}')}")

    def _name(self, topic: str) -> str:
        """Returns the name of a topic's view."""
        return f"{_TOPICS}.{quoted(topic)}" if topic.lower() in self._own else quoted(topic)

    def _topics(self, statement: str) -> list[str]:
        """Returns the topics that a statement names: exact names first, then names that differ only in case, because
        SQL ignores case. A statement that lists tables names all topics."""
        import duckdb

        try:
            named = set(self._connection.get_table_names(statement))
        except duckdb.Error:  # it also looks for the columns of USING, in tables that are not there yet
            return _distinct(self._listed({text.strip("\"'").lower() for text in _WORDS.findall(statement)}))
        found = sorted(filter(self._is_topic, named))
        if not found and _OF_ALL.search(statement):
            return self._all()
        lower = {name.lower() for name in named} - {name.lower() for name in found}
        found += self._listed(lower) if lower else []
        self.unknown = lower - {name.lower() for name in found}
        return _distinct(found)

    def _all(self) -> list[str]:
        """Returns all topics that can be views at the same time, and reports once which cannot."""
        taken = {
            name: f"DuckDB has a table with that name; read the topic with FROM {_TOPICS}.{name}" for name in self._own
        }
        topics = []
        for topic in self._listed():
            if reason := taken.get(topic.lower()):
                if topic not in self._left_out:
                    self._left_out.add(topic)
                    complain(f"topic {topic!r} is left out; {reason}")
            else:
                topics.append(topic)
                taken[topic.lower()] = f"SQL cannot tell it from {topic!r}: name only one of them"
        return topics

    def _is_topic(self, name: str) -> bool:
        from seaweedq.client.core.calls import call, topic_path

        with suppress(TopicNotFound, InvalidName):
            return bool(self._transport.run(call("GET", topic_path(name))))
        return False

    def _listed(self, lower: set[str] | None = None) -> list[str]:
        """Returns all topics, or the topics with these lower-case names."""
        from seaweedq.client.core.calls import pages

        known = [str(one["name"]) for one in self._transport.run(pages("/v1/topics", "topics"))]
        return [name for name in known if lower is None or name.lower() in lower]

    def _tail(self, name: str, read: "TableRead", filled: bool) -> str:
        """Creates a table with the topic's rows that are not in files, and returns its name. Only one range at a time
        is in memory as Arrow."""
        from seaweedq.client.core.attempts import Patience
        from seaweedq.client.core.table import tail_batches

        table, patience = f"{_TAILS}.{quoted(name)}", Patience(PATIENCE_S, time.monotonic, random.random)
        self._insert(f"CREATE TABLE {table} AS FROM arrow", read.table([]))
        for rows in read.tail if filled else ():
            for piece in rows.cut(PIECE_ROWS):
                self._insert(
                    f"INSERT INTO {table} FROM arrow",
                    read.table(self._transport.run(tail_batches(read, piece, patience))),
                )
        return table

    def _insert(self, into: str, rows: Any) -> None:
        self._connection.register("arrow", rows)
        try:
            self._connection.execute(into)
        finally:
            self._connection.unregister("arrow")

    def _root(self, read: "TableRead") -> str:
        """Returns the folder of a topic's files, as DuckDB can open it."""
        scheme, _, path = read.folder.partition("://")
        if scheme == "file":
            return path
        if scheme not in self._filesystems:
            import fsspec

            endpoint = self._endpoint or self._told_endpoint(read.topic)
            options: Mapping[str, Any] = {"endpoint_url": endpoint} if endpoint else {}
            try:
                store = fsspec.filesystem(scheme, use_listings_cache=False, **options)
            except ImportError:
                raise ClientError(f"reading {read.folder} needs s3fs: {install_command('s3')}") from None
            self._connection.register_filesystem(store)
            self._filesystems.add(scheme)
        return read.folder

    def _told_endpoint(self, topic: str) -> str:
        """Returns the store's URL from the environment, or else from the brokers, which may reach the store in another
        way."""
        from seaweedq.client.core.calls import call, topic_path

        if any(os.environ.get(name) for name in _ENDPOINTS):
            return ""
        return self._transport.run(call("GET", topic_path(topic))).get("store_endpoint") or ""


@contextmanager
def opened(transport: "SyncTransport", memory: str, endpoint: str, expired: "Expired" = "skip") -> Iterator[Database]:
    """Opens a database. Raises MissingExtra without DuckDB, and BadParameter for an invalid memory size."""
    with needs("sql", "seaweedq sql"):
        import duckdb
    with tempfile.TemporaryDirectory(prefix="seaweedq-sql-") as spill:
        # Without the first setting DuckDB would take a variable of this program for a table of that name.
        connection = duckdb.connect(config={"python_enable_replacements": "false", "temp_directory": spill})
        try:
            if memory:
                _limit(connection, memory)
            connection.execute(f"ATTACH ':memory:' AS {_TAILS}; CREATE SCHEMA {_TOPICS}")
            yield Database(connection, transport, endpoint, expired)
        finally:
            connection.close()


def _limit(connection: "duckdb.DuckDBPyConnection", memory: str) -> None:
    import duckdb

    try:
        connection.execute(f"SET memory_limit = {literal(memory)}")
    except duckdb.Error as error:
        raise typer.BadParameter(f"{memory!r}: {error}", param_hint="--memory") from None


def _distinct(topics: Sequence[str]) -> list[str]:
    """Returns the topics if DuckDB can distinguish their names. Raises InvalidRequest if names differ only in case."""
    by_name: dict[str, str] = {}
    for topic in topics:
        other = by_name.setdefault(topic.lower(), topic)
        if other != topic:
            raise InvalidRequest(
                f"SQL ignores case, so it cannot distinguish the topics {other!r} and {topic!r}; use "
                "only one of these topics"
            )
    return list(by_name.values())


def refused(error: Exception, statement: str) -> InvalidRequest:
    """Returns the error for a statement that DuckDB refuses."""
    told, line, excerpt = str(error).partition("\nLINE ")
    if (found := _NO_COLUMN.search(told)) and '"value"' in told:
        told += f"; the fields of a json topic are in value, such as value->>'{found[1]}'"
    return InvalidRequest(" ".join(told.split()) + unquoted(statement), excerpt=(line + excerpt).strip("\n"))


def of_store(error: Exception) -> str | None:
    """Returns why a file could not be read; None for an error with another cause. DuckDB passes on errors of s3fs as
    the text of a traceback at the very start; a traceback later in the text means that DuckDB lacks a package."""
    import duckdb

    text = str(error)
    if text.startswith(_TRACEBACK):
        lines = text.partition("\nLINE 1:")[0].splitlines()
        return next((line for line in reversed(lines) if line and not line.startswith(" ")), text)
    return " ".join(text.split()) if isinstance(error, duckdb.IOException | FileNotFoundError) else None


def unquoted(statement: str) -> str:
    """Returns a hint for a name that SQL parses as several names, such as app.logs or app-logs; empty without such a
    name."""
    found = _UNQUOTED.search(statement)
    return f"; put a name with - or . in quotes: {quoted(found[1])}" if found else ""

"""A topic as SQL: names, parts of files, and where the rows come from."""

from datetime import UTC, datetime
from types import SimpleNamespace

import duckdb
import pyarrow as pa
import pytest

from seaweedq.cli import sql_database
from seaweedq.cli.sql_database import Database, explained, literal, quoted, unquoted, view
from seaweedq.client.core.calls import TopicFile
from seaweedq.client.core.table import FilePart, Rows, TableRead
from seaweedq.errors import ClientError

SCHEMA = pa.schema([("_offset", pa.int64()), ("segment", pa.int32())])


def part(name: str, start: int, end: int, first: int = 0) -> FilePart:
    """Rows of a file of ten rows."""
    return FilePart(TopicFile(3, name, first, first + 10, 1_000, None, None), start, end)


def test_names_and_texts_with_quotes() -> None:
    assert quoted('a-b."c') == '"a-b.""c"'
    assert literal("it's") == "'it''s'"


def test_whole_files_are_one_scan_and_a_part_has_its_offsets() -> None:
    read = TableRead("t", SCHEMA, SCHEMA, "file:///x/t", [part("a", 0, 10), part("b", 15, 20, 10)], [])
    select = view(read, "/x/it's", "tails.t")
    assert "read_parquet(['/x/it''s/segment=3/a']," in select
    assert "read_parquet(['/x/it''s/segment=3/b']," in select
    assert "WHERE _offset >= 15 AND _offset < 20" in select
    assert select.startswith('SELECT "_offset", "segment" FROM (SELECT * FROM tails.t UNION ALL BY NAME ')


def test_files_of_a_later_version_are_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    late = FilePart(TopicFile(3, "a", 0, 10, 1_000, 2, None), 0, 10)
    reads = [TableRead("t", SCHEMA, SCHEMA, "file:///x/t", [late], [], schema_id=version) for version in (1, 1, 2)]
    runs, pauses = [*reads], list[float]()
    monkeypatch.setattr(sql_database, "time", SimpleNamespace(sleep=pauses.append))  # py4j has a thread that sleeps
    with duckdb.connect() as connection:
        database = Database(connection, SimpleNamespace(run=lambda _: runs.pop(0)), "", "skip")  # type: ignore[arg-type]
        monkeypatch.setattr(database, "_topics", lambda _: ["t"])
        assert database.planned("FROM t") == reads[2:]
        assert len(pauses) == 2
        runs += [reads[0]] * 10
        with pytest.raises(ClientError, match="does not know the newest version of the schema of topic 't' yet"):
            database.planned("FROM t")


def test_rows_that_have_expired_are_left_out_of_all_parts() -> None:
    read = TableRead("t", SCHEMA, SCHEMA, "file:///x/t", [], [], datetime(2026, 1, 31, 12, tzinfo=UTC))
    condition = "_expires IS NULL OR _expires > TIMESTAMPTZ '2026-01-31T12:00:00+00:00'"
    assert view(read, "/x", "tails.t").endswith(f"FROM (SELECT * FROM tails.t) WHERE {condition}")
    assert list(explained(read))[-1] == "t: rows that expired at 2026-01-31T12:00:00+00:00 or earlier are left out"


def test_a_plan_is_told_with_files_and_rows_of_brokers() -> None:
    read = TableRead("t", SCHEMA, SCHEMA, "file:///x/t", [part("a", 0, 10), part("b", 15, 20, 10)], [Rows(4, 7, 9)])
    assert list(explained(read)) == [
        "t: 15 rows of 2 files (2,000 bytes) in file:///x/t",
        "  segment=3/a  10 rows, 1,000 bytes",
        "  segment=3/b  10 rows, 1,000 bytes, of which offsets 15 to 19",
        "t: 2 rows from brokers, not in files yet",
        "  segment 4  offsets 7 to 8",
    ]


def test_a_name_that_sql_takes_for_several_is_told_in_quotes() -> None:
    assert unquoted("select * from app.logs where x") == '; put a name with - or . in quotes: "app.logs"'
    assert unquoted("FROM my-topic") == '; put a name with - or . in quotes: "my-topic"'
    assert unquoted('from "app.logs" join other on true') == ""

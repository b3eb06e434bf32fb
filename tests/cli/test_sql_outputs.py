"""What a statement finds: as a table, with the texts of all of DuckDB's types, and as JSON, which has neither NaN nor
infinity; and Ctrl-C while DuckDB runs a statement.
"""

import json
import os
import signal
import threading
from pathlib import Path

import pytest

from seaweedq.cli.sql import (
    interruptible,
    table,
    write,
)
from seaweedq.cli.sql_database import of_store

duckdb = pytest.importorskip("duckdb")


MISSES = "Invalid Input Error: Required module 'pytz' failed to import, due to the following Python exception:\n"
TRACEBACK = 'Traceback (most recent call last):\n  File "send.py", line 364, in send\n'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("timestamptz '2026-01-31 12:00:00.5+01'", "2026-01-31 11:00:00.5+00"),
        ("timestamp 'infinity'", "infinity"),  # Python has no such time
        ("date '0044-03-15 (BC)'", "0044-03-15 (BC)"),
        ("timetz '12:00:00+02'", "12:00:00+02"),
        ("interval 90 minute", "01:30:00"),
        ("170141183460469231731687303715884105727", "170141183460469231731687303715884105727"),
        ("1.50::decimal(5, 2)", "1.50"),
        ("{'at': [timestamptz '2026-01-31 12:00:00+00']}", "{'at': ['2026-01-31 12:00:00+00']}"),
        ("'\\xAA\\x00'::blob", "\\xAA\\x00"),
        ("'a\tb'", "a\tb"),  # escaped where it is printed
        ("NULL", ""),
        ("true", "true"),
    ],
)
def test_each_value_is_the_text_that_duckdb_makes(value: str, text: str) -> None:
    connection = duckdb.connect()
    shown = table(connection, f"SELECT {value} AS v, 2 AS v -- a comment", 10)
    assert (shown.rows, shown.more) == ([[text, "2"]], False)


@pytest.mark.parametrize(
    "statement", ["SHOW TABLES", "DESCRIBE t", "EXPLAIN FROM t", "CREATE TABLE u AS FROM t", "FROM t LIMIT 0"]
)
def test_a_statement_that_is_no_query_is_a_table_too(statement: str) -> None:
    connection = duckdb.connect()
    connection.execute("CREATE TABLE t AS SELECT 1 AS a")
    shown = table(connection, statement, 10)
    assert shown.head
    assert not shown.more


def test_rows_beyond_the_bound_are_left_out_and_told_of() -> None:
    shown = table(duckdb.connect(), "FROM range(5) ORDER BY range DESC", 2)
    assert ([column.name for column in shown.head], shown.rows, shown.more) == (["range"], [["4"], ["3"]], True)


def test_a_package_that_duckdb_misses_is_no_file_that_is_missing() -> None:
    missing = TRACEBACK + "ModuleNotFoundError: No module named 'pytz'"
    assert of_store(duckdb.InvalidInputException(MISSES + missing)) is None
    refused = TRACEBACK + "EndpointConnectionError: Could not connect"
    assert of_store(duckdb.Error(refused)) == "EndpointConnectionError: Could not connect"


INF, NAN = "'inf'::double", "'nan'::float"


@pytest.mark.parametrize(
    ("statement", "row"),
    [
        (f'SELECT {INF} AS a, 1.5 AS b, {NAN} AS "c""d"', {"a": None, "b": 1.5, 'c"d': None}),
        (
            f"SELECT [1.0, {INF}] AS l, [[{NAN}], NULL] AS n, NULL::double[] AS e",
            {"l": [1, None], "n": [[None], None], "e": None},
        ),
        (f"SELECT {{'x': {NAN}, 'y z': 1}} AS s, NULL::STRUCT(x double) AS t", {"s": {"x": None, "y z": 1}, "t": None}),
        (
            f"SELECT MAP {{'k': {INF}, 'l': 2.0}} AS m, [{INF}, 2]::double[2] AS a",
            {"m": {"k": None, "l": 2}, "a": [None, 2]},
        ),
        ("SELECT 'Infinity' AS a, 1 AS b -- a comment", {"a": "Infinity", "b": 1}),
        (f"SELECT {NAN} AS a -- a comment", {"a": None}),
    ],
)
def test_a_float_that_json_has_not_is_null(tmp_path: Path, statement: str, row: object) -> None:
    write(duckdb.connect(), statement, "json", tmp_path / "out.json")
    assert [json.loads(line) for line in (tmp_path / "out.json").read_text().splitlines()] == [row]


ENDLESS = "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE hash(a.range, b.range) % 7 = 3"


def test_a_long_statement_is_ended_and_leaves_no_file(tmp_path: Path) -> None:
    connection = duckdb.connect()
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        interruptible(connection, lambda: write(connection, ENDLESS, "csv", tmp_path / "out.csv"))
    assert not [*tmp_path.iterdir()]

"""JSON of results that have NaN and infinities."""

import json
from pathlib import Path

import pytest

duckdb = pytest.importorskip("duckdb")
from seaweedq.cli.sql_outputs import write  # noqa: E402

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

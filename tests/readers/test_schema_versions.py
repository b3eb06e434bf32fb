"""A topic whose schema has changed, as bare readers of its directory see it, and as our own readers do: each row that
there was, in the newest columns.
"""

import json
import shutil
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import fsspec
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql.functions import coalesce
from typer.testing import CliRunner

from seaweedq import Client
from seaweedq.cli.main import app
from seaweedq.cli.topic.directory import calls
from seaweedq.spark import read_topic
from tests.support.fixtures.services import s3_server
from tests.support.processes.broker_process import BrokerProcess
from tests.support.readers.topic_readers import QUEUE_COLUMNS, READERS, spark_reader

pytestmark = pytest.mark.process

BEFORE = [
    {"id": 1, "name": "i", "required": True, "type": "int"},
    {"id": 2, "name": "f", "required": False, "type": "float"},
    {"id": 3, "name": "d", "required": False, "type": "decimal(5, 2)"},
    {"id": 5, "name": "gone", "required": True, "type": "string"},
    {"id": 7, "name": "delay", "required": True, "type": "int"},
]
AFTER = [
    {"id": 3, "name": "d", "required": False, "type": "decimal(20, 2)"},
    {"id": 1, "name": "i", "required": False, "type": "long"},
    {"id": 2, "name": "f", "required": False, "type": "double"},
    {"id": 6, "name": "added", "required": False, "type": "string"},
    {"id": 7, "name": "late", "required": True, "type": "long"},
]
FIELDS = [
    pa.field("d", pa.decimal128(20, 2)),
    pa.field("i", pa.int64()),
    pa.field("f", pa.float64()),
    pa.field("added", pa.string()),
    pa.field("late", pa.int64()),
]
BARE = {"i": 1, "f": 0.5, "d": Decimal("1.25"), "added": None, "late": None}  # by readers that know no ids
OLD = {**BARE, "late": 7}
NEW = {"i": 2**40, "f": 0.1, "d": Decimal("12345678.25"), "added": "x", "late": 2**41}
NAMES = ["d", "i", "f", "added", "late"]
QUEUE_NAMES = [field.name for field in QUEUE_COLUMNS]
PLAIN = ["pandas", "pyarrow dataset", "pyarrow read_table"]  # right by their most ordinary calls


def schema(fields: list[dict[str, Any]]) -> dict[str, Any]:
    """A schema of these fields."""
    return {"type": "struct", "fields": fields}


@pytest.fixture(scope="session")
def grown(client: Client) -> str:
    """A topic with a row of each version in a file, and two more in the tail."""
    return grow(client)


def grow(client: Client) -> str:
    """Makes such a topic."""
    client.create_topic("grown", format="typed", schema={**schema(BEFORE), "schema-id": 0})
    client.publish("grown", {"value": {"i": 1, "f": 0.5, "d": "1.25", "gone": "y", "delay": 7}})
    client.flush("grown")
    client.publish("grown", {"value": {"i": 1, "f": 0.5, "d": "1.25", "gone": "y", "delay": 7}})
    assert client.update_topic("grown", schema=schema(AFTER), if_schema_id=0)["schema_id"] == 1
    value = {**NEW, "d": str(NEW["d"])}
    client.publish("grown", {"value": value})
    client.flush("grown")
    client.publish("grown", {"value": value})
    return "grown"


@pytest.mark.parametrize("name", PLAIN)
def test_bare_readers_see_all_rows_in_the_newest_columns(
    name: str, grown: str, directory: Callable[[str], str]
) -> None:
    rows = READERS[name].rows(directory(grown), *FIELDS)
    assert rows.select(NAMES).to_pylist() == [BARE, BARE, NEW]


@pytest.mark.spark
def test_spark_sees_all_rows_in_the_newest_columns(spark: Any, grown: str, directory: Callable[[str], str]) -> None:
    rows = spark_reader(spark).rows(directory(grown), *FIELDS)
    assert rows.select(NAMES).to_pylist() == [BARE, BARE, NEW]
    whole = spark.read.parquet(directory(grown)).schema.add("delay", "long")
    both = spark.read.schema(whole).parquet(directory(grown)).orderBy("segment", "_offset")
    found = both.selectExpr("d", "i", "f", "added", "coalesce(late, delay) AS late").collect()
    assert [row.asDict() for row in found] == [OLD, OLD, NEW]


def test_duckdb_and_polars_see_them_by_the_calls_of_the_documentation(
    grown: str, directory: Callable[[str], str]
) -> None:
    files = f"{directory(grown)}/**/*.parquet"
    read = f"read_parquet('{files}', hive_partitioning = true, union_by_name = true)"
    late = "coalesce(late, delay) AS late"
    table = duckdb.sql(f"SELECT i, f, d, added, {late} FROM {read} ORDER BY segment, _offset").to_arrow_table()
    assert table.to_pylist() == [OLD, OLD, NEW]
    casts = pl.ScanCastOptions(integer_cast="upcast", float_cast="upcast")
    more: Any = {"missing_columns": "insert", "extra_columns": "ignore", "cast_options": casts}
    found = pl.scan_parquet(files, hive_partitioning=True, **more).sort("segment", "_offset").collect()
    assert found.columns == [*(name for name in QUEUE_NAMES), *NAMES, "segment"]
    assert found.select(NAMES).to_dicts() == [BARE, BARE, NEW]
    shown = duckdb.sql(f"SELECT gone FROM {read} ORDER BY segment, _offset").fetchall()
    assert shown == [("y",), ("y",), (None,)], "as the documentation and the warnings say"


def test_our_own_readers_see_them_also_those_in_no_file(grown: str, client: Client) -> None:
    table = client.read_table(grown, live=True).sort_by("_offset")
    assert table.schema.field("i").type == pa.int64()
    assert table.column_names == [*QUEUE_NAMES, *NAMES, "segment"]
    assert table.select(NAMES).to_pylist() == [OLD, OLD, NEW, NEW]


def test_sql_sees_them(grown: str, server: BrokerProcess) -> None:
    statement = f"SELECT i, f, added, late FROM {grown} ORDER BY _offset"
    ended = CliRunner().invoke(app, ["sql", statement, "-o", "json", "--url", server.url])
    assert ended.exit_code == 0, ended.output
    rows = [json.loads(line) for line in ended.stdout.splitlines()]
    assert rows == [{name: row[name] for name in ("i", "f", "added", "late")} for row in (OLD, OLD, NEW, NEW)]


@pytest.mark.spark
def test_spark_tables_and_the_source_see_them(spark: Any, grown: str, server: BrokerProcess) -> None:
    frames = [
        read_topic(spark, grown, server.url),
        spark.read.format("seaweedq").option("url", server.url).option("topic", grown).load(),
    ]
    for frame in frames:
        assert "gone" not in frame.columns
        rows = [row.asDict() for row in frame.orderBy("_offset").select(NAMES).collect()]
        assert rows == [OLD, OLD, NEW, NEW]
    frame = read_topic(spark, grown, store=f"file://{server.store}", tail="skip")
    assert "gone" not in frame.columns
    assert [row.asDict() for row in frame.orderBy("_offset").select(NAMES).collect()] == [OLD, OLD, NEW]


@pytest.mark.service
def test_they_are_the_same_on_s3(broker_process: Callable[..., BrokerProcess], request: pytest.FixtureRequest) -> None:
    server = s3_server(request, "moto_server")
    store = f"{server.place()}/prod"
    broker = broker_process("--store", f"s3://{store}", "--s3-endpoints", server.endpoint, env=server.env)
    bucket = fsspec.filesystem("s3", endpoint_url=server.endpoint, use_listings_cache=False)
    with Client(broker.url) as client:
        topic = grow(client)
        table = ds.dataset(f"{store}/topics/{topic}", filesystem=bucket, partitioning="hive").to_table()
        assert table.sort_by("_offset").select(NAMES).to_pylist() == [BARE, BARE, NEW]
        duckdb.register_filesystem(bucket)
        files = f"s3://{store}/topics/{topic}/**/*.parquet"
        read = f"read_parquet('{files}', hive_partitioning = true, union_by_name = true)"
        late = "coalesce(late, delay) AS late"
        found = duckdb.sql(f"SELECT i, f, d, added, {late} FROM {read} ORDER BY _offset").to_arrow_table()
        assert found.to_pylist() == [OLD, OLD, NEW]
        duckdb.unregister_filesystem("s3")
        assert client.read_table(topic, live=True).sort_by("_offset").select(NAMES).to_pylist() == [OLD, OLD, NEW, NEW]


def test_a_verification_finds_nothing(grown: str, server: BrokerProcess) -> None:
    ended = CliRunner().invoke(app, ["verify", grown, "--url", server.url])
    assert ended.exit_code == 0, ended.output


@pytest.mark.spark
def test_topic_show_prints_calls_that_read_all_versions(
    spark: Any, grown: str, client: Client, server: BrokerProcess, tmp_path: Path
) -> None:
    ended = CliRunner().invoke(app, ["topic", "show", grown, "--url", server.url])
    assert ended.exit_code == 0, ended.output
    facts = client.topic(grown)
    printed = calls(facts)
    assert [reader for reader, _ in printed] == ["pyarrow", "DuckDB", "Polars", "Spark"]
    for reader, text in printed:
        assert f"# {reader}\n{text}" in ended.stdout
    without = tmp_path / "topic"  # of which retention has deleted all files with the earlier name
    shutil.copytree(facts["path"].removeprefix("file://"), without)
    for file in without.rglob("segment=[0-9]*/*.parquet"):
        if "delay" in pq.read_schema(file).names:
            file.unlink()
    for some, expected in ((printed, [OLD, OLD, NEW]), (calls({**facts, "path": without.as_uri()}), [NEW])):
        for reader, text in some:
            names = {"spark": spark, "ds": ds, "pa": pa, "pc": pc, "duckdb": duckdb, "pl": pl, "coalesce": coalesce}
            exec(text, names)
            rows = names["rows"]
            if isinstance(rows, pl.LazyFrame):
                rows = rows.collect().to_arrow()
            elif not isinstance(rows, pa.Table):
                rows = rows.toArrow() if reader == "Spark" else rows.to_arrow_table()
            assert rows.sort_by("_offset").select(NAMES).to_pylist() == expected, reader
    assert calls({"schema": None, "path": "file:///x"}) == []


def test_printed_calls_tell_names_apart_that_differ_by_case(client: Client) -> None:
    topic = "by-case"
    client.create_topic(topic, format="typed", schema={"fields": [{"id": 1, "name": "City", "type": "string"}]})
    for version, name in enumerate(("City", "CITY", "city", "town")):
        if version:
            named = {"fields": [{"id": 1, "name": name, "type": "string"}]}
            client.evolve_schema(topic, named, if_schema_id=version - 1)
        client.publish(topic, {"value": {name: f"as {name}"}})
        client.flush(topic)
        for reader, text in calls(client.topic(topic))[:3] if version else ():
            names: dict[str, Any] = {"ds": ds, "pa": pa, "pc": pc, "duckdb": duckdb, "pl": pl}
            exec(text, names)
            rows = names["rows"]
            if not isinstance(rows, pa.Table):
                rows = rows.collect().to_arrow() if reader == "Polars" else rows.to_arrow_table()
            expected = [f"as {one}" for one in ("City", "CITY", "city", "town")[: version + 1]]
            assert rows.sort_by("_offset").column(name).to_pylist() == expected, (reader, name)

"""Each change of a schema and each reader: old rows before new ones in the order of files, and behind them."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import fsspec
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import S3FileSystem

from seaweedq import Client
from seaweedq.segments.keyrange import KEY_SPACE, hash_key
from tests.support.fixtures.services import s3_server
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.s3_service import KEY, SECRET, S3Service
from tests.support.readers.topic_readers import READERS, Reader, spark_reader
from tests.support.tiers import later, soaked

pytestmark = pytest.mark.process

KEYS = [
    next(key for key in map(str, range(100)) if (hash_key(key) >= KEY_SPACE // 2) == high) for high in (False, True)
]
A = {"name": "a", "type": "string"}
Change = tuple[
    list[dict[str, Any]], dict[str, Any], list[dict[str, Any]], dict[str, Any], dict[str, Any], list[pa.Field]
]


def of_types(old: str, new: str, before: Any, after: Any, kind: pa.DataType) -> Change:
    """A field that gets a wider type."""
    values = {"v": str(before) if isinstance(before, Decimal) else before}
    more = {"v": str(after) if isinstance(after, Decimal) else after}
    fields = [{"name": "v", "type": old}], [{"name": "v", "type": new}]
    return fields[0], values, fields[1], more, {"v": (before, after)}, [pa.field("v", kind)]


B = pa.field("b", pa.int32())
TEXT = pa.field("a", pa.string())
CHANGES: dict[str, Change] = {
    "add": ([A], {"a": "x"}, [{"name": "b", "type": "int"}, A], {"a": "y", "b": 1}, {"b": (None, 1)}, [B, TEXT]),
    "drop": ([A, {"name": "b", "type": "int"}], {"a": "x", "b": 1}, [A], {"a": "y"}, {"a": ("x", "y")}, [TEXT]),
    "order": (
        [A, {"name": "b", "type": "int"}],
        {"a": "x", "b": 1},
        [{"name": "b", "type": "int"}, A],
        {"a": "y", "b": 2},
        {"a": ("x", "y"), "b": (1, 2)},
        [B, TEXT],
    ),
    "optional": ([{**A, "required": True}], {"a": "x"}, [A], {}, {"a": ("x", None)}, [TEXT]),
    "int to long": of_types("int", "long", 7, 2**40, pa.int64()),
    "float to double": of_types("float", "double", 0.5, 0.1, pa.float64()),
    "rename": (
        [A, {"name": "b", "type": "int"}],
        {"a": "x", "b": 1},
        [{"id": 1, **A}, {"id": 2, "name": "c", "type": "int"}],
        {"a": "y", "c": 2},
        {"a": ("x", "y"), "c": (None, 2)},  # by readers that know no ids
        [TEXT, pa.field("c", pa.int32())],
    ),
    "decimal": of_types(
        "decimal(4, 2)", "decimal(20, 2)", Decimal("1.25"), Decimal("123456789.25"), pa.decimal128(20, 2)
    ),
}
PLACES = {"old first": (0, 1), "old last": (1, 0)}


PLAIN = ("pandas", "pyarrow dataset", "pyarrow read_table")
Rows = list[dict[str, Any]]


class Place:
    """Where a topic's directory is, for readers that list it: on this machine."""

    scheme = ""

    def __init__(self, path: str) -> None:
        self.path = path
        self.files = f"{self.scheme}{path}/**/*.parquet"

    @property
    def storage(self) -> dict[str, Any]:
        """Options of Polars."""
        return {}

    def reader(self, name: str) -> Reader:
        """A reader by its most ordinary call."""
        return READERS[name]

    def plain(self, name: str, columns: list[pa.Field], names: list[str]) -> Rows:
        return self.reader(name).rows(self.path, *columns).select(["segment", *names]).to_pylist()

    def duckdb(self, names: list[str], more: str = "") -> Rows:
        """As documented; `more` is another expression."""
        read = f"read_parquet('{self.files}', hive_partitioning = true, union_by_name = true)"
        columns = ", ".join(["segment", *names, *filter(None, [more])])
        return duckdb.sql(f"SELECT {columns} FROM {read} ORDER BY segment, _offset").to_arrow_table().to_pylist()

    def polars(self, names: list[str]) -> Rows:
        """As documented."""
        casts = pl.ScanCastOptions(integer_cast="upcast", float_cast="upcast")
        more: Any = {"missing_columns": "insert", "extra_columns": "ignore", "cast_options": casts, **self.storage}
        found = pl.scan_parquet(self.files, hive_partitioning=True, **more).sort("segment", "_offset")
        return found.select(["segment", *names]).collect().to_dicts()

    def remove(self, segment: int) -> None:
        """Deletes the files of a segment, as retention does."""
        for file in (Path(self.path) / f"segment={segment}").glob("*.parquet"):
            file.unlink()


class OnS3(Place):
    """In a bucket: pyarrow lists it by its own client, pandas and DuckDB by s3fs, and Polars by its own."""

    scheme = "s3://"

    def __init__(self, path: str, server: S3Service) -> None:
        super().__init__(path)
        self.bucket = fsspec.filesystem("s3", endpoint_url=server.endpoint, use_listings_cache=False)
        self.server = server
        where = {"endpoint_override": server.endpoint.removeprefix("http://"), "scheme": "http", "region": "us-east-1"}
        keys = {"access_key": KEY, "secret_key": SECRET}
        files = S3FileSystem(**where, **keys)
        duckdb.register_filesystem(self.bucket)
        self.opens: dict[str, Callable[[str], Any]] = {
            "pandas": lambda path: pd.read_parquet(f"s3://{path}", storage_options={"endpoint_url": server.endpoint}),
            "pyarrow dataset": lambda path: ds.dataset(path, filesystem=files, partitioning="hive").to_table(),
            "pyarrow read_table": lambda path: pq.read_table(path, filesystem=files),
        }

    @property
    def storage(self) -> dict[str, Any]:
        where = {"aws_endpoint_url": self.server.endpoint, "aws_region": "us-east-1", "aws_allow_http": "true"}
        return {"storage_options": {**where, "aws_access_key_id": KEY, "aws_secret_access_key": SECRET}}

    def reader(self, name: str) -> Reader:
        return replace(READERS[name], open=self.opens[name])

    def remove(self, segment: int) -> None:
        self.bucket.rm(self.bucket.glob(f"{self.path}/segment={segment}/*.parquet"))


def grown(client: Client, what: str, place: str, topic: str) -> list[dict[str, Any]]:
    """Makes a topic with a row of each version, in files of their own segments. Returns the rows in their order."""
    before, old, after, new, shown, _ = CHANGES[what]
    client.create_topic(topic, format="typed", schema={"fields": before}, initial_segments=2)
    first = client.segments(topic)[0]["id"]
    client.publish(topic, {"key": KEYS[PLACES[place][0]], "value": old})
    client.flush(topic)
    client.update_topic(topic, schema={"fields": after}, if_schema_id=0)
    client.publish(topic, {"key": KEYS[PLACES[place][1]], "value": new})
    client.flush(topic)
    rows = [
        {"segment": first + segment, **{name: pair[at] for name, pair in shown.items()}}
        for at, segment in enumerate(PLACES[place])
    ]
    return sorted(rows, key=lambda row: row["segment"])


def assert_read(client: Client, at: Place, what: str, topic: str, rows: Rows) -> None:
    """Each reader shows the rows, as the table says; also once retention has deleted the first of them."""
    names, columns = [*CHANGES[what][4]], CHANGES[what][5]
    for name in PLAIN:
        assert at.plain(name, columns, names) == rows, name
    assert at.duckdb(names) == at.polars(names) == rows
    known = [{**row, "c": 1 if row["c"] is None else row["c"]} for row in rows] if what == "rename" else rows
    if what == "rename":
        assert [row["c"] for row in at.duckdb([], "coalesce(c, b) AS c")] == [row["c"] for row in known]
    ours = client.read_table(topic).sort_by([("segment", "ascending"), ("_offset", "ascending")])
    assert ours.select(["segment", *names]).to_pylist() == known
    read: tuple[Callable[[], Any], ...] = (  # plain: an error, or all rows, whatever they show
        lambda: duckdb.sql(f"FROM read_parquet('{at.files}')").fetchall(),
        lambda: pl.read_parquet(at.files, **at.storage).rows(),
    )
    for one in read:
        try:
            count = len(one())
        except (duckdb.Error, pl.exceptions.PolarsError):
            continue
        assert count == 2
    at.remove(rows[0]["segment"])  # or the loss of either version's file
    for name in ("pandas", "pyarrow dataset"):
        assert at.plain(name, columns, names) == rows[1:], name
    assert at.duckdb(names) == at.polars(names) == rows[1:]


@pytest.mark.default
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("what", [*CHANGES][:2] + [later(one) for one in [*CHANGES][2:]])
def test_a_change_is_read_as_the_table_says(
    client: Client, directory: Callable[[str], str], what: str, place: str
) -> None:
    topic = f"{what}-{place}".replace(" ", "-")
    rows = grown(client, what, place, topic)
    assert_read(client, Place(directory(topic)), what, topic, rows)


@pytest.fixture(scope="module")
def on_s3(
    broker_processes: Callable[..., BrokerProcess], moto_server: S3Service
) -> Iterator[tuple[Client, Callable[[str], OnS3]]]:
    """A client of a broker on S3, and the places of its topics."""
    store = f"{moto_server.place()}/prod"
    broker = broker_processes("--store", f"s3://{store}", "--s3-endpoints", moto_server.endpoint, env=moto_server.env)
    with Client(broker.url) as client:
        yield client, lambda topic: OnS3(f"{store}/topics/{topic}", moto_server)


@pytest.mark.service
@pytest.mark.parametrize(
    ("what", "place"), [(soaked if at % 3 else later)(what, [*PLACES][at % 2]) for at, what in enumerate(CHANGES)]
)
def test_a_change_is_read_from_s3_as_the_table_says(
    on_s3: tuple[Client, Callable[[str], OnS3]], request: pytest.FixtureRequest, what: str, place: str
) -> None:
    client, places = on_s3
    s3_server(request, "moto_server")
    topic = f"{what}-{place}".replace(" ", "-")
    rows = grown(client, what, place, topic)
    try:
        assert_read(client, places(topic), what, topic, rows)
    finally:
        duckdb.unregister_filesystem("s3")


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize("place", PLACES)
def test_spark_reads_each_change(spark: Any, client: Client, directory: Callable[[str], str], place: str) -> None:
    for what in CHANGES:
        topic = f"spark-{what}-{place}".replace(" ", "-")
        rows, names = grown(client, what, place, topic), [*CHANGES[what][4]]
        table = spark_reader(spark).rows(directory(topic), *CHANGES[what][5])
        assert table.select(["segment", *names]).to_pylist() == rows, what


def test_a_topic_created_anew_shows_nothing_of_the_one_before(client: Client, directory: Callable[[str], str]) -> None:
    grown(client, "add", "old first", "anew")
    client.delete_topic("anew")
    client.create_topic("anew", format="typed", schema={"fields": [{"name": "b", "type": "string"}]})
    client.publish("anew", {"value": {"b": "text"}})
    client.flush("anew")
    at, column = Place(directory("anew")), [pa.field("b", pa.string())]
    for name in PLAIN:
        assert [row["b"] for row in at.plain(name, column, ["b"])] == ["text"], name
    assert [row["b"] for row in at.duckdb(["b"])] == [row["b"] for row in at.polars(["b"])] == ["text"]

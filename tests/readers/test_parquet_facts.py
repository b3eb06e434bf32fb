"""What stands in the files besides the rows: codec, encodings, statistics, page index, types, an entry's metadata."""

import json
import time
from base64 import b64decode
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seaweedq import Client
from seaweedq.segments.keyrange import KeyRange
from seaweedq.segments.producers import New, OutOfOrder, ProducerTables
from tests.support.processes.broker_process import BrokerProcess

pytestmark = pytest.mark.process

TOPIC, ROWS = "facts", 6_000
SCHEMA = {
    "type": "struct",
    "schema-id": 7,
    "fields": [
        {"id": 11, "name": "n", "required": True, "type": "long"},
        {"id": 13, "name": "few", "required": False, "type": "string"},
        {"id": 12, "name": "many", "required": False, "type": "string"},
    ],
}
DELTA = ("_offset", "_timestamp", "_expires")
START_US = 1_000_000_000_000_000
ARROW_STREAM = "application/vnd.apache.arrow.stream"


@dataclass
class File:
    """One entry: where it is, its footer, and what it says of itself."""

    path: Path
    footer: pq.FileMetaData
    stated: dict[str, Any]

    @staticmethod
    def read(path: Path) -> "File":
        footer = pq.read_metadata(path)
        return File(path, footer, json.loads(footer.metadata[b"seaweedq"]))

    @property
    def segment(self) -> int:
        return int(self.path.parent.name.removeprefix("segment="))

    def chunks(self, name: str) -> list[Any]:
        """The column's chunks, one for each row group."""
        groups = [self.footer.row_group(at) for at in range(self.footer.num_row_groups)]
        columns = [group.column(at) for group in groups for at in range(group.num_columns)]
        return [column for column in columns if column.path_in_schema == name]


def _batch(first: int) -> pa.Table:
    """Rows whose timestamps fall with `first`, so that the second batch's are below the first one's."""
    numbers = pa.array(range(first, first + ROWS))
    stamps = [START_US - first + n for n in range(ROWS)]
    return pa.table(
        {
            "n": numbers,
            "few": pa.array([f"few {n % 9}" for n in range(ROWS)]),
            "many": numbers.cast(pa.string()),
            "_timestamp": pa.array(stamps, pa.timestamp("us", tz="UTC")),
            "_expires": pa.array(stamps, pa.timestamp("us", tz="UTC")),
        }
    )


@pytest.fixture(scope="module")
def files(server: BrokerProcess, client: Client) -> list[File]:
    """The files of a topic of two segments, after two flushes of two requests of the producer `p`."""
    client.create_topic(TOPIC, format="typed", schema=SCHEMA, key_field="many", initial_segments=2)
    for first in (0, ROWS):
        for half in range(2):
            table, sink = _batch(first).slice(half * ROWS // 2, ROWS // 2), pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
            headers = {
                "Content-Type": ARROW_STREAM,
                "Producer-Id": "p",
                "Producer-Sequence": str(first + half * ROWS // 2),
            }
            url = f"{server.url}/v1/topics/{TOPIC}/messages"
            httpx.post(
                url, content=bytes(sink.getvalue()), headers=headers, timeout=30, trust_env=False
            ).raise_for_status()
        client.flush(TOPIC)
    return [File.read(path) for path in sorted((server.store / "topics" / TOPIC).rglob("*.parquet"))]


@pytest.fixture(scope="module")
def full(files: list[File]) -> list[File]:
    """Those with rows."""
    return [file for file in files if file.footer.num_rows]


def test_every_chunk_is_zstd_and_has_a_page_index(full: list[File]) -> None:
    for file in full:
        for at in range(file.footer.row_group(0).num_columns):
            column = file.footer.row_group(0).column(at)
            assert column.compression == "ZSTD"
            assert column.has_offset_index
            flat = "." not in column.path_in_schema
            assert (column.has_column_index, column.is_stats_set) == (flat, flat)


def test_encodings(full: list[File]) -> None:
    """Deltas where numbers rise, dictionaries where they pay."""
    for file in full:
        for name in DELTA:
            assert {"DELTA_BINARY_PACKED", "RLE"} >= set(file.chunks(name)[0].encodings) >= {"DELTA_BINARY_PACKED"}
        assert file.chunks("few")[0].has_dictionary_page
        assert not file.chunks("many")[0].has_dictionary_page
        # 8 bytes a row, were they plain
        assert file.chunks("_offset")[0].total_uncompressed_size < file.footer.num_rows


def test_statistics(full: list[File]) -> None:
    for file in full:
        table = pq.read_table(file.path)
        for name in ("_offset", "_timestamp", "_expires", "_key", "n", "few", "many"):
            found = file.chunks(name)[0].statistics
            values = table[name].to_pylist()
            assert (found.min, found.max, found.null_count) == (min(values), max(values), 0)
        assert file.chunks("n")[0].statistics.min == table["n"].to_pylist()[0]


def test_logical_types_and_field_ids(files: list[File]) -> None:
    for file in files:
        columns = {
            file.footer.schema.column(at).path: file.footer.schema.column(at) for at in range(file.footer.num_columns)
        }
        types = {name: str(column.logical_type) for name, column in columns.items()}
        moment = "Timestamp(isAdjustedToUTC=true, timeUnit=microseconds"
        assert all(types[name].startswith(moment) for name in ("_timestamp", "_expires"))
        text = ("_key", "_headers.key_value.key", "_headers.key_value.value", "_reference.uri", "few", "many")
        assert {types[name] for name in text} == {"String"}
        assert {name: columns[name].max_definition_level for name in ("_offset", "_timestamp", "_key", "n", "few")} == {
            "_offset": 0,
            "_timestamp": 0,
            "_key": 1,
            "n": 0,
            "few": 1,
        }
        ids = {field.name: (field.metadata or {}).get(b"PARQUET:field_id") for field in pq.read_schema(file.path)}
        assert (ids["n"], ids["few"], ids["many"]) == (b"11", b"13", b"12")


def test_metadata_says_where_the_entry_belongs(files: list[File], server: BrokerProcess, client: Client) -> None:
    cluster = httpx.get(f"{server.url}/v1/cluster", timeout=30, trust_env=False).json()
    ranges = {segment["id"]: (segment["low"], segment["high"]) for segment in client.segments(TOPIC)}
    assert json.loads((server.store / "_cluster.json").read_bytes())["cluster"] == cluster["cluster"]
    for file in files:
        sequence, first = map(int, file.path.stem.split("-"))
        stated = file.stated
        assert (stated["cluster"], stated["topic"], stated["segment"]) == (cluster["cluster"], TOPIC, file.segment)
        assert (stated["low"], stated["high"]) == ranges[file.segment]
        assert (stated["sequence"], stated["first_offset"]) == (sequence, first)
        assert stated["next_offset"] == first + file.footer.num_rows
        assert stated["broker"] == cluster["brokers"][0]["id"]
        assert stated["schema_id"] == 7
        assert stated["seal"] is None
    assert len({file.stated["nonce"] for file in files}) == len(files) == 5


def test_metadata_says_when(files: list[File], full: list[File]) -> None:
    now_us = time.time_ns() // 1000
    assert all(0 <= now_us - file.stated["appended_us"] < 600_000_000 for file in files)
    for segment in (0, 1):
        older, newer = (file for file in full if file.segment == segment)
        assert older.stated["appended_us"] < newer.stated["appended_us"]
        latest = pq.read_table(older.path)["_timestamp"].cast(pa.int64()).to_pylist()
        # The second batch's timestamps are below, the maximum stays.
        assert older.stated["max_timestamp_us"] == newer.stated["max_timestamp_us"] == max(latest)


def test_metadata_has_the_producer_table(full: list[File]) -> None:
    for file in full:
        (table,) = ProducerTables.decode(b64decode(file.stated["producers"]), file.segment).parts
        assert table.key_range == KeyRange(file.stated["low"], file.stated["high"])
        newest = ROWS if file.stated["first_offset"] == 0 else 2 * ROWS
        assert table.judge("p", newest, newest, 1) == New()
        assert table.judge("p", newest - 1, newest - 1, 1) == OutOfOrder(newest - 1)

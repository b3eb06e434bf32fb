"""Directories of an unusual shape: many small files, a file of two row groups, dictionaries in some files only."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seaweedq import Client
from tests.support.readers.topic_readers import Reader, assert_dense

pytestmark = pytest.mark.process

ROW_GROUP = 65_536
FLUSHES = 200
TEXT, LONG = pa.field("text", pa.string()), pa.field("n", pa.int64())
SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "text", "required": False, "type": "string"},
        {"id": 2, "name": "n", "required": False, "type": "long"},
    ],
}


@pytest.fixture(scope="module")
def many_files(client: Client) -> str:
    client.create_topic("many-files", initial_segments=2)
    for n in range(FLUSHES):
        client.publish("many-files", {"value": n, "key": str(n)})
        client.flush("many-files")
    return "many-files"


@pytest.mark.long
def test_many_small_files(reader: Reader, many_files: str, directory: Callable[[str], str]) -> None:
    table = reader.rows(directory(many_files), pa.field("value", pa.string()))
    assert_dense(table)
    assert sorted(map(int, table["value"].to_pylist())) == list(range(FLUSHES))
    assert table["_key"].equals(table["value"])


@pytest.fixture(scope="module")
def row_groups(client: Client) -> pa.Table:
    """What is in a topic of two files: a full row group, and one with a row more."""
    client.create_topic("row-groups", format="typed", schema=SCHEMA)
    ends = (ROW_GROUP, 2 * ROW_GROUP + 1)
    table = pa.table({"text": [str(n) for n in range(ends[-1])], "n": range(ends[-1])})
    with client.producer("row-groups") as producer:
        for start, end in zip((0, *ends), ends, strict=False):
            producer.send_table(table.slice(start, end - start))
            producer.flush()
            client.flush("row-groups")
    return table


def test_a_file_over_the_bound_of_a_row_group(
    reader: Reader, row_groups: pa.Table, directory: Callable[[str], str]
) -> None:
    table = reader.rows(directory("row-groups"), TEXT, LONG)
    assert_dense(table)
    assert table.select(["text", "n"]).combine_chunks().equals(row_groups)


def test_its_row_groups(row_groups: pa.Table, directory: Callable[[str], str]) -> None:
    files = [pq.read_metadata(path) for path in sorted(Path(directory("row-groups")).rglob("*.parquet"))]
    groups = [[file.row_group(at).num_rows for at in range(file.num_row_groups)] for file in files]
    assert groups == [[], [ROW_GROUP], [ROW_GROUP, 1]]


@pytest.fixture(scope="module")
def dictionaries(client: Client) -> pa.Table:
    """Files in which the columns are all alike, all different, all null, and the other way about."""
    count = 3000
    same, nothing = pa.array(["same"] * count), pa.nulls(count, pa.string())
    unique = pa.array([f"text {n}" for n in range(count)])
    rising, ones, none = pa.array(range(count)), pa.array([1] * count), pa.nulls(count, pa.int64())
    parts = [
        pa.table({"text": text, "n": n})
        for text, n in (
            (same, rising),
            (unique, ones),
            (nothing, rising),
            (unique, none),
            (nothing, none),
            (same, ones),
        )
    ]
    client.create_topic("dictionaries", format="typed", schema=SCHEMA)
    with client.producer("dictionaries") as producer:
        for part in parts:
            producer.send_table(part)
            producer.flush()
            client.flush("dictionaries")
    return pa.concat_tables(parts)


def test_columns_with_a_dictionary_in_some_files(
    reader: Reader, dictionaries: pa.Table, directory: Callable[[str], str]
) -> None:
    table = reader.rows(directory("dictionaries"), TEXT, LONG)
    assert_dense(table)
    assert table.select(["text", "n"]).combine_chunks().equals(dictionaries.combine_chunks())

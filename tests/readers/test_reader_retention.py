"""Readers of a topic's directory while retention deletes its files: each reading has the whole files that were there
after some listing, or is a clear error; a table that brokers give is whole in any case."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from seaweedq import Client
from seaweedq.segments.entry import EntryName
from tests.support.readers.topic_readers import READERS, SPARK, Reader, spark_reader
from tests.support.tiers import marked

pytestmark = pytest.mark.process

FILES, ROWS = 12, 3
OFFSETS = pa.schema([pa.field("_offset", pa.int64())])
GONE = ("No such file", "does not exist", "No files found", "not found", "No match", "expanded paths were empty")


@pytest.fixture(params=[marked(SPARK, "spark", "long"), "duckdb"])
def reader(request: pytest.FixtureRequest) -> Reader:
    if request.param == SPARK:
        return spark_reader(request.getfixturevalue("spark"))
    return READERS[request.param]


@pytest.fixture
def files(client: Client, directory: Callable[[str], str], reader: Reader) -> list[Path]:
    """The files of a topic, the oldest first."""
    topic = f"going-{uuid4().hex}"
    client.create_topic(topic)
    for at in range(FILES):
        client.publish(topic, [{"value": ROWS * at + n} for n in range(ROWS)])
        client.flush(topic)
    return sorted(Path(directory(topic)).rglob("*.parquet"))


def offsets(reader: Reader, opened: Any) -> list[int] | None:
    """What a reading gives, which must be whole files without a gap; None for a clear error."""
    try:
        rows = reader.arrow(opened(), OFFSETS)
    except Exception as error:
        if any(text in str(error) for text in GONE):
            return None
        raise
    found: list[int] = sorted(rows["_offset"].to_pylist())
    assert found == list(range(found[0], FILES * ROWS)), "rows are missing behind the first one"
    assert found[0] % ROWS == 0, "a file is read whole or not at all"
    return found


def test_files_go_between_listing_and_reading(files: list[Path], reader: Reader) -> None:
    folder = str(files[0].parent.parent)
    opened = reader.open(folder)
    for path in files[:5]:
        path.unlink()
    offsets(reader, lambda: opened)  # some list again when they read
    first = EntryName.parse(files[5].name).first_offset
    assert offsets(reader, lambda: reader.open(folder)) == list(range(first, FILES * ROWS))


@pytest.mark.parametrize("reader", ["duckdb"], indirect=True)
def test_files_go_while_they_are_read(files: list[Path], reader: Reader) -> None:
    folder = str(files[0].parent.parent)
    done = threading.Event()

    def delete() -> None:
        for path in files[:-2]:
            path.unlink()
            done.wait(0.02)
        done.set()

    going = threading.Thread(target=delete)
    going.start()
    found = []
    while not done.is_set():
        found.append(offsets(reader, lambda: reader.open(folder)))
    going.join()
    assert any(found)
    assert offsets(reader, lambda: reader.open(folder)) == list(range(FILES * ROWS - 2 * ROWS, FILES * ROWS))

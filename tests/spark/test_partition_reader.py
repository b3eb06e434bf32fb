"""The executors' part of a reader, where retention takes rows between planning and reading. Without Spark's JVM."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seaweedq import Client
from seaweedq.client.core.tables.table_plan import FilePart, Rows
from seaweedq.client.core.topics.topic_files import TopicFile
from seaweedq.errors import ClientError, FileMissing
from seaweedq.spark import partition_reader
from seaweedq.spark.columns import spark_schema_of
from seaweedq.spark.options import Options
from seaweedq.spark.partition_reader import PartitionReader, TopicFacts, TopicPartition
from seaweedq.spark.partitions import Work

CREATED = "2026-01-01T00:00:00Z"


SCHEMA = pa.schema([("_offset", pa.int64()), ("segment", pa.int32())])
ROWS = 27


class Brokers:
    """Two segments of 27 rows, of which retention has taken those below their starts."""

    def __init__(self) -> None:
        self.starts = {0: 0, 1: 0}

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path.endswith("/segments"):
            return httpx.Response(
                200, json={"segments": [{"id": n, "start_offset": s} for n, s in self.starts.items()]}
            )
        if path.endswith("/messages"):
            return self.rows(int(path.split("/")[-2]), int(request.url.params["offset"]))
        return problem(404, "segment-not-found")

    def rows(self, segment: int, offset: int) -> httpx.Response:
        if offset < self.starts.get(segment, 99):
            return problem(410, "below-retention") if segment in self.starts else problem(404, "segment-not-found")
        batch = pa.RecordBatch.from_pydict({"_offset": pa.array([offset], pa.int64())})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return httpx.Response(200, content=bytes(sink.getvalue()), headers={"next-offset": str(offset + 1)})


def problem(status: int, slug: str) -> httpx.Response:
    return httpx.Response(status, json={"type": f"/problems/{slug}", "title": slug, "detail": slug, "status": status})


def written(folder: Path, segment: int) -> FilePart:
    name = f"{0:08}-{0:016}.parquet"
    path = folder / f"segment={segment}" / name
    path.parent.mkdir()
    pq.write_table(pa.table({"_offset": pa.array(range(ROWS), pa.int64())}), path)
    return FilePart(TopicFile(segment, name, 0, ROWS, path.stat().st_size, None, None), 0, ROWS)


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    made = Brokers()
    client = lambda url: Client(url, transport=httpx.MockTransport(made), timeout_s=1)  # noqa: E731
    monkeypatch.setattr(partition_reader, "Client", client)
    return made


@pytest.fixture
def files(tmp_path: Path) -> list[FilePart]:
    return [written(tmp_path, segment) for segment in (0, 1)]


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., list[tuple[int, int]]]:
    """Reads work as an executor does: (segment, offset) of its rows."""

    def rows(work: Work, **options: str) -> list[tuple[int, int]]:
        schema = spark_schema_of(SCHEMA, ["_offset", "segment"])
        reader = PartitionReader(Options.parse({"url": "http://b", "topic": "t", **options}), schema)
        facts = TopicFacts(SCHEMA, f"file://{tmp_path}", CREATED)
        found: Any = [batch.to_pylist() for batch in reader.read(TopicPartition(work, facts))]
        return [(row["segment"], row["_offset"]) for batch in found for row in batch]

    return rows


def remove(folder: Path, part: FilePart) -> None:
    (folder / part.file.path).unlink()


def test_a_file_that_retention_took_is_a_loss(brokers: Brokers, files: Any, read: Any, tmp_path: Path) -> None:
    remove(tmp_path, files[0])
    brokers.starts[0] = 27
    with pytest.raises(ClientError, match="are gone before they were read: segment 0, offsets 0 to 27"):
        read(Work(files=tuple(files)))


@pytest.mark.parametrize("part", [(0, 27), (5, 20)], ids=["whole", "a part"])
def test_the_others_are_read_where_losses_do_not_fail(
    brokers: Brokers, files: Any, read: Any, tmp_path: Path, part: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    """A task failed at the first file that was not there, whatever failOnDataLoss said."""
    remove(tmp_path, files[0])
    brokers.starts[0] = 27
    some = (FilePart(files[0].file, *part), files[1])
    with caplog.at_level(logging.WARNING):
        assert read(Work(files=some), failOnDataLoss="false") == [(1, n) for n in range(27)]
    assert f"segment 0, offsets {part[0]} to {part[1]}" in caplog.text


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_file_that_retention_did_not_take_is_an_error(
    brokers: Brokers, files: Any, read: Any, tmp_path: Path, fails: str
) -> None:
    remove(tmp_path, files[0])
    with pytest.raises(FileMissing, match="not all Parquet files are visible"):
        read(Work(files=tuple(files)), failOnDataLoss=fails)


def test_rows_of_a_tail_that_retention_took(brokers: Brokers, read: Any) -> None:
    """Their file was made and taken in between, or their segment removed."""
    work = Work(tail=(Rows(0, 10, 14), Rows(1, 25, 27)))
    brokers.starts = {1: 26}
    with pytest.raises(ClientError, match="segment 0, offsets 10 to 14"):
        read(work)
    assert read(work, failOnDataLoss="false") == [(1, 26)]


def test_a_map_of_another_topic_of_the_name() -> None:
    facts = TopicFacts(SCHEMA, "file:///t", CREATED)
    later = {"id": 9, "predecessors": [], "created_at": "2026-02-01T00:00:00Z"}
    facts.check_same([{**later, "created_at": CREATED}, {**later, "predecessors": [3]}])
    with pytest.raises(ClientError, match="another one: that of this query was created at 2026-01-01T00:00:00Z"):
        facts.check_same([later])

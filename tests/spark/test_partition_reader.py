"""The executors' part of a reader, where retention takes rows between planning and reading. Without Spark's JVM."""

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seaweedq import Client
from seaweedq.client.core.calls import TopicFile
from seaweedq.client.core.table import FilePart, Rows
from seaweedq.errors import ClientError, FileMissing
from seaweedq.spark import partition_reader
from seaweedq.spark.compat import spark_schema_of
from seaweedq.spark.options import Options
from seaweedq.spark.partition_reader import PartitionReader, TaskShare, TopicFacts, TopicPartition

CREATED = "2026-01-01T00:00:00Z"


SCHEMA = pa.schema([("_offset", pa.int64()), ("_expires", pa.timestamp("us", tz="UTC")), ("segment", pa.int32())])
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ROWS = 27


class Brokers:
    """Two segments of 27 rows, of which retention has taken those below their starts."""

    def __init__(self) -> None:
        self.starts = {0: 0, 1: 0}
        self.created_at = CREATED
        self.asked = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        self.asked += 1
        if path.endswith("/segments"):
            same: dict[str, Any] = {"predecessors": [], "created_at": self.created_at}
            known = [{"id": n, "start_offset": s, **same} for n, s in self.starts.items()]
            return httpx.Response(200, json={"segments": known, "now": CREATED})
        if path.endswith("/messages"):
            assert request.url.params["expired"] == "keep"
            return self.rows(int(path.split("/")[-2]), int(request.url.params["offset"]))
        return problem(404, "segment-not-found")

    def rows(self, segment: int, offset: int) -> httpx.Response:
        if offset < self.starts.get(segment, 99):
            return problem(410, "below-retention") if segment in self.starts else problem(404, "segment-not-found")
        batch = rows_of([offset]).to_batches()[0]
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return httpx.Response(200, content=bytes(sink.getvalue()), headers={"next-offset": str(offset + 1)})


def rows_of(offsets: Sequence[int]) -> pa.Table:
    """Rows of which those with odd offsets expire at noon, the others a moment later or never."""
    times = [[NOON + timedelta(microseconds=1), NOON, None, NOON][n % 4] for n in offsets]
    return pa.table({"_offset": pa.array(offsets, pa.int64()), "_expires": pa.array(times, SCHEMA.field(1).type)})


def problem(status: int, slug: str) -> httpx.Response:
    return httpx.Response(status, json={"type": f"/problems/{slug}", "title": slug, "detail": slug, "status": status})


def written(folder: Path, segment: int) -> FilePart:
    name = f"{0:08}-{0:016}.parquet"
    path = folder / f"segment={segment}" / name
    path.parent.mkdir()
    pq.write_table(rows_of(range(ROWS)), path)
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

    def rows(work: TaskShare, as_of: datetime | None = None, **options: str) -> list[tuple[int, int]]:
        schema = spark_schema_of(SCHEMA, ["_offset", "segment"])
        reader = PartitionReader(Options.parse({"url": "http://b", "topic": "t", **options}), schema)
        facts = TopicFacts(SCHEMA, f"file://{tmp_path}", CREATED)
        found: Any = [batch.to_pylist() for batch in reader.read(TopicPartition(work, facts, as_of))]
        return [(row["segment"], row["_offset"]) for batch in found for row in batch]

    return rows


def remove(folder: Path, part: FilePart) -> None:
    (folder / part.file.path).unlink()


def test_a_file_that_retention_took_is_a_loss(brokers: Brokers, files: Any, read: Any, tmp_path: Path) -> None:
    remove(tmp_path, files[0])
    brokers.starts[0] = 27
    with pytest.raises(ClientError, match="were deleted before they were read: segment 0, offsets 0 to 27"):
        read(TaskShare(files=tuple(files)))


@pytest.mark.parametrize("part", [(0, 27), (5, 20)], ids=["whole", "a part"])
def test_the_others_are_read_where_losses_do_not_fail(
    brokers: Brokers, files: Any, read: Any, tmp_path: Path, part: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    """A task failed at the first file that was not there, whatever failOnDataLoss said."""
    remove(tmp_path, files[0])
    brokers.starts[0] = 27
    some = (FilePart(files[0].file, *part), files[1])
    with caplog.at_level(logging.WARNING):
        assert read(TaskShare(files=some), failOnDataLoss="false") == [(1, n) for n in range(27)]
    assert f"segment 0, offsets {part[0]} to {part[1]}" in caplog.text


@pytest.mark.parametrize("fails", ["true", "false"])
def test_rows_come_in_the_order_of_the_plan(brokers: Brokers, files: Any, read: Any, fails: str) -> None:
    """The end of a file, with which a batch of a stream begins, came behind the whole files that follow it."""
    some = (FilePart(files[0].file, 20, 27), files[1], FilePart(files[0].file, 3, 5))
    wanted = [*((0, n) for n in range(20, 27)), *((1, n) for n in range(27)), (0, 3), (0, 4), (1, 25)]
    assert read(TaskShare(some, (Rows(1, 25, 26),)), failOnDataLoss=fails) == wanted


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_file_that_retention_did_not_take_is_an_error(
    brokers: Brokers, files: Any, read: Any, tmp_path: Path, fails: str
) -> None:
    remove(tmp_path, files[0])
    with pytest.raises(FileMissing, match="not all Parquet files are visible"):
        read(TaskShare(files=tuple(files)), failOnDataLoss=fails)


def test_rows_of_a_tail_that_retention_took(brokers: Brokers, read: Any) -> None:
    """Their file was made and taken in between, or their segment removed."""
    work = TaskShare(tail=(Rows(0, 10, 14), Rows(1, 25, 27)))
    brokers.starts = {1: 26}
    with pytest.raises(ClientError, match="segment 0, offsets 10 to 14"):
        read(work)
    assert read(work, failOnDataLoss="false") == [(1, 26)]


def test_what_has_expired_at_the_time_of_the_plan_is_left_out(brokers: Brokers, files: Any, read: Any) -> None:
    """The time goes on between a plan and its tasks, which may run twice."""
    work = TaskShare(files=(files[0], FilePart(files[1].file, 4, 9)), tail=(Rows(1, 25, 27),))
    every = [*((0, n) for n in range(ROWS)), *((1, n) for n in (4, 5, 6, 7, 8, 25, 26))]
    assert read(work) == read(work, NOON - timedelta(days=1)) == every
    assert read(work, NOON) == [(segment, n) for segment, n in every if not n % 2]


def test_rows_without_columns_are_counted(brokers: Brokers, files: Any, tmp_path: Path) -> None:
    """Where nothing expires the offsets of the plan tell the count: no file is opened, and no broker is asked."""

    def count(as_of: datetime | None) -> int:
        options = Options.parse({"url": "http://b", "topic": "t", "columns": ""})
        reader = PartitionReader(options, spark_schema_of(SCHEMA, options.columns))
        work = TaskShare(files=(files[0], FilePart(files[1].file, 4, 9)), tail=(Rows(1, 20, 27),))
        batches = [*reader.read(TopicPartition(work, TopicFacts(SCHEMA, f"file://{tmp_path}", CREATED), as_of))]
        assert not any(batch.num_columns for batch in batches)
        return sum(batch.num_rows for batch in batches)

    assert count(NOON) == 14 + 3 + 4
    asked = brokers.asked
    for part in files:
        remove(tmp_path, part)
    assert count(None) == 27 + 5 + 7
    assert brokers.asked == asked


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_topic_that_was_created_anew_is_told_by_tasks(
    brokers: Brokers, files: Any, read: Any, tmp_path: Path, fails: str
) -> None:
    """Its rows were said to be taken by retention, or left out."""
    remove(tmp_path, files[0])
    brokers.starts, brokers.created_at = {7: 0}, "2026-02-01T00:00:00Z"
    for work in (TaskShare(files=(files[0],)), TaskShare(tail=(Rows(0, 3, 9),))):
        with pytest.raises(ClientError, match=r"was deleted and created again: .* call load\(\) again"):
            read(work, failOnDataLoss=fails)


def test_a_map_of_another_topic_of_the_name() -> None:
    facts = TopicFacts(SCHEMA, "file:///t", CREATED)
    later = {"id": 9, "predecessors": [], "created_at": "2026-02-01T00:00:00Z"}
    facts.check_same([{**later, "created_at": CREATED}, {**later, "predecessors": [3]}])
    with pytest.raises(ClientError, match="the query reads the topic that was created at 2026-01-01T00:00:00Z"):
        facts.check_same([later])

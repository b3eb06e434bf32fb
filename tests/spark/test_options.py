"""The options of the data source, the division of its work, and what a worker imports for it."""

import subprocess
import sys
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seaweedq.client.core.calls import TopicFile
from seaweedq.client.core.table import FilePart, Rows
from seaweedq.errors import ClientError
from seaweedq.segments.entry import ROW_GROUP_ROWS
from seaweedq.spark.compat import check_columns, check_stream_version, check_write_version
from seaweedq.spark.options import MIB, Options, WriteOptions
from seaweedq.spark.partition_reader import divide
from seaweedq.spark.source import Source

GIVEN = {"url": "http://nowhere", "topic": "t"}


def test_defaults_and_every_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEAWEEDQ_URL", "http://there")
    assert Options.parse({"topic": "t"}) == Options("http://there", "t", given=frozenset({"topic"}))
    options = {
        "columns": '["a,b", "c"]',
        "startingoffsets": '{"3": 100}',
        "endingtimestamp": "2026-01-31T12:00:00Z",
        "failondataloss": "False",
        "minpartitions": "7",
        "maxbytesperpartition": "1m",
        "maxoffsetspertrigger": "9",
        "minoffsetspertrigger": "8",
        "maxtriggerdelay": "500ms",
        "includetail": "false",
        "storageoptions": '{"key": "k"}',
        "expired": "Keep",
    }
    made = Options.parse(GIVEN | options)
    assert (made.columns, made.starting, made.ending) == (("a,b", "c"), {3: 100}, datetime(2026, 1, 31, 12, tzinfo=UTC))
    assert (made.fail_on_data_loss, made.min_partitions, made.max_bytes_per_partition) == (False, 7, MIB)
    assert (made.max_offsets, made.min_offsets, made.max_trigger_delay_s) == (9, 8, 0.5)
    assert (made.include_tail, made.storage, made.expired) == (False, {"key": "k"}, "keep")
    for none in ("", " ", "[]"):
        assert Options.parse(GIVEN | {"columns": none}).columns == ()
    same = {"startingOffsets": '{"0": 4, "1": 9}', "endingOffsets": '{"0": 4}'}
    assert Options.parse(GIVEN | same).ending == {0: 4}, "nothing of it"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"topik": "x"}, "there is no option 'topik'; the nearest is 'topic'"),
        ({"startingoffset": "earliest"}, "the nearest is 'startingOffsets'"),
        (
            {"pushDown": "true"},
            "there is no option 'pushdown', because Spark up to 4.3.0 has a bug",
        ),
        ({"topic": ""}, "the option topic is missing"),
        ({"startingOffsets": "newest"}, "startingOffsets must be 'earliest', 'latest', or JSON"),
        ({"startingOffsets": '{"1": -1}'}, 'or JSON of segments and offsets such as {"3": 100}'),
        ({"startingOffsets": "earliest", "startingTimestamp": "0"}, "cannot be combined"),
        ({"includeTail": "yes"}, "includeTail must be true or false, not 'yes'"),
        ({"startingTimestamp": "now"}, "startingTimestamp must be milliseconds since 1970"),
        ({"startingTimestamp": "2026-01-01"}, "startingTimestamp must be"),
        ({"storageOptions": "secret"}, "storageOptions is not a JSON object"),
        ({"maxBytesPerPartition": "0"}, "maxBytesPerPartition must be a number of bytes"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay must be a duration"),
        ({"minPartitions": "0"}, "minPartitions must be a whole number of at least 1, not '0'"),
        (
            {"minOffsetsPerTrigger": "2", "maxOffsetsPerTrigger": "1"},
            "minOffsetsPerTrigger must be at most maxOffsetsPerTrigger=1, not 2",
        ),
        ({"expired": "all"}, "expired must be one of 'skip', 'keep', not 'all'"),
        (
            {"startingOffsets": '{"0": 5}', "endingOffsets": '{"0": 4}'},
            "for segment 0, startingOffsets has offset 5, but endingOffsets has offset",
        ),
        (
            {"startingTimestamp": "2000", "endingTimestamp": "1999"},
            "startingTimestamp must not be later than endingTimestamp, but startingTimestamp is 1970",
        ),
        ({"columns": "a,,b"}, "columns must be names of columns"),
        ({"columns": "a,b,a"}, "columns must be names of columns, each once"),
        ({"columns": "[a"}, "columns must be names of columns"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_wrong_options(options: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError) as raised:
        Options.parse(GIVEN | options)
    assert says in str(raised.value)
    assert "secret" not in str(raised.value)


def test_options_of_the_other_kind() -> None:
    with pytest.raises(ValueError, match="the option maxOffsetsPerTrigger cannot be used for batches"):
        Source(GIVEN | {"maxOffsetsPerTrigger": "5"}).reader(None)  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match="startingOffsets must be 'earliest' or JSON, not 'latest': a batch query would read nothing"
    ):
        Source(GIVEN | {"startingOffsets": "latest"}).reader(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the option endingOffsets cannot be used for streams, which never end"):
        Source(GIVEN | {"endingOffsets": "latest"}).stream_reader(None)  # type: ignore[arg-type]
    with pytest.raises(ClientError, match=r"Spark 4\.1\.0 is too old: .* as streams only with Spark 4\.2"):
        check_stream_version("4.1.0")


def test_columns_may_be_wider_and_not_others() -> None:
    topic = pa.schema([("n", pa.int32()), ("x", pa.float32()), ("d", pa.decimal128(5, 2)), ("s", pa.string())])
    wide = pa.schema([("n", pa.int64()), ("x", pa.float64()), ("d", pa.decimal128(7, 3))])
    check_columns(topic, wide)
    for name, kind in (("n", pa.int16()), ("d", pa.decimal128(5, 3)), ("s", pa.int32())):
        with pytest.raises(
            ValueError, match=f"column '{name}' has the type .*; it can be read with this type or a wider type"
        ):
            check_columns(topic, pa.schema([(name, kind)]))
    with pytest.raises(ValueError, match=r"the topic has no columns \['y'\]; its columns are \['n', "):
        check_columns(topic, pa.schema([("y", pa.int32())]))


@given(
    st.lists(st.tuples(st.integers(1, 300_000), st.integers(1, 10**9)), max_size=8),
    st.integers(1, 10**9),
    st.none() | st.integers(1, 50),
    st.data(),
)
def test_each_row_is_the_work_of_one_task(files: Any, most: int, least: int | None, data: st.DataObject) -> None:
    """Files are cut at row groups, and small parts share a task."""
    parts, at = [], 0
    for rows, size in files:
        file = TopicFile(0, "name", at, at + rows, size, None, None)
        first = data.draw(st.integers(at, at + rows - 1))
        parts.append(FilePart(file, first, data.draw(st.integers(first + 1, at + rows))))
        at += rows
    tail = [Rows(0, at, at + 450_000)]
    works = divide(parts, tail, most, least)
    pieces = [piece for work in works for piece in work.files]
    for part in parts:
        of_it = [piece for piece in pieces if piece.file is part.file]
        assert (of_it[0].start, of_it[-1].end) == (part.start, part.end)
        for before, after in pairwise(of_it):
            assert before.end == after.start
            assert (after.start - part.file.first_offset) % ROW_GROUP_ROWS == 0
    assert sum(len(rows) for work in works for rows in work.tail) == 450_000
    assert all(bool(work.files) != bool(work.tail) for work in works)
    assert sum(bool(work.files) for work in works) >= min(least or 0, len(pieces))


def test_tasks_read_alike() -> None:
    """Of 153 MiB one task had 128, and the other one what was left."""
    files = [TopicFile(n, "name", 0, 600_000, 17 * MIB, None, None) for n in range(9)]
    works = divide([FilePart(file, 0, 600_000) for file in files], [], 128 * MIB)
    assert [len(work.files) for work in works] in ([4, 5], [5, 4])


def test_options_of_a_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEAWEEDQ_URL", "http://there")
    assert WriteOptions.parse({"Topic": "t", "checkpointLocation": "c", "queryName": "q"}) == WriteOptions(
        "http://there", "t"
    )
    options = {"maxfilebytes": "1m", "writeid": "daily-2.x_", "writenumber": "7", "invalidrows": "bad"}
    assert WriteOptions.parse(GIVEN | options) == WriteOptions("http://nowhere", "t", MIB, "daily-2.x_", 7, "bad")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"writeID": "a"}, "the option writeId is set, but writeNumber is not; a write needs both options or neither"),
        ({"writeNumber": "1"}, "the option writeNumber is set, but writeId is not"),
        ({"writeId": "a/b", "writeNumber": "1"}, "writeId is 'a/b'; writeId must have 1 to 128 of the characters A-Z"),
        ({"writeId": "x" * 129, "writeNumber": "1"}, "writeId must have 1 to 128 of the characters"),
        ({"writeId": "spark.1", "writeNumber": "1"}, "must not begin with 'spark.' or 'job.'"),
        ({"writeId": "a", "writeNumber": "-1"}, "writeNumber must be a whole number of at least 0"),
        ({"writeId": "a", "writeNumber": str(2**63)}, "and below 2^63"),
        (
            {"invalidRows": "t"},
            "invalidRows is 't', which is also the topic to which the valid rows are written; invalidRows must be",
        ),
        ({"maxFileBytes": "none"}, "maxFileBytes must be a number of bytes"),
        ({"columns": "a"}, "there is no option 'columns'; the nearest is"),
        ({"pushdown": "true"}, "there is no option 'pushdown'; the nearest is"),
        ({"topic": ""}, "the option topic is missing"),
    ],
)
def test_wrong_options_of_a_write(options: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError) as raised:
        WriteOptions.parse(GIVEN | options)
    assert says in str(raised.value)


def test_writes_that_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"a write cannot replace a topic's messages; use mode\('append'\)"):
        Source(GIVEN).writer(None, True)  # type: ignore[arg-type]
    check_write_version("4.2.0")
    monkeypatch.setattr("pyspark.__version__", "4.1.9")
    for make in (Source(GIVEN).writer, Source(GIVEN).stream_writer):
        with pytest.raises(
            ClientError, match=r"Spark 4\.1\.9 is too old: seaweedq writes topics only with Spark 4\.2 or newer"
        ):
            make(None, False)  # type: ignore[arg-type]


@pytest.mark.process
def test_workers_import_no_file_systems() -> None:
    """Each worker of Spark imports the data source anew; files are opened by few of them."""
    code = (
        "import sys, seaweedq.spark.partition_reader, seaweedq.spark.writer; "
        "assert not {'fsspec', 'seaweedq.storage', 'pyarrow.dataset', 'pandas'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

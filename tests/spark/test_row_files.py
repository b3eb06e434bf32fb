"""Parquet files of a task: when a file is full, and which travel in messages."""

import io
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seaweedq.segments.entry import ROW_GROUP_ROWS
from seaweedq.spark import row_files
from seaweedq.spark.row_files import KIB, RowFiles, carried_bytes


class Sent:
    """The files that were uploaded."""

    def __init__(self) -> None:
        self.files: list[bytes] = []

    def __call__(self, file: BinaryIO) -> str:
        file.seek(0)
        self.files.append(file.read())
        return f"u{len(self.files)}"


def batch(first: int, count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": pa.array(range(first, first + count), pa.int64())})


def numbers(file: bytes) -> list[int]:
    found: list[int] = pq.read_table(io.BytesIO(file))["n"].to_pylist()
    return found


def test_what_is_small_is_returned() -> None:
    sent = Sent()
    with RowFiles(sent, 10**9) as files:
        for at in range(0, 300, 100):
            files.add(batch(at, 100))
        small = files.end(256 * KIB)
    assert (files.rows, files.uploads, sent.files) == (300, [], [])
    assert numbers(small) == list(range(300))


def test_what_is_not_small_is_uploaded() -> None:
    sent = Sent()
    with RowFiles(sent, 10**9) as files:
        files.add(batch(0, 300))
        assert files.end(300) == b""
    assert files.uploads == ["u1"]
    assert numbers(sent.files[0]) == list(range(300))


def test_files_are_full_one_after_the_other() -> None:
    sent = Sent()
    with RowFiles(sent, 10_000) as files:
        for at in range(0, 10_000, 1000):
            files.add(batch(at, 1000))
        last = files.end(256 * KIB)
    assert len(files.uploads) > 1
    assert [n for file in [*sent.files, last] if file for n in numbers(file)] == list(range(10_000))


def test_a_file_that_expands_far_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_files, "DECODED_BYTES", 2 * (8 + row_files.ROW_BYTES) * ROW_GROUP_ROWS)
    sent = Sent()
    same = pa.RecordBatch.from_pydict({"n": pa.array([7] * ROW_GROUP_ROWS, pa.int64())})
    with RowFiles(sent, 10**9) as files:
        for _ in range(5):
            files.add(same)
        assert files.end(256 * KIB)
    assert [len(numbers(file)) for file in sent.files] == [2 * ROW_GROUP_ROWS] * 2


def test_no_rows_are_no_file() -> None:
    with RowFiles(Sent(), 10**9) as files:
        files.add(batch(0, 0))
        assert (files.end(), files.rows, files.uploads) == (b"", 0, [])


def test_the_file_is_gone_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr("tempfile.TemporaryFile", lambda **more: made.append(io.BytesIO()) or made[-1])

    def fails(file: BinaryIO) -> str:
        raise OSError("no broker")

    def upload() -> None:
        with RowFiles(fails, 10**9) as files:
            files.add(batch(0, 10))
            files.end()

    def end_amid() -> None:
        with RowFiles(fails, 10**9) as files:
            files.add(batch(0, ROW_GROUP_ROWS))
            raise RuntimeError

    with pytest.raises(OSError, match="no broker"):
        upload()
    with pytest.raises(RuntimeError):
        end_amid()
    assert [file.closed for file in made] == [True, True]


def test_messages_have_32_mib_together() -> None:
    assert [carried_bytes(n) // KIB for n in (0, 63, 64, 191, 192, 447, 448)] == [256, 256, 64, 64, 16, 16, 4]
    assert sum(carried_bytes(n) for n in range(100_000)) <= 32 * KIB * KIB

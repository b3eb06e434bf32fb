"""Rows in Parquet files, each in a temporary file until it is uploaded, since an upload states its size. The file has
no name, so it is gone when its process ends, however that ends.

The last file of a task travels to the driver with the task's message if it is small: each upload of a write costs
requests and the broker's reading, and most tasks of a stream have a few rows.
"""

import tempfile
from collections.abc import Callable
from types import TracebackType
from typing import BinaryIO, Self, cast

import pyarrow as pa
import pyarrow.parquet as pq

from seaweedq.segments.entry import ROW_GROUP_ROWS

KIB = 1024
GROUP_BYTES = 16 * KIB * KIB  # of rows in memory, before they go to the file
DECODED_BYTES = 512 * KIB * KIB  # of a file's rows in memory: brokers refuse one that expands too far (import_worker)
ROW_BYTES = 24  # of a row there beside its columns: its time, and offsets of texts that it has not
CARRIED_BYTES, CARRIED_TASKS = 256 * KIB, 64


def carried_bytes(partition: int) -> int:
    """Returns the size below which a task's file travels in its message. No task knows how many others there are, so
    the size falls with the partition's number: the first 64 have 256 KiB, twice as many behind them a fourth each, and
    so on, so that all of them together have less than 32 MiB."""
    return CARRIED_BYTES >> 2 * ((partition // CARRIED_TASKS + 1).bit_length() - 1)


class RowFiles:
    """Files of about `most_bytes` for rows that are added in order. `send` uploads one and returns its id."""

    def __init__(self, send: Callable[[BinaryIO], str], most_bytes: int) -> None:
        self.uploads: list[str] = []
        self.rows = 0
        self._send, self._most_bytes = send, most_bytes
        self._group_bytes = min(GROUP_BYTES, most_bytes)
        self._held: list[pa.RecordBatch] = []
        self._held_rows = self._held_bytes = self._decoded_bytes = 0
        self._file: BinaryIO | None = None
        self._parquet: pq.ParquetWriter | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Adds rows, and uploads a file that is full."""
        if not batch.num_rows:
            return
        self.rows += batch.num_rows
        self._held.append(batch)
        self._held_rows += batch.num_rows
        self._held_bytes += batch.nbytes
        self._decoded_bytes += batch.nbytes + ROW_BYTES * batch.num_rows
        if self._held_rows >= ROW_GROUP_ROWS or self._held_bytes >= self._group_bytes:
            self._write()
            is_full = self._decoded_bytes >= DECODED_BYTES
            if self._file and (is_full or self._file.tell() >= self._most_bytes):
                self._upload()

    def end(self, carried_bytes: int = 0) -> bytes:
        """Uploads what is left, or returns it, if its file has fewer bytes than that."""
        self._write()
        file = self._finish()
        if file is None:
            return b""
        if file.tell() < carried_bytes:
            file.seek(0)
            return file.read()
        self._upload()
        return b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._drop()

    def _write(self) -> None:
        if not self._held:
            return
        if self._parquet is None:
            self._file = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115
            self._parquet = pq.ParquetWriter(self._file, self._held[0].schema, compression="zstd", store_schema=False)
        self._parquet.write_table(pa.Table.from_batches(self._held), ROW_GROUP_ROWS)
        self._held, self._held_rows, self._held_bytes = [], 0, 0

    def _finish(self) -> BinaryIO | None:
        """Returns the file with its footer, None if there is none."""
        if self._parquet:
            self._parquet.close()
            self._parquet = None
        return self._file

    def _upload(self) -> None:
        file = self._finish()
        assert file is not None
        self.uploads.append(self._send(file))
        self._drop()
        self._decoded_bytes = 0

    def _drop(self) -> None:
        file = self._finish()
        if file is not None:
            file.close()
            self._file = None

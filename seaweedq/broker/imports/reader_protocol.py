"""The agreement between a broker and the reader of an import: the messages between them, and where batches end.

To the reader, over a socket: a byte `JOB`, with the open file, and the `Job` as a line of JSON; a byte `GO` once a
checked file's rows are wanted, or the next job in its place; the end of its stdin means that its broker has ended. From
it, over a pipe: messages of four bytes (the length of a head), the head as JSON, and a body of `size` bytes,
which for `rows` is an Arrow IPC stream of one batch. A hostile file may control the reader, so the broker bounds both
lengths.

Batches are a function of the file (docs/internals/by-reference.md, "Imports"), for each reader, and from each batch on.
"""

import struct
from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seaweedq.coordination.records import ImportProblem
from seaweedq.errors import Damaged
from seaweedq.segments.layout import Layout
from seaweedq.segments.rows import header_sizes, together

GO, JOB = b"g", b"j"
HEAD_BYTES = 1024 * 1024
BATCH_BYTES = 16 * 1024 * 1024
OFFSET_BYTES = 4  # for each text, beside its own bytes
_LENGTH = struct.Struct("<I")


class Job(msgspec.Struct, frozen=True):
    """The job of a reader: the open descriptor `file`, of `size` bytes, and the rows from `first_row` on. Only behind
    the `last` file the rows that are left are a batch: else they go on with those of the next file.

    The topic's format, `columns` and `key_field` are those of its configuration. With `check` all rows are checked
    first, and are given only on GO. `memory_bytes` is the memory that the reader may take.
    """

    format: Literal["parquet", "ndjson", "arrow"]
    bare: bool
    file: int
    size: int
    columns: str | None
    topic_format: Literal["json", "bytes", "typed"]
    key_field: str | None
    now_us: int
    max_message_bytes: int
    memory_bytes: int
    batch_rows: int
    check: bool
    first_row: int
    last: bool = True


class ReaderMessage(msgspec.Struct, frozen=True):
    """A message of the reader. `rows`: of the file that were read (`seen`) or checked (all: `checked`), or of the batch
    that follows (`rows`). `refused` names the fault of the file; `ended` says that it has no more rows."""

    kind: Literal["seen", "checked", "refused", "rows", "ended"]
    rows: int = 0
    size: int = 0
    problem: ImportProblem | None = None


_messages = msgspec.json.Decoder(ReaderMessage)


def head(message: ReaderMessage) -> bytes:
    """Returns the bytes before a message's body."""
    encoded = msgspec.json.encode(message)
    return _LENGTH.pack(len(encoded)) + encoded


def read_head(read: Callable[[int], bytes]) -> ReaderMessage:
    """Returns the next message's head; `read` gives exactly as many bytes as it is asked for. Raises Damaged for
    anything else, and what `read` raises."""
    (length,) = _LENGTH.unpack(read(_LENGTH.size))
    if length > HEAD_BYTES:
        raise Damaged(f"the reader process sent a message head of {length} bytes; the limit is {HEAD_BYTES} bytes")
    try:
        return _messages.decode(read(length))
    except msgspec.DecodeError as error:
        raise Damaged(f"the reader process sent an invalid message: {error}") from None


class Cutter:
    """Cuts a stream of rows into batches: as many as fit in `batch_rows` and `batch_bytes`, at least one.

    However the stream comes in pieces, and at whatever end of a batch it begins, the batches are the same.
    """

    def __init__(self, layout: Layout, batch_rows: int, batch_bytes: int = BATCH_BYTES) -> None:
        self._layout = layout
        self._batch_rows = batch_rows
        self._batch_bytes = batch_bytes
        self._held: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def cut(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Adds rows. Yields the batches that are complete with them."""
        ends = np.cumsum(sizes(rows))
        at = 0
        while at < rows.num_rows:
            before = int(ends[at - 1]) if at else 0
            fit = int(np.searchsorted(ends, before + self._batch_bytes - self._bytes, side="right")) - at
            fit = min(fit, self._batch_rows - self._rows, rows.num_rows - at)
            if fit < 1 and self._rows:
                yield from self.end()
                continue
            self._held.append(rows.slice(at, max(fit, 1)))
            at += max(fit, 1)
            self._rows += max(fit, 1)
            self._bytes += int(ends[at - 1]) - before

    def end(self) -> Iterator[pa.RecordBatch]:
        """Yields the batch of the rows that are left, if there are any."""
        if self._held:
            yield together(self._held, self._layout)
        self._held, self._rows, self._bytes = [], 0, 0


def sizes(rows: pa.RecordBatch) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Returns the bytes of each row as the cutter counts them: at least half of what a batch needs for them, and the
    same, independent of the optional columns that other rows have."""
    total = np.full(rows.num_rows, 8 + 2 * OFFSET_BYTES, np.int64)  # its time, and the offsets of key and headers
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            total += pc.binary_length(column).fill_null(0).to_numpy() + (0 if name.startswith("_") else OFFSET_BYTES)
        elif pa.types.is_map(column.type):
            total += header_sizes(column) + 2 * OFFSET_BYTES * np.diff(column.offsets.to_numpy())
        elif not name.startswith("_"):
            total += max(1, column.type.bit_width // 8)
    return total

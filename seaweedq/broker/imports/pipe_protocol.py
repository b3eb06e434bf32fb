"""The messages between a broker and the reader of an import, over pipes.

To the reader: a `Job` as a line of JSON, then a byte `GO` once rows are wanted; the end of its stdin means that its
broker has ended. From it: messages of four bytes (the length of a head), the head as JSON, and a body of `size` bytes,
which for `rows` is an Arrow IPC stream of one batch. A hostile file may control the reader, so the broker bounds both
lengths.
"""

import struct
from collections.abc import Callable
from typing import Literal

import msgspec

from seaweedq.coordination.records import ImportProblem
from seaweedq.errors import Damaged

GO = b"g"
HEAD_BYTES = 1024 * 1024
_LENGTH = struct.Struct("<I")


class Job(msgspec.Struct, frozen=True):
    """The job of a reader: the open descriptor `file`, of `size` bytes, and the rows from `first_row` on.

    The topic's format, `columns` and `key_field` are those of its configuration. With `check` all rows are checked
    first, and are given only on GO. `memory_bytes` is what the reader may take.
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


class ReaderMessage(msgspec.Struct, frozen=True):
    """A message of the reader. `rows`: of the file that were read (`seen`) or checked (all: `checked`), or of the batch
    that follows (`rows`). `refused` says what is wrong with the file; `ended` that there are no more rows."""

    kind: Literal["seen", "checked", "refused", "rows", "ended"]
    rows: int = 0
    size: int = 0
    problem: ImportProblem | None = None


_told = msgspec.json.Decoder(ReaderMessage)


def head(told: ReaderMessage) -> bytes:
    """Returns the bytes before a message's body."""
    encoded = msgspec.json.encode(told)
    return _LENGTH.pack(len(encoded)) + encoded


def read_head(read: Callable[[int], bytes]) -> ReaderMessage:
    """Returns the next message's head; `read` gives exactly as many bytes as it is asked for. Raises Damaged for
    anything else, and what `read` raises."""
    (length,) = _LENGTH.unpack(read(_LENGTH.size))
    if length > HEAD_BYTES:
        raise Damaged(f"the reader of an import sent a head of {length} bytes")
    try:
        return _told.decode(read(length))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Damaged(f"the reader of an import sent what is no message: {error}") from None

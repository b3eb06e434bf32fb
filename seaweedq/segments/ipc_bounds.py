"""Bounds the memory that decoding an Arrow IPC stream will need, before any of it is allocated.

The metadata of a message names each buffer's position, and a compressed buffer begins with its stated decompressed
length; Arrow allocates that length and fails if it is not true. Buffers may also share bytes of the body. So the sum of
the lengths is the memory needed, and it is read here: from flatbuffers laid out by Arrow's Message.fbs, which Arrow
itself verifies.
"""

import struct
from collections.abc import Iterator

import pyarrow as pa

from seaweedq.errors import RequestTooLarge, UnreadableBody

MAX_MESSAGES = 2_000
MAX_BUFFERS = 100_000
FEW_MESSAGES = 50  # each costs as much as a hundred rows, however few it has

_V5 = 4
_VERSION, _HEADER_TYPE, _HEADER = 0, 1, 2
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_DICTIONARY_DATA = 1
_LENGTH, _BUFFERS, _COMPRESSION, _VIEWS = 0, 2, 3, 4


def messages(body: pa.Buffer) -> Iterator[pa.ipc.Message]:
    """Yields the messages of a stream. Raises UnreadableBody if it ends before the body does, since no reader would see
    the rows of a second stream there, and Arrow's own errors."""
    source = pa.BufferReader(body)
    yield from pa.ipc.MessageReader.open_stream(source)
    if behind := body.size - source.tell():
        raise UnreadableBody(
            f"the Arrow stream ends at byte {source.tell()}, but {behind} bytes follow its end; write all batches "
            "into one stream"
        )


def check_bounds(body: pa.Buffer, limit_bytes: int) -> None:
    """Checks the decompressed size, the number of messages and buffers, and that nothing stands behind the end. Raises
    RequestTooLarge, UnreadableBody, and Arrow's own errors."""
    total = buffers = 0
    for number, message in enumerate(messages(body)):
        if number >= MAX_MESSAGES:
            raise RequestTooLarge(
                f"the Arrow stream has more than {MAX_MESSAGES} IPC messages; put more rows into each record batch",
                limit_bytes=limit_bytes,
            )
        lengths = _lengths(message)
        total, buffers = total + sum(lengths), buffers + len(lengths)
        if total > limit_bytes or buffers > MAX_BUFFERS:
            detail = f"the Arrow stream has more than {limit_bytes} bytes (decompressed) or {MAX_BUFFERS} buffers"
            raise RequestTooLarge(
                f"{detail}; split the stream, or upload it as a file and import the file", limit_bytes=limit_bytes
            )


def stated_bytes(message: pa.ipc.Message) -> int:
    """Returns the decompressed size of a message, as its buffers state it. Raises UnreadableBody."""
    return sum(_lengths(message))


def may_expand(body: pa.Buffer) -> bool:
    """Tells whether columns may take far more bytes than the stream: compressed ones, dictionaries and views do. Looks
    at metadata alone. A stream that cannot be read, or is too long for `check_bounds`, may."""
    try:
        for number, message in enumerate(messages(body)):
            _plain_batch(message.metadata.to_pybytes())
            if number >= MAX_MESSAGES:
                return True
    except _UNFIT:
        return True
    return False


def is_plain_and_short(body: pa.Buffer, most_rows: int) -> bool:
    """Tells whether a stream has at most so many rows, FEW_MESSAGES, and columns that take no more bytes than it. Looks
    at metadata alone; of one that cannot be read it tells that it is not."""
    rows = size = 0
    try:
        for number, message in enumerate(messages(body)):
            if number >= FEW_MESSAGES:
                return False
            metadata = message.metadata.to_pybytes()
            if batch := _plain_batch(metadata):
                length = _scalar(metadata, batch, _LENGTH, "<q")
                rows, size = rows + length, size + sum(_batch_lengths(metadata, batch, None))
                if length < 0 or rows > most_rows or size > body.size:  # buffers may share bytes
                    return False
    except _UNFIT:
        return False
    return True


class _Expands(Exception):
    """Raised for a record batch whose columns may take far more bytes than it."""


_UNFIT = (pa.ArrowException, OSError, UnreadableBody, struct.error, _Expands)


def _plain_batch(metadata: bytes) -> int:
    """Returns as `_batch`. Raises _Expands too."""
    root = struct.unpack_from("<I", metadata)[0]
    batch = _batch(metadata)
    if batch and (
        _scalar(metadata, root, _HEADER_TYPE, "<B") == _DICTIONARY_BATCH
        or _field(metadata, batch, _COMPRESSION)
        or _field(metadata, batch, _VIEWS)
    ):
        raise _Expands
    return batch


def _lengths(message: pa.ipc.Message) -> list[int]:
    """Returns the decompressed length of each buffer of a message."""
    metadata = message.metadata.to_pybytes()
    try:
        batch = _batch(metadata)
        return _batch_lengths(metadata, batch, message.body) if batch else []
    except struct.error:
        raise UnreadableBody("the stream's metadata is damaged") from None


def _batch(metadata: bytes) -> int:
    """Returns the position of the record batch in a message's metadata, that of a dictionary's too; 0 if there is
    none. Raises UnreadableBody, struct.error."""
    root = struct.unpack_from("<I", metadata)[0]
    if _scalar(metadata, root, _VERSION, "<h") != _V5:
        raise UnreadableBody(
            "the stream uses an Arrow format older than version 1.0; write the stream with a newer library"
        )
    kind, header = _scalar(metadata, root, _HEADER_TYPE, "<B"), _child(metadata, root, _HEADER)
    if kind == _DICTIONARY_BATCH:
        return _child(metadata, header, _DICTIONARY_DATA)
    return header if kind == _RECORD_BATCH else 0


def _batch_lengths(metadata: bytes, batch: int, body: pa.Buffer | None) -> list[int]:
    if not _field(metadata, batch, _BUFFERS):
        return []
    vector = _child(metadata, batch, _BUFFERS)
    count = struct.unpack_from("<I", metadata, vector)[0]
    stated = list(struct.iter_unpack("<qq", memoryview(metadata)[vector + 4 : vector + 4 + 16 * count]))
    if len(stated) != count or any(offset < 0 or length < 0 for offset, length in stated):
        raise UnreadableBody("the stream's metadata is damaged")
    if not _field(metadata, batch, _COMPRESSION):
        return [length for _, length in stated]
    data = memoryview(body) if body is not None else memoryview(b"")
    return [_decompressed(data, offset, length) for offset, length in stated if length]


def _decompressed(data: memoryview, offset: int, length: int) -> int:
    """Returns the length that a compressed buffer states at its beginning; -1 there means that it is not compressed."""
    if offset + 8 > len(data):
        raise UnreadableBody("the stream is damaged: a buffer lies outside its message")
    stated: int = struct.unpack_from("<q", data, offset)[0]
    if stated < -1:
        raise UnreadableBody("the stream is damaged: a compressed buffer has a negative length")
    return length if stated == -1 else stated


def _field(data: bytes, table: int, number: int) -> int:
    """Returns the position of a table's field, 0 if the field is absent."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    if 6 + 2 * number > struct.unpack_from("<H", data, vtable)[0]:
        return 0
    at: int = struct.unpack_from("<H", data, vtable + 4 + 2 * number)[0]
    return table + at if at else 0


def _scalar(data: bytes, table: int, number: int, form: str) -> int:
    at = _field(data, table, number)
    return int(struct.unpack_from(form, data, at)[0]) if at else 0


def _child(data: bytes, table: int, number: int) -> int:
    """Returns the position of the table or vector that a field points to."""
    at = _field(data, table, number)
    return at + int(struct.unpack_from("<I", data, at)[0])

"""Messages that are a key and a value alone, as columns: one Arrow stream, which costs client and broker a fraction of
as many lines. If a broker refuses some of them, they go again as lines.

The stream is made without pyarrow, whose import costs a program as much CPU as sending 120,000 messages does, and three
times that where pandas is installed. It is a schema, one record batch and an end, as
https://arrow.apache.org/docs/format/Columnar.html states them. Schema and the batch's head are flatbuffers. With two
columns at most, every part of them has its fixed place, so they are packed from the top: each table behind its
*vtable*, which says where its fields are, and every reference is the distance from its own place. All numbers are
little-endian, and those of eight bytes are at multiples of eight.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, cast

import msgspec

from seaweedq.client.core.wire import BytesEnvelope, Envelope, encode

_VERSION, _SCHEMA, _RECORD_BATCH, _BINARY, _UTF8 = 4, 1, 3, 4, 5  # of Arrow's Message.fbs and Schema.fbs
_CONTINUES = 0xFFFFFFFF  # precedes the length of each head; a length of 0 ends the stream
END_OF_STREAM = struct.pack("<II", _CONTINUES, 0)

# Message: reference, vtable; table of version, kind of header, length of the body, reference to the header.
_MESSAGE = struct.Struct("<I 6H i H B x q I 4x")
# Schema: vtable; table of a reference to the fields.
_FIELDS = struct.Struct("<4H i I")
# Field: vtable; table of references to name, type and children, of nullable and type; no children; the type, which has
# no fields; name.
_FIELD = struct.Struct("<8H i III BB 2x I HH i I 12s")
# RecordBatch: vtable; table of the number of rows, references to columns and buffers.
_BATCH = struct.Struct("<5H 2x i q II 4x")


def stream_of_rows(keys: Sequence[str | None], values: Sequence[bytes], is_binary: bool) -> bytes:
    """Returns messages as an Arrow stream, of binary values or JSON texts. Without a key in any there is no column of
    keys."""
    value_ends = _ends(values)
    columns, nulls, buffers = [("value", _BINARY if is_binary else _UTF8)], [0], [b"", value_ends]
    without = keys.count(None)
    if without < len(keys):
        columns, nulls = [("_key", _UTF8), *columns], [without, 0]
        texts = [key or "" for key in keys] if without else cast(Sequence[str], keys)
        buffers = [_validity(keys) if without else b"", *_texts(texts), *buffers]
    lengths = [*map(len, buffers), int.from_bytes(value_ends[-4:], "little")]
    head = _schema(columns) + _record_batch(len(values), nulls, lengths)
    padded = [part for each in buffers for part in (each, bytes(-len(each) % 8))]
    # The values are copied once, right into the stream: each new megabyte costs hundreds of page faults.
    return b"".join((head, *padded, *values, bytes(-lengths[-1] % 8), END_OF_STREAM))


def _texts(texts: Sequence[str]) -> tuple[bytes, bytes]:
    """Returns where each of these texts ends, and all of them."""
    whole = "".join(texts)
    if whole.isascii():
        return _ends(texts), whole.encode()
    encoded = [text.encode() for text in texts]
    return _ends(encoded), b"".join(encoded)


def _validity(keys: Sequence[str | None]) -> bytes:
    """Returns a bit for each key, the first in the lowest: 1 where there is one."""
    bits = "".join(["0" if key is None else "1" for key in reversed(keys)])
    return int(bits, 2).to_bytes(-(-len(keys) // 8), "little")


def _ends(texts: Iterable[bytes | str]) -> bytes:
    """Returns 0, and where each of these texts ends."""
    ends = [*accumulate(map(len, texts), initial=0)]
    return struct.pack(f"<{len(ends)}i", *ends)


def _schema(columns: Sequence[tuple[str, int]]) -> bytes:
    """Returns the head of a stream of these columns, each a name and its type."""
    count = len(columns)
    begin = 60 + 4 * count  # of the padding before the first field, whose table is behind a vtable of 16 bytes
    first = begin + -begin % 8
    references = [first + 64 * n + 16 - (60 + 4 * n) for n in range(count)]
    head = [_message(_SCHEMA, 0, 16), _FIELDS.pack(8, 8, 0, 4, 8, 4), struct.pack(f"<I{count}I", count, *references)]
    return _framed(b"".join((*head, bytes(first - begin), *(_field(name, kind) for name, kind in columns))))


def _field(name: str, kind: int) -> bytes:
    references, text = (28, 20, 8), name.encode()
    return _FIELD.pack(16, 20, 4, 16, 17, 8, 0, 12, 16, *references, 1, kind, 0, 4, 4, 4, len(text), text)


def _record_batch(rows: int, nulls: Sequence[int], lengths: Sequence[int]) -> bytes:
    """Returns the head of a batch whose columns have so many nulls, and three buffers each of these lengths."""
    padded = [length + -length % 8 for length in lengths]
    *starts, total = accumulate(padded, initial=0)
    nodes = [number for count in nulls for number in (rows, count)]
    buffers = [number for buffer in zip(starts, lengths, strict=True) for number in buffer]
    table = _BATCH.pack(10, 20, 4, 12, 16, 12, rows, 12, 16 + 8 * len(nodes))
    nodes_part = struct.pack(f"<I{len(nodes)}q", len(nulls), *nodes)
    buffers_part = struct.pack(f"<4xI{len(buffers)}q", len(lengths), *buffers)
    return _framed(_message(_RECORD_BATCH, total, 20) + table + nodes_part + buffers_part)


def _message(kind: int, body_bytes: int, header: int) -> bytes:
    return _MESSAGE.pack(16, 12, 24, 4, 6, 16, 8, 12, _VERSION, kind, body_bytes, header)


def _framed(head: bytes) -> bytes:
    return struct.pack("<II", _CONTINUES, len(head)) + head


MOST_BYTES = 64 * 1024  # of a value: larger ones are lines, which may go by reference
FEWEST = 100  # rows that are worth an Arrow stream: a broker's work for one has a fixed part
# Values that are looked at, or copied, as they become lines; bytes are those of a subclass, such as numpy.bytes_.
_LINES = (bytes, bytearray, memoryview, msgspec.Raw)
_LINE_BYTES = 40  # of a line beside its key and its value


@dataclass(slots=True)
class Rows:
    """Rows of one kind: values of bytes, or JSON texts."""

    is_binary: bool
    keys: list[str | None] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)

    def lines(self) -> list[bytes]:
        """Returns the rows as lines of JSON, as `envelope` makes them."""
        return [line_of(key, value, self.is_binary) for key, value in zip(self.keys, self.values, strict=True)]

    def stream(self) -> bytes:
        """Returns the rows as an Arrow stream."""
        return stream_of_rows(self.keys, self.values, self.is_binary)


def row_of(value: Any, key: str | None, limit_bytes: int) -> tuple[bytes, bool, int] | None:
    """Returns the value's bytes, whether they are binary, and a bound of their line's size; None for what has to be
    a line, as values over `limit_bytes` have.

    Raises TypeError for a value that JSON cannot express, ValueError for a text that is not Unicode.
    """
    if key is None:
        size = _LINE_BYTES
    elif type(key) is str and (key.isascii() or _is_unicode(key)):
        size = _LINE_BYTES + 6 * len(key)
    else:
        return None
    if type(value) is bytes:
        count = len(value)
        return None if count > limit_bytes or count > MOST_BYTES else (value, True, size + 4 * count // 3)
    if isinstance(value, _LINES):
        return None
    data = encode(value)
    count = len(data)
    return None if count > limit_bytes or count > MOST_BYTES else (data, False, size + count)


def line_of(key: str | None, value: bytes, is_binary: bool) -> bytes:
    """Returns a row as a line of JSON."""
    return encode(BytesEnvelope(value, key) if is_binary else Envelope(msgspec.Raw(value), key))


def _is_unicode(key: str) -> bool:
    try:
        key.encode()
    except UnicodeEncodeError:
        return False
    return True

"""The batches of one stream of a producer, with their sequences. Pure: the time is passed in.

Batches are sent in order, one at a time. A batch gets its sequence when it is first sent, and keeps it for all
attempts.

Messages that are a key and a value alone are sent as columns: one Arrow stream, which costs client and broker a
fraction of as many lines. If a broker refuses some of these messages, all of the batch are sent again as lines.

The stream is made without pyarrow, whose import costs a program as much CPU as sending 120,000 messages does, and three
times that if pandas is installed. It is a schema, one record batch and an end, as
https://arrow.apache.org/docs/format/Columnar.html states them. Schema and the batch's head are flatbuffers. With two
columns at most, every part of them has its fixed place, so they are packed from the top: each table behind its
*vtable*, which says where its fields are, and every reference is the distance from its own place. All numbers are
little-endian, and those of eight bytes are at multiples of eight.
"""

import struct
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf
from typing import Any, Generic, TypeVar, cast

import msgspec

from seaweedq.client.core.effects import ARROW, NDJSON
from seaweedq.client.core.wire import BytesEnvelope, Envelope, encode
from seaweedq.traces import LINKS, TRACEPARENT

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
    """Returns the end of each of these texts, and all texts as one."""
    whole = "".join(texts)
    if whole.isascii():
        return _ends(texts), whole.encode()
    encoded = [text.encode() for text in texts]
    return _ends(encoded), b"".join(encoded)


def _validity(keys: Sequence[str | None]) -> bytes:
    """Returns a bit for each key, the first in the lowest: 1 if there is one."""
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
    """Returns the value's bytes, whether they are binary, and a bound of their line's size; None for a value that
    has to be a line, such as one over `limit_bytes`.

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


D = TypeVar("D")
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a producer: when a batch is full, how long it may wait, and how much is buffered.

    `linger_ms` trades latency for larger batches. `batch_bytes` must be below the broker's `max_request_bytes`. `send`
    blocks while messages of more than `max_buffer_bytes` are not acknowledged.
    """

    linger_ms: float = 5
    batch_messages: int = 10_000
    batch_bytes: int = 2 * MIB
    max_buffer_bytes: int = 64 * MIB
    max_request_bytes: int = 16 * MIB

    def __post_init__(self) -> None:
        for name, least in (("linger_ms", 0), ("batch_messages", 1), ("batch_bytes", 1), ("max_buffer_bytes", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if self.batch_bytes > self.max_request_bytes:
            raise ValueError(
                f"batch_bytes must be at most max_request_bytes={self.max_request_bytes}, not {self.batch_bytes}"
            )


@dataclass(frozen=True, slots=True)
class SentLine:
    """The line that names an upload, and the upload; None if the value is sent inline after all."""

    line: bytes
    upload_id: str | None


@dataclass(slots=True)
class ProducerBatch(Generic[D]):
    """Messages of one request. `delivery` is the shell's object that waits for the outcome.

    Its messages are `lines`, or as long as `rows` is set those rows; they are sent as `content_type`.

    `is_unfit`: a broker takes no such columns, so the topic has changed.

    A `held` batch reserves its position: its content comes later, and all later batches wait. By then it may have
    failed, with `error`. `upload_id` is the upload that its content names. `contexts` are those of its first traced
    messages, and `traceparent` is that of the request that sends it.
    """

    content_type: str
    delivery: D
    opened_s: float
    lines: list[bytes] = field(default_factory=list)
    rows: Rows | None = None
    is_unfit: bool = False
    size: int = 0
    count: int = 0
    sequence: int = -1
    head: bytes = b""
    held: bool = False
    upload_id: str | None = None
    error: Exception | None = None
    contexts: list[str] = field(default_factory=list)
    traceparent: str | None = None

    def trace(self, headers: dict[str, str] | None) -> None:
        """Adds the context in a message's headers."""
        if headers and TRACEPARENT in headers and len(self.contexts) < LINKS:
            self.contexts.append(headers[TRACEPARENT])

    def unroll(self) -> None:
        """Makes lines of its rows."""
        if self.rows is not None:
            self.lines, self.rows, self.content_type = self.rows.lines(), None, NDJSON

    def content(self, lines: list[bytes]) -> bytes:
        """Returns the body of a request with these lines; joined Arrow streams become one stream."""
        if not self.head:
            return lines[0] if len(lines) == 1 else b"\n".join(lines)
        return b"".join(
            (self.head, *(memoryview(each)[len(self.head) : -len(END_OF_STREAM)] for each in lines), END_OF_STREAM)
        )


class Batcher(Generic[D]):
    """Fills batches and releases them. Not thread-safe by itself: the shell locks.

    `accepted` and `finished` count messages; accepted messages finish in order.
    """

    def __init__(self, limits: Limits, new_delivery: Callable[[], D]) -> None:
        self._limits, self._new_delivery = limits, new_delivery
        self._closed: deque[ProducerBatch[D]] = deque()
        self._open: ProducerBatch[D] | None = None
        self._in_flight: ProducerBatch[D] | None = None
        self._next_sequence = 0
        self._released_s = -inf
        self.accepted = self.finished = 0

    def add_line(self, line: bytes, now_s: float, headers: dict[str, str] | None = None) -> tuple[D, int]:
        """Adds a message as a line of JSON, which has these headers. Returns the delivery of its batch, and its index
        in it."""
        size = len(line) + 1
        batch = self._with_room(size, now_s, None)
        batch.unroll()
        batch.trace(headers)
        batch.lines.append(line)
        return self._added(batch, size)

    def join_row(self, key: str | None, value: bytes, is_binary: bool, size: int) -> tuple[D, int] | None:
        """Adds a message that is a key and a value alone to the open batch, if that has room for it and such rows. It
        has `size` bytes at most as a line. Returns as `add_line`, None if nothing was added."""
        batch = self._open
        if batch is None or batch.size + size > self._limits.batch_bytes:
            return None
        rows, index = batch.rows, batch.count
        if rows is None or rows.is_binary is not is_binary or index + 1 >= self._limits.batch_messages:
            return None
        rows.keys.append(key)
        rows.values.append(value)
        batch.size += size
        batch.count = index + 1
        self.accepted += 1
        return batch.delivery, index

    def add_row(self, key: str | None, value: bytes, is_binary: bool, size: int, now_s: float) -> tuple[D, int]:
        """Adds such a message in any case. Behind lines, or rows of the other kind, it is a line as well: the batch
        need not end for it."""
        batch = self._with_room(size, now_s, is_binary)
        rows = batch.rows
        if rows is not None and rows.is_binary is is_binary:
            rows.keys.append(key)
            rows.values.append(value)
        else:
            batch.unroll()
            batch.lines.append(line_of(key, value, is_binary))
        return self._added(batch, size)

    def _with_room(self, size: int, now_s: float, is_binary: bool | None) -> ProducerBatch[D]:
        batch = self._open
        if batch is not None and batch.size + size > self._limits.batch_bytes:
            self.close_open()
            batch = None
        if batch is None:
            rows = None if is_binary is None else Rows(is_binary)
            batch = self._open = ProducerBatch(NDJSON, self._new_delivery(), now_s, rows=rows)
        return batch

    def _added(self, batch: ProducerBatch[D], size: int) -> tuple[D, int]:
        batch.size += size
        index = batch.count
        batch.count = index + 1
        self.accepted += 1
        if index + 1 >= self._limits.batch_messages:
            self.close_open()
        return batch.delivery, index

    def add_stream(self, stream: bytes, rows: int, now_s: float, head: bytes = b"") -> D:
        """Adds an Arrow stream after the waiting batches.

        It becomes a batch of its own. With a `head`, the beginning that states its schema, it joins the last waiting
        batch if that has the same head and room.
        """
        self.close_open()
        self.accepted += rows
        last = self._closed[-1] if self._closed else None
        if (
            last
            and head
            and last.head == head
            and last.size + len(stream) <= self._limits.batch_bytes
            and last.count + rows <= self._limits.batch_messages
        ):
            last.lines.append(stream)
            last.size += len(stream)
            last.count += rows
            return last.delivery
        batch = ProducerBatch(ARROW, self._new_delivery(), now_s, [stream], size=len(stream), count=rows, head=head)
        self._closed.append(batch)
        return batch.delivery

    def hold(self, size: int, now_s: float) -> ProducerBatch[D]:
        """Reserves the position of a message of which `size` bytes are buffered: a batch of its own, to be released."""
        self.close_open()
        self.accepted += 1
        batch = ProducerBatch(NDJSON, self._new_delivery(), now_s, size=size, count=1, held=True)
        self._closed.append(batch)
        return batch

    def release(self, batch: ProducerBatch[D], now_s: float) -> None:
        """Lets a held batch be sent when it is its turn. The timeout of this batch, and of those that waited for it,
        starts now."""
        batch.held = False
        self._released_s = now_s

    def close_open(self) -> None:
        """Closes the open batch, so that it does not wait for more messages."""
        if self._open is not None:
            self._closed.append(self._open)
            self._open = None

    def ready_in_s(self, now_s: float) -> float | None:
        """Returns the seconds until a batch may be sent: 0 for now, None while there is none or one is in flight."""
        if self._in_flight is not None:
            return None
        if self._closed:
            return None if self._closed[0].held else 0.0
        if self._open is None:
            return None
        return max(0.0, self._open.opened_s + self._limits.linger_ms / 1000 - now_s)

    def next_batch(self) -> ProducerBatch[D]:
        """Returns the batch whose turn it is, with its sequence. Call it only when `ready_in_s` is 0."""
        if not self._closed:
            self.close_open()
        batch = self._in_flight = self._closed.popleft()
        batch.opened_s = max(batch.opened_s, self._released_s)
        batch.sequence = self._next_sequence
        self._next_sequence += batch.count
        return batch

    def finish(self) -> None:
        """Records that the batch in flight succeeded or failed: the next may be sent."""
        assert self._in_flight is not None
        self.finished += self._in_flight.count
        self._in_flight = None

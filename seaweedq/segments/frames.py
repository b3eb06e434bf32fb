"""Frames, the records of a journal: rows of one segment, acks, or a mark. Owns their content and their packing.

Packed, frames are an *index* (their headers, with length and CRC of each payload) and the payloads, each padded with
zeros to a multiple of eight bytes, so that Arrow reads them in place. The journal decides where the bytes are written
and what delimits them.

The index has a CRC where it is written. So what is whole and cannot be decoded, or has columns that nobody knows here,
is of a later version, and needs a newer broker. Later versions add to the end of a header, and kinds.
"""

import zlib
from collections.abc import Iterable
from enum import IntEnum
from typing import TypeAlias

import msgspec
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import astuple

from seaweedq.errors import JournalDamaged
from seaweedq.formats import needs_newer
from seaweedq.segments.layout import OPTIONAL_FIELDS, Layout

Buffer: TypeAlias = bytes | memoryview | pa.Buffer
ALIGNMENT = 8


class FrameKind(IntEnum):
    """The kind of a frame's content."""

    ROWS = 1
    ACKS = 3
    MARK = 4  # an idle segment gets an entry without rows


class ProducerRange(Struct, array_like=True, frozen=True):
    """A producer's request with the inclusive sequences `low` to `high`. Its `count` rows in the range part that begins
    at `part` have the offsets from `first_offset` on."""

    producer: str
    low: int
    high: int
    first_offset: int
    count: int
    part: int


class _Described(Struct, array_like=True, frozen=True):
    kind: FrameKind
    topic: str
    segment: int
    first_offset: int
    count: int
    columns: int
    schema_id: int
    ranges: tuple[ProducerRange, ...]
    append_time_us: int


class Frame(_Described, frozen=True):
    """One record of a segment. `columns` is the mask of optional columns of the rows in `payload` (layout.mask_of)."""

    payload: Buffer


class _Header(_Described, frozen=True):
    length: int
    crc: int


class Mark(Struct, array_like=True, frozen=True):
    """The content of a MARK: the sequence of the entry that the segment gets. It is done once any entry has that."""

    sequence: int


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[_Header])
_mark = msgspec.msgpack.Decoder(Mark)


def mark_frame(topic: str, segment: int, sequence: int, now_us: int) -> Frame:
    """Makes the frame of a mark."""
    return Frame(FrameKind.MARK, topic, segment, 0, 0, 0, 0, (), now_us, _encoder.encode(Mark(sequence)))


def marked_by(frame: Frame) -> int:
    """Returns the sequence that a MARK frame names. Raises NeedsNewerBroker."""
    try:
        return _mark.decode(frame.payload).sequence
    except msgspec.DecodeError as error:
        raise needs_newer(f"a mark of segment {frame.segment} of {frame.topic!r} cannot be read ({error})") from error


def rows_of(frame: Frame, layout: Layout) -> pa.RecordBatch:
    """Returns the rows of a ROWS frame, without a copy. `layout` is that of the frame's topic and schema id. Raises
    JournalDamaged where they are not as many as the frame says, NeedsNewerBroker where this broker cannot read them."""
    where = f"a frame of segment {frame.segment} of {frame.topic!r} from offset {frame.first_offset}"
    if frame.columns >> len(OPTIONAL_FIELDS):
        raise needs_newer(f"{where} has columns that this broker lacks")
    try:
        rows = pa.ipc.read_record_batch(pa.py_buffer(frame.payload), layout.rows(frame.columns))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise needs_newer(f"{where} has rows that this broker cannot read ({error})") from error
    if rows.num_rows != frame.count:
        raise JournalDamaged(f"{where} says {frame.count} rows and holds {rows.num_rows}")
    return rows


def check_frames(frames: Iterable[Frame]) -> None:
    """Asserts before a write what every reader of a journal relies on."""
    for frame in frames:
        assert min(frame.segment, frame.first_offset, frame.count) >= 0, "numbers are not negative"
        assert (frame.count > 0) == (frame.kind is FrameKind.ROWS), "rows have a count, acks and marks have none"


def padded(length: int) -> int:
    """Returns the length including the padding."""
    return -(-length // ALIGNMENT) * ALIGNMENT


def padding(length: int) -> bytes:
    """Returns the zeros that pad a payload of this length."""
    return bytes(padded(length) - length)


def pack(frames: Iterable[Frame]) -> tuple[bytes, list[Buffer]]:
    """Returns the index and the buffers (payloads and padding) to write one after another. Payloads are not copied."""
    headers: list[_Header] = []
    body: list[Buffer] = []
    for frame in frames:
        length = memoryview(frame.payload).nbytes
        zeros = padding(length)
        headers.append(_Header(*(*astuple(frame)[:-1], length, zlib.crc32(zeros, zlib.crc32(frame.payload)))))
        body += (frame.payload, zeros) if zeros else (frame.payload,)
    return _encoder.encode(headers), body


def unpack(index: memoryview, body: memoryview) -> tuple[Frame, ...] | None:
    """Returns the frames of an index, which is whole, and their payloads, as slices of `body`. None: a payload's CRC
    does not match. Raises NeedsNewerBroker."""
    frames, at = [], 0
    try:
        headers = _decoder.decode(index)
    except msgspec.DecodeError as error:
        raise needs_newer(f"a frame of the journal has a form that this broker does not read ({error})") from error
    for header in headers:
        end = at + padded(header.length)
        if zlib.crc32(body[at:end]) != header.crc:
            return None
        frames.append(Frame(*(*astuple(header)[:-2], body[at : at + header.length])))
        at = end
    return tuple(frames) if at == len(body) else None

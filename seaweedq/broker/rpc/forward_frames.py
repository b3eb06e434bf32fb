"""Forward frames: rows of one segment on their way from the broker that got the request to the segment's owner.

A forward is some frames: their headers as msgpack, the length of that in eight bytes ahead, and then the rows of each
as Arrow IPC without the schema. The owner answers with one outcome a frame.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import pyarrow as pa

from seaweedq.broker.rpc.client import ErrorMessage
from seaweedq.broker.rpc.messages import Count, Id, ProducerName, TopicName
from seaweedq.errors import UnreadableBody
from seaweedq.segments.frames import padded, padding
from seaweedq.segments.layout import OPTIONAL_FIELDS, Layout
from seaweedq.segments.producers import Sequences

_LENGTH = 8


class ForwardHeader(msgspec.Struct, array_like=True, frozen=True):
    """The rows' segment, and where the part of its range begins; their optional columns (layout.mask_of); the producer
    and sequences that make a repeat known; the size of the rows."""

    topic: TopicName
    incarnation: Id
    segment: Id
    part: Id
    columns: Annotated[int, msgspec.Meta(ge=0, lt=1 << len(OPTIONAL_FIELDS))]
    producer: ProducerName
    low: Count
    high: Count
    length: Count


class Outcome(msgspec.Struct, array_like=True, frozen=True):
    """The segment that has the rows, which may be a predecessor of the one that they were sent to; the first row's
    offset there, and whether they were there already. Or the error."""

    segment: int = -1
    first_offset: int = -1
    duplicate: bool = False
    trouble: ErrorMessage | None = None


@dataclass(frozen=True, slots=True)
class ForwardFrame:
    """A header and its rows, serialised."""

    header: ForwardHeader
    payload: pa.Buffer | memoryview

    @property
    def sequences(self) -> Sequences:
        """The producer and sequences, which make a repeat known."""
        return Sequences(self.header.producer, self.header.low, self.header.high)

    def rows(self, layout: Layout) -> pa.RecordBatch:
        """Reads and checks the rows, without a copy. Raises UnreadableBody."""
        try:
            rows = pa.ipc.read_record_batch(pa.py_buffer(self.payload), layout.rows(self.header.columns))
            rows.validate(full=True)
        except (pa.ArrowException, OSError, ValueError, IndexError, EOFError) as error:
            raise UnreadableBody(f"the rows of a forwarded frame cannot be read: {error}") from error
        if not 0 < rows.num_rows <= self.header.high - self.header.low + 1:
            raise UnreadableBody(
                f"a forwarded frame of the sequences {self.header.low} to {self.header.high} has {rows.num_rows} rows"
            )
        for field, column in zip(rows.schema, rows.columns, strict=True):
            if column.null_count and not field.nullable:
                raise UnreadableBody(f"a forwarded frame has nulls in {field.name}, which must have none")
        return rows


_headers = msgspec.msgpack.Decoder(list[ForwardHeader])


def encode(frames: Sequence[ForwardFrame]) -> bytes:
    """Encodes a forward's body."""
    index = msgspec.msgpack.encode([frame.header for frame in frames])
    buffers: list[Any] = [len(index).to_bytes(_LENGTH, "little"), index, padding(len(index))]
    for frame in frames:
        buffers += [frame.payload, padding(frame.header.length)]
    return b"".join(buffers)


def decode_forward(body: bytes) -> list[ForwardFrame]:
    """Decodes the frames of a forward; they stand on its bytes. Raises UnreadableBody."""
    view = memoryview(body)
    length = int.from_bytes(view[:_LENGTH], "little")
    at = _LENGTH + padded(length)
    try:
        headers = _headers.decode(view[_LENGTH : _LENGTH + length])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreadableBody(f"the body is not a forward request: {error}") from error
    frames = []
    for header in headers:
        if header.length < 0 or at + header.length > len(view):
            raise UnreadableBody("the forward request ends too early")
        frames.append(ForwardFrame(header, view[at : at + header.length]))
        at += padded(header.length)
    return frames

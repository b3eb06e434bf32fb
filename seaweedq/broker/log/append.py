"""An append: rows of one segment on their way into a commit, together with all who wait for their offsets."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from seaweedq.broker.log.open_segment import OpenSegment, Waiter
from seaweedq.concurrency.futures import fail, resolve
from seaweedq.invariants import require
from seaweedq.segments.frames import Frame, FrameKind, ProducerRange
from seaweedq.segments.layout import mask_of
from seaweedq.segments.rows import microseconds_of
from seaweedq.segments.schema import schema_id


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Rows of one segment and their serialised form, on whose bytes they stand; the newest `_timestamp` among them."""

    rows: pa.RecordBatch
    payload: pa.Buffer
    max_timestamp_us: int

    @staticmethod
    def encode(rows: pa.RecordBatch) -> "EncodedRows":
        """Serialises rows, once. The result stands on the new bytes, so that the request's own buffers can go."""
        payload = rows.serialize()
        return EncodedRows.of(pa.ipc.read_record_batch(payload, rows.schema), payload)

    @staticmethod
    def of(rows: pa.RecordBatch, payload: pa.Buffer) -> "EncodedRows":
        """Describes rows that stand on `payload` already."""
        return EncodedRows(rows, payload, int(microseconds_of(rows.column(0)).max()))


@dataclass(frozen=True, slots=True)
class Append:
    """Rows for one segment, and all who wait for some of them: whole, as the group commit gets it."""

    segment: OpenSegment
    encoded: EncodedRows
    waiters: Sequence[Waiter]

    @property
    def count(self) -> int:
        """The number of rows."""
        return int(self.encoded.rows.num_rows)

    @property
    def size_bytes(self) -> int:
        """The size of the serialised rows."""
        return int(self.encoded.payload.size)

    def check(self) -> None:
        """Raises InvariantViolated unless its rows can get the next offsets, and its waiters wait for all of them."""
        segment, last = self.segment, self.waiters[-1]
        require(
            segment.next >= segment.end,
            "segment %s of %r gives out offset %d, and its tail ends at %d",
            *(segment.id, segment.topic, segment.next, segment.end),
        )
        require(
            self.count == last.row + last.count > 0,
            "an append to segment %s of %r has %d rows, and its waiters wait for %d",
            *(segment.id, segment.topic, self.count, last.row + last.count),
        )

    def frame(self, first_offset: int, now_us: int) -> Frame:
        """Makes the journal's frame of the rows, which get the offsets from `first_offset` on."""
        ranges = tuple(
            ProducerRange(
                w.sequences.producer, w.sequences.low, w.sequences.high, first_offset + w.row, w.count, w.part
            )
            for w in self.waiters
            if w.sequences
        )
        return Frame(
            kind=FrameKind.ROWS,
            topic=self.segment.topic,
            segment=self.segment.id,
            first_offset=first_offset,
            count=self.count,
            columns=mask_of(self.encoded.rows),
            schema_id=schema_id(self.segment.layout.values),
            ranges=ranges,
            append_time_us=now_us,
            payload=self.encoded.payload,
        )

    def succeed(self, first_offset: int) -> None:
        """Tells the waiters the offsets of their rows."""
        for waiter in self.waiters:
            self.segment.remove_pending(waiter)
            resolve(waiter.offset, first_offset + waiter.row)

    def fail(self, error: Exception) -> None:
        """Tells the waiters why their rows were not taken, or why nobody knows."""
        for waiter in self.waiters:
            self.segment.remove_pending(waiter)
            fail(waiter.offset, error)

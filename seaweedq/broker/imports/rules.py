"""Rules of imports: where batches end, the next state of a record, and which broker continues an import. Pure.

docs/internals/by-reference.md ("Imports") has the states, the order of writes, and why batches must be a function of
the file.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seaweedq.coordination.records import ImportedSegment, ImportProblem, ImportRecord
from seaweedq.segments.layout import Layout, header_sizes, together
from seaweedq.segments.producers import IMPORT

if TYPE_CHECKING:  # a reader loads this module, and none of what publishes
    from seaweedq.broker.publish.batch_split import AppendedRows

BATCH_BYTES = 16 * 1024 * 1024
OFFSET_BYTES = 4  # for each text, beside its own bytes
SAVED_EVERY = 4  # batches; less than the requests of a producer that a key range remembers
KEPT_US = 24 * 3600 * 1_000_000  # after the expiry of its upload
NEXT: dict[str, frozenset[str]] = {
    "checking": frozenset({"running", "failed"}),
    "running": frozenset({"done", "failed"}),
    "done": frozenset(),
    "failed": frozenset(),
}


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
        """Takes more rows in. Yields the batches that are complete with them."""
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
        """The batch of what is left, if there is any."""
        if self._held:
            yield together(self._held, self._layout)
        self._held, self._rows, self._bytes = [], 0, 0


def sizes(rows: pa.RecordBatch) -> np.ndarray:
    """Returns the bytes of each row as the cutter counts them: at least half of what a batch needs for them, and the
    same whichever optional columns the other rows have."""
    total = np.full(rows.num_rows, 8 + 2 * OFFSET_BYTES, np.int64)  # its time, and the offsets of key and headers
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            total += pc.binary_length(column).fill_null(0).to_numpy() + (0 if name.startswith("_") else OFFSET_BYTES)
        elif pa.types.is_map(column.type):
            total += header_sizes(column) + 2 * OFFSET_BYTES * np.diff(column.offsets.to_numpy())
        elif not name.startswith("_"):
            total += max(1, column.type.bit_width // 8)
    return total


def producer_of(upload_id: str) -> str:
    """Returns the producer of an import. No client's producer has a name that begins so."""
    return f"{IMPORT}{upload_id}"


def goes_to(record: ImportRecord, state: str, **changes: object) -> ImportRecord:
    """Returns the record in its next state. Raises ValueError for a state that cannot follow."""
    if state not in NEXT[record.state]:
        raise ValueError(f"an import cannot change from {record.state} to {state}")
    return msgspec.structs.replace(record, state=state, **changes)


def progressed(record: ImportRecord, count: int, appended: Iterable[AppendedRows]) -> ImportRecord:
    """Returns the record once `count` more rows, the next ones of the file, are durable where `appended` says."""
    segments = {one.segment: one for one in record.segments}
    for rows in appended:
        first, size = rows.first, len(rows.indexes)
        new = ImportedSegment(rows.segment, first, first + size - 1, size)
        segments[rows.segment] = _together(segments.get(rows.segment), new)
    ordered = tuple(segments[number] for number in sorted(segments))
    return msgspec.structs.replace(record, rows_done=record.rows_done + count, segments=ordered)


def _together(old: ImportedSegment | None, new: ImportedSegment) -> ImportedSegment:
    if old is None:
        return new
    first, last = min(old.first_offset, new.first_offset), max(old.last_offset, new.last_offset)
    return ImportedSegment(new.segment, first, last, old.count + new.count)


def failed(record: ImportRecord, problem: ImportProblem) -> ImportRecord:
    """Returns the record of an import that has failed."""
    return goes_to(record, "failed", problem=problem, broker=None)


def is_over(record: ImportRecord) -> bool:
    """Whether the import has ended."""
    return not NEXT[record.state]


def adopter(upload_id: str, brokers: Iterable[str]) -> str | None:
    """Returns the broker that continues an import which no broker works on, by rendezvous hashing."""
    return max(brokers, key=lambda broker: (zlib.crc32(f"{broker}/{upload_id}".encode()), broker), default=None)


def outlived(record: ImportRecord, now_us: int) -> bool:
    """Whether the record may be removed: nobody can import that upload again."""
    return is_over(record) and now_us > record.expires_us + KEPT_US

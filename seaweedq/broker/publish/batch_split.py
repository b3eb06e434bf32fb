"""Splitting a batch: its rows, by the parts of segments that they fall into, and the places that they have got.

Pure. Rows keep the request's order within a slice, so a key's messages keep theirs. A batch is all rows that go under
one identity: those of its slices that met a sealed segment are split again, all together, by the successors' parts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from seaweedq.broker.log.group_commit import EncodedRows
from seaweedq.broker.rpc.messages import Outcome
from seaweedq.broker.topics.segment_index import Routing
from seaweedq.coordination.records import SegmentRecord
from seaweedq.errors import NotOwner
from seaweedq.segments.keyrange import KEY_SPACE
from seaweedq.segments.row_hashes import Hashes, cut, route


@dataclass(eq=False)
class Batch:
    """All rows of one identity; `hash_all` gives the hash of each, and is called only if it matters."""

    rows: pa.RecordBatch
    hash_all: Callable[[], Hashes]

    @cached_property
    def hashes(self) -> Hashes:
        """The hashes of the rows' keys, one each."""
        return self.hash_all()


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows of a batch for one part of a segment, and their indexes in the batch, rising."""

    segment: int
    part: int
    encoded: EncodedRows
    indexes: np.ndarray


@dataclass(frozen=True, slots=True)
class AppendedRows:
    """Rows of a batch (their indexes, rising) that have the offsets from `first` in `segment`."""

    segment: int
    first: int
    indexes: np.ndarray
    duplicate: bool


def split(bounds: Routing, batch: Batch) -> list[Slice]:
    """Splits a whole batch. Takes long for a large one."""
    if len(bounds.ids) == 1:
        every = np.arange(batch.rows.num_rows)
        return [Slice(bounds.ids[0], int(bounds.lows[0]), EncodedRows.encode(batch.rows), every)]
    return _split(bounds, batch.rows, batch.hashes, np.arange(batch.rows.num_rows))


def split_again(bounds: Routing, batch: Batch, slices: Sequence[Slice]) -> list[Slice]:
    """Splits the rows of these slices of a batch anew, all together."""
    indexes = np.sort(np.concatenate([one.indexes for one in slices]))
    rows = batch.rows.take(pa.array(indexes))
    return _split(bounds, rows, batch.hashes[indexes], indexes)


def is_whole(bounds: Routing, batch: Batch, one: Slice) -> bool:
    """Whether a slice that was split again has all rows of its batch that fall into its part.

    If parts have grown together, and another slice of theirs has failed, it has not. It must not be appended so: a
    repeat of the request comes with all rows, and would be taken for a duplicate.
    """
    after = int(np.searchsorted(bounds.lows, one.part, side="right"))
    high = bounds.lows[after] if after < len(bounds.lows) else KEY_SPACE
    return int(np.count_nonzero((batch.hashes >= one.part) & (batch.hashes < high))) == len(one.indexes)


def _split(bounds: Routing, rows: pa.RecordBatch, hashes: Hashes, indexes: np.ndarray) -> list[Slice]:
    found = cut(rows, route(hashes, bounds.lows), len(bounds.ids))
    return [
        Slice(bounds.ids[position], int(bounds.lows[position]), EncodedRows.encode(some), indexes[at])
        for position, some, at in found
    ]


def locate(batch: Batch, one: Slice, outcome: Outcome, record: SegmentRecord | None) -> list[AppendedRows]:
    """Returns where the rows of a slice are. Its `outcome` may name an earlier segment, of which `record` is.

    That segment has all rows of the batch that fall into the part which it had there, in their order. Raises NotOwner
    if its record is not known.
    """
    if outcome.segment == one.segment:
        return [AppendedRows(outcome.segment, outcome.first_offset, one.indexes, outcome.duplicate)]
    if record is None:
        raise NotOwner(
            f"an earlier request stored these messages in segment {outcome.segment}, but this broker does not know "
            "that segment yet"
        )
    lows = np.array([*record.parts, record.high])
    before = int(np.searchsorted(lows, one.part, side="right")) - 1
    low, high = lows[max(before, 0)], lows[max(before, 0) + 1]
    held = np.flatnonzero((batch.hashes >= low) & (batch.hashes < high))
    ranks = np.searchsorted(held, one.indexes)
    runs = np.split(np.arange(len(ranks)), np.flatnonzero(np.diff(ranks) != 1) + 1)
    return [
        AppendedRows(outcome.segment, outcome.first_offset + int(ranks[run[0]]), one.indexes[run], outcome.duplicate)
        for run in runs
    ]

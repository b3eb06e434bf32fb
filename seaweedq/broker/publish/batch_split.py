"""Pieces: a request's rows, cut by the parts of segments that they fall into, and where they have come to lie.

Pure. Rows keep the request's order within a piece, so a key's messages keep theirs. A *cargo* is all rows that go under
one identity: what of it met a sealed segment is cut again, all together, by the successors' parts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from seaweedq.broker.log.group_commit import Rows
from seaweedq.broker.rpc.forward_frames import Outcome
from seaweedq.broker.topics.bounds import Bounds
from seaweedq.coordination.records import SegmentRecord
from seaweedq.errors import NotOwner
from seaweedq.segments.keyhash import Hashes, cut, route
from seaweedq.segments.keyrange import KEY_SPACE


@dataclass(eq=False)
class Cargo:
    """All rows of one identity; `hash_all` gives the hash of each, and is called only where it matters."""

    rows: pa.RecordBatch
    hash_all: Callable[[], Hashes]

    @cached_property
    def hashes(self) -> Hashes:
        """Where the rows' keys lie, one each."""
        return self.hash_all()


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of a cargo for one part of a segment, and their indexes in it, rising."""

    segment: int
    part: int
    rows: Rows
    indexes: np.ndarray


@dataclass(frozen=True, slots=True)
class Placed:
    """Rows of the cargo (their indexes, rising) that have the offsets from `first` in `segment`."""

    segment: int
    first: int
    indexes: np.ndarray
    duplicate: bool


def cut_all(bounds: Bounds, cargo: Cargo) -> list[Piece]:
    """A whole cargo in pieces. Takes its time where there is much of it."""
    if len(bounds.ids) == 1:
        return [Piece(bounds.ids[0], int(bounds.lows[0]), Rows.of(cargo.rows), np.arange(cargo.rows.num_rows))]
    return _cut(bounds, cargo.rows, cargo.hashes, np.arange(cargo.rows.num_rows))


def cut_again(bounds: Bounds, cargo: Cargo, pieces: Sequence[Piece]) -> list[Piece]:
    """The rows of these pieces of a cargo, cut anew all together."""
    indexes = np.sort(np.concatenate([piece.indexes for piece in pieces]))
    rows = cargo.rows.take(pa.array(indexes))
    return _cut(bounds, rows, cargo.hashes[indexes], indexes)


def is_whole(bounds: Bounds, cargo: Cargo, piece: Piece) -> bool:
    """Whether a piece that was cut again has all rows of its cargo that fall into its part.

    Where parts have grown together, and some other piece of theirs has failed, it has not. It must not be taken so: a
    repeat of the request comes with all of them, and would be taken for what is there.
    """
    after = int(np.searchsorted(bounds.lows, piece.part, side="right"))
    high = bounds.lows[after] if after < len(bounds.lows) else KEY_SPACE
    return int(np.count_nonzero((cargo.hashes >= piece.part) & (cargo.hashes < high))) == len(piece.indexes)


def _cut(bounds: Bounds, rows: pa.RecordBatch, hashes: Hashes, indexes: np.ndarray) -> list[Piece]:
    found = cut(rows, route(hashes, bounds.lows), len(bounds.ids))
    return [Piece(bounds.ids[p], int(bounds.lows[p]), Rows.of(piece), indexes[at]) for p, piece, at in found]


def places(cargo: Cargo, piece: Piece, outcome: Outcome, record: SegmentRecord | None) -> list[Placed]:
    """Where the rows of a piece are, whose `outcome` may name an earlier segment, of which `record` is.

    That one has all rows of the cargo that fall into the part which it had there, in their order. Raises NotOwner where
    its record is not known.
    """
    if outcome.segment == piece.segment:
        return [Placed(outcome.segment, outcome.first_offset, piece.indexes, outcome.duplicate)]
    if record is None:
        raise NotOwner(f"the messages are in segment {outcome.segment}, which this broker does not know yet")
    lows = np.array([*record.parts, record.high])
    part = int(np.searchsorted(lows, piece.part, side="right")) - 1
    low, high = lows[max(part, 0)], lows[max(part, 0) + 1]
    held = np.flatnonzero((cargo.hashes >= low) & (cargo.hashes < high))
    ranks = np.searchsorted(held, piece.indexes)
    runs = np.split(np.arange(len(ranks)), np.flatnonzero(np.diff(ranks) != 1) + 1)
    return [
        Placed(outcome.segment, outcome.first_offset + int(ranks[run[0]]), piece.indexes[run], outcome.duplicate)
        for run in runs
    ]

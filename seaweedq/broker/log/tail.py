"""A segment's tail: rows that are durable in the journal and not yet in Parquet, in memory.

Only the end grows, only the start goes (flushed). Every piece knows the commit that holds it, so that the
journal can be released up to the oldest piece that is still here.
"""

from collections import deque
from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one commit: offsets [first, first + rows), their size, their commit, and when they came (monotonic)."""

    first: int
    rows: pa.RecordBatch
    size_bytes: int
    commit: int
    at_s: float

    @property
    def end(self) -> int:
        """One above the last offset."""
        return self.first + int(self.rows.num_rows)


class Tail:
    """Dense pieces from `start` to `end`."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.end = start
        self.size_bytes = 0
        self._pieces: deque[Piece] = deque()

    def __len__(self) -> int:
        return len(self._pieces)

    def append(self, piece: Piece) -> None:
        """Add what has become durable."""
        assert piece.first == self.end
        self._pieces.append(piece)
        self.end = piece.end
        self.size_bytes += piece.size_bytes

    def oldest(self) -> Piece:
        """The first piece; the tail must not be empty."""
        return self._pieces[0]

    def head(self, limit_bytes: int) -> list[Piece]:
        """The first pieces, together at most `limit_bytes`, but at least one."""
        taken: list[Piece] = []
        size = 0
        for piece in self._pieces:
            size += piece.size_bytes
            if taken and size > limit_bytes:
                break
            taken.append(piece)
        return taken

    def drop(self, end: int) -> None:
        """Forget the pieces below `end`, which must be where a piece ends."""
        while self._pieces and self._pieces[0].first < end:
            piece = self._pieces.popleft()
            assert piece.end <= end
            self.size_bytes -= piece.size_bytes
        self.start = end

    def since(self, offset: int) -> list[Piece]:
        """The pieces that end above `offset`, in order; looks from the end, where readers mostly are."""
        found: list[Piece] = []
        for piece in reversed(self._pieces):
            if piece.end <= offset:
                break
            found.append(piece)
        return found[::-1]

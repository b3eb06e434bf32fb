"""A segment's tail: rows that are durable in the journal and not yet in Parquet, in memory.

Only the end grows, only the start goes (flushed). All buffered rows know the commit that holds them, so that the
journal can be released up to the oldest commit that is still here.
"""

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass

import pyarrow as pa

from seaweedq.invariants import require


@dataclass(frozen=True, slots=True)
class BufferedRows:
    """Rows of one commit: their first offset, their size, their commit, and when they came (monotonic)."""

    first: int
    rows: pa.RecordBatch
    size_bytes: int
    commit: int
    at_s: float

    @property
    def end(self) -> int:
        """One above the last offset."""
        return self.first + int(self.rows.num_rows)


def time_of(rows: pa.RecordBatch, at: int) -> int:
    """Returns the `_timestamp` of a row, in microseconds since 1970."""
    return int(rows.column(0)[at].value)


class Tail:
    """Dense rows from `start` to `end`."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.end = start
        self.size_bytes = 0
        self._buffered: deque[BufferedRows] = deque()

    def __len__(self) -> int:
        return len(self._buffered)

    def append(self, rows: BufferedRows) -> None:
        """Adds rows that have become durable. Raises InvariantViolated unless they begin where the tail ends."""
        require(rows.first == self.end, "rows from offset %d are added to a tail that ends at %d", rows.first, self.end)
        self._buffered.append(rows)
        self.end = rows.end
        self.size_bytes += rows.size_bytes

    def oldest(self) -> BufferedRows:
        """Returns the first rows; the tail must not be empty."""
        return self._buffered[0]

    def head(self, limit_bytes: int) -> list[BufferedRows]:
        """Returns the first rows, together at most `limit_bytes`, but those of one commit at least."""
        taken: list[BufferedRows] = []
        size = 0
        for rows in self._buffered:
            size += rows.size_bytes
            if taken and size > limit_bytes:
                break
            taken.append(rows)
        return taken

    def drop(self, end: int) -> None:
        """Forgets the rows below `end`. Raises InvariantViolated unless rows that were added together end there."""
        while self._buffered and self._buffered[0].first < end:
            first = self._buffered[0]
            require(first.end <= end, "rows %d to %d of a tail are dropped up to %d", first.first, first.end, end)
            self.size_bytes -= self._buffered.popleft().size_bytes
        self.start = end

    def weigh(self, offset: int) -> tuple[int, int | None]:
        """Returns about how many bytes the rows from `offset` on take, by their share, and the `_timestamp` of the
        first one; None where there is none."""
        if offset >= self.end:
            return 0, None
        first = self._buffered[max(0, bisect_right(self._buffered, offset, key=lambda rows: rows.first) - 1)]
        time_us = time_of(first.rows, max(0, offset - first.first))
        return self.size_bytes * (self.end - max(offset, self.start)) // (self.end - self.start), time_us

    def since(self, offset: int) -> list[BufferedRows]:
        """Returns the rows that end above `offset`, in order. Looks from the end, where readers mostly are."""
        found: list[BufferedRows] = []
        for rows in reversed(self._buffered):
            if rows.end <= offset:
                break
            found.append(rows)
        return found[::-1]

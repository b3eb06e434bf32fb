"""Sets of offsets as sorted, disjoint, half-open runs: small where the offsets are dense, as acks are."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

Run = tuple[int, int]
Offsets = np.ndarray[Any, np.dtype[np.int64]]


class Runs:
    """A mutable set of offsets. Iterates over its runs in order."""

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self._lows: list[int] = []
        self._highs: list[int] = []
        for low, high in runs:
            self.add(low, high)

    def __iter__(self) -> Iterator[Run]:
        return zip(list(self._lows), list(self._highs), strict=True)

    def __len__(self) -> int:
        return len(self._lows)

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self._lows, offset) - 1
        return at >= 0 and offset < self._highs[at]

    @property
    def size(self) -> int:
        """The number of offsets."""
        return sum(self._highs) - sum(self._lows)

    @property
    def end(self) -> int:
        """The end of the last run, 0 for an empty set."""
        return self._highs[-1] if self._highs else 0

    def add(self, low: int, high: int) -> None:
        """Adds [low, high); touching runs become one."""
        if low >= high:
            return
        first = bisect_left(self._highs, low)
        last = bisect_right(self._lows, high)
        if first < last:
            low, high = min(low, self._lows[first]), max(high, self._highs[last - 1])
        self._lows[first:last] = [low]
        self._highs[first:last] = [high]

    def discard(self, low: int, high: int) -> None:
        """Removes [low, high)."""
        first, last = bisect_right(self._highs, low), bisect_left(self._lows, high)
        if low < high and first < last:
            kept = [(self._lows[first], low), (high, self._highs[last - 1])]
            kept = [run for run in kept if run[0] < run[1]]
            self._lows[first:last] = [run[0] for run in kept]
            self._highs[first:last] = [run[1] for run in kept]

    def end_of(self, offset: int) -> int:
        """Returns the first offset at or above this one that is not in the set."""
        at = bisect_right(self._lows, offset) - 1
        return max(offset, self._highs[at]) if at >= 0 else offset

    def gap_end(self, low: int, high: int) -> int:
        """Returns where the gap that begins at `low`, an offset that is not in the set, ends; at most `high`."""
        at = bisect_right(self._lows, low)
        return min(high, self._lows[at]) if at < len(self._lows) else high

    def gaps(self, low: int, high: int) -> list[Run]:
        """Returns the runs of [low, high) that are not in the set."""
        found = []
        while (low := self.end_of(low)) < high:
            end = self.gap_end(low, high)
            found.append((low, end))
            low = end
        return found


def distinct(offsets: Iterable[int] | Offsets) -> Offsets:
    """Returns offsets sorted, each once. Those that rise already, as a lease's do, are returned as they are: to sort
    them takes ten times as long as to look."""
    found = offsets if isinstance(offsets, np.ndarray) else np.fromiter(offsets, np.int64)
    return found if (found[1:] > found[:-1]).all() else np.unique(found)


def runs_of(offsets: Iterable[int] | Offsets) -> list[Run]:
    """Returns the sorted disjoint runs of any offsets."""
    found = distinct(offsets)
    if not len(found):
        return []
    cuts = np.flatnonzero(np.diff(found) != 1) + 1
    lows, highs = found[np.concatenate([[0], cuts])], found[np.concatenate([cuts - 1, [len(found) - 1]])] + 1
    return list(zip(lows.tolist(), highs.tolist(), strict=True))

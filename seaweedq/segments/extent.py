"""The bytes of a segment's messages, and when they came, as far as a broker knows without asking anybody: for metrics.
Pure.

Of files it is what their writer knows, and what listings of the store have said; a file's messages count as having come
with its first one. Estimates are never of older messages than there are, so that a lag that is shown is there.
"""

from bisect import bisect_right, insort
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from seaweedq.segments.entry import EntryName

MARKS = 512


@dataclass(slots=True)
class KnownEntry:
    """An entry: its size in bytes, and when its first message came, or later, in microseconds since 1970."""

    size: int
    came_us: int


class Extent:
    """The entries of a chain that are known, which ends at `end`. Of those between that are not, each is as large as
    the one before."""

    def __init__(self, known: Mapping[EntryName, KnownEntry], end: int) -> None:
        names = sorted(known)
        self._names = names
        self._came_us = [known[name].came_us for name in names]
        steps = [after.sequence - name.sequence for name, after in pairwise(names)] + [1] * bool(names)
        sizes = [known[name].size * step for name, step in zip(names, steps, strict=True)]
        self._offsets = np.array([*(name.first_offset for name in names), end], np.float64)
        self._bytes = np.array([0, *np.cumsum(np.array(sizes, np.float64))])

    def size_since(self, offset: int) -> int:
        """Returns about how many bytes the entries have from an offset on; what is before all known ones counts as
        they do."""
        if not self._names:
            return 0
        first, end, size = self._offsets[0], self._offsets[-1], self._bytes[-1]
        before = size / (end - first) * max(0.0, first - offset) if end > first else 0.0
        return int(before + size - np.interp(offset, self._offsets, self._bytes))

    def came_us(self, offset: int) -> int | None:
        """Returns when the message at an offset came, or later; None where nothing is known."""
        at = bisect_right(self._names, offset, key=lambda name: name.first_offset) - 1
        return self._came_us[max(0, at)] if self._names else None


class Course:
    """The course of a segment that another broker owns: when its messages came, as far as its ends were heard and
    messages were read, at MARKS offsets at most; and the bytes of a message."""

    def __init__(self) -> None:
        self._marks: list[tuple[int, int]] = []
        self._rows = self._bytes = 0

    def came(self, offset: int, time_us: int) -> None:
        """Notes when a message came, or later."""
        at = bisect_right(self._marks, offset, key=lambda mark: mark[0]) - 1
        if at >= 0 and self._marks[at][0] == offset:
            self._marks[at] = offset, min(time_us, self._marks[at][1])
            return
        insort(self._marks, (offset, time_us))
        if len(self._marks) > MARKS:
            self._marks = self._marks[::2]

    def took(self, rows: int, size_bytes: int) -> None:
        """Notes the size of messages that were read."""
        self._rows, self._bytes = self._rows + rows, self._bytes + size_bytes

    def size_of(self, rows: int) -> int:
        """Returns about how many bytes so many messages take; 0 where none was read yet."""
        return self._bytes * rows // self._rows if self._rows else 0

    def came_us(self, offset: int) -> int | None:
        """Returns when the message at an offset came, or later; None where nothing is known."""
        at = bisect_right(self._marks, offset, key=lambda mark: mark[0]) - 1
        return self._marks[max(0, at)][1] if self._marks else None

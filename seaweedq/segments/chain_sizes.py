"""The bytes of a segment's messages, and when they came, as far as a broker knows without asking anybody: for metrics.
Pure.

Of files it is what their writer knows, and what listings of the store have said; a file's messages count as having come
with its first one. Never overestimates the age: the lag that is shown is real.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping
from dataclasses import dataclass

from seaweedq.segments.entry import EntryName

MARKS = 512


@dataclass(slots=True)
class KnownEntry:
    """An entry: its size in bytes, and when its first message came, or later, in microseconds since 1970."""

    size: int
    came_us: int


class ChainSizes:
    """The entries of a chain that are known, which ends at `end`. Of those between that are not, each is as large as
    the one before. A flush adds an entry, whatever the number of those before: all metrics need is kept as sums."""

    def __init__(self, known: Mapping[EntryName, KnownEntry], end: int) -> None:
        self._names: list[EntryName] = []
        self._came_us: list[int] = []
        self._before: list[int] = []  # the bytes of all entries before each
        self._last = 0  # the bytes of the last one
        self._end = end
        for name in sorted(known):
            self.append(name, known[name], end)

    def append(self, name: EntryName, entry: KnownEntry, end: int) -> None:
        """Adds an entry behind all others."""
        steps = name.sequence - self._names[-1].sequence if self._names else 0
        self._before.append(self._before[-1] + steps * self._last if self._names else 0)
        self._names.append(name)
        self._came_us.append(entry.came_us)
        self._last, self._end = entry.size, end

    def size_since(self, offset: int) -> int:
        """Returns about how many bytes the entries have from an offset on; what is before all known ones counts as
        they do."""
        if not self._names:
            return 0
        first, size = self._names[0].first_offset, self._before[-1] + self._last
        if offset < first:
            return int(size + (size / (self._end - first) * (first - offset) if self._end > first else 0))
        at = self._at(offset)
        low, below = self._names[at].first_offset, self._before[at]
        is_last = at == len(self._names) - 1
        high, above = (self._end, size) if is_last else (self._names[at + 1].first_offset, self._before[at + 1])
        share = min(1.0, (offset - low) / (high - low)) if high > low else 1.0
        return int(size - below - share * (above - below))

    def came(self, name: EntryName, time_us: int) -> None:
        """Notes the time of an entry's first message."""
        at = bisect_left(self._names, name)
        if at < len(self._names) and self._names[at] == name:
            self._came_us[at] = time_us

    def came_us(self, offset: int) -> int | None:
        """Returns when the message at an offset came, or later; None where nothing is known."""
        return self._came_us[max(0, self._at(offset))] if self._names else None

    def _at(self, offset: int) -> int:
        return bisect_right(self._names, offset, key=lambda name: name.first_offset) - 1


class RemoteSizeHistory:
    """The history of a segment that another broker owns: when its messages came, as far as its ends were heard and
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

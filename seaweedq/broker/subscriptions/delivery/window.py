"""The state of each offset of a segment from the first unacked one on, in flat arrays: 39 bytes an offset, none while
nothing is delivered.

Pure. Offsets from `end` on were never given to anybody in this epoch, and are FREE.

| state | the offset is |
| --- | --- |
| FREE | available |
| HELD | leased: `lease` has it until `due_s` |
| DELAYED | leased to nobody: it is available again at `due_s` |
| DYING | given up, and with nobody: its dead letter is published, at `due_s` at the earliest (dying) |
| ACKING | acked, and its frame is on its way to the journal |
| ACKED | acked durably |
"""

from typing import Any

import numpy as np

from seaweedq.broker.log.intervals import Offsets
from seaweedq.broker.subscriptions.delivery.slots import BusySlots

FREE, HELD, DELAYED, DYING, ACKING, ACKED = range(6)
STATES = 6
_BUSY = (False, True, True, False, True, False)  # by state: whether the offset keeps its slot from others (slots)
NOBODY = 0  # no lease and no consumer has this number
MOST_ATTEMPTS = 65_535
FIRST_SIZE = 1024
WINDOW = 100_000  # offsets from the first unacked one on that are delivered
TYPES = {
    "state": np.uint8,
    "lease": np.int64,  # the one that had the offset last
    "consumer": np.int64,  # the one that had the offset last
    "before": np.int64,  # the lease from which that consumer has it again, if it does
    "attempts": np.uint16,  # deliveries that count, the present one included
    "due_s": np.float64,  # monotonic; of HELD and DELAYED ones
    "slot": np.int32,  # the hash of the key, where the mode asks for it
}

Array = np.ndarray[Any, np.dtype[Any]]
_IS_BUSY = np.array(_BUSY)


class Window:
    """Arrays over [low, end), one for each name in TYPES.

    A slice of an array is a view, for `low <= first <= last <= end`. `changes` counts what was changed. `busy` is there
    where keys matter.
    """

    def __init__(self, low: int) -> None:
        self.changes = 0
        self.busy: BusySlots | None = None
        self._empty(low)

    def _empty(self, low: int) -> None:
        self.low = self.end = low
        self._origin = low  # the offset at index 0
        if self.busy is not None:
            self.busy.clear()
        self._arrays: dict[str, Array] = {name: np.zeros(0, kind) for name, kind in TYPES.items()}

    def span(self, name: str, first: int, last: int | None = None) -> Array:
        """Returns the values of [first, last), by default up to the end."""
        last = self.end if last is None else last
        return self._arrays[name][first - self._origin : max(first, last) - self._origin]

    def of(self, name: str, offsets: Offsets) -> Array:
        """Returns the values of these offsets."""
        return self._arrays[name][offsets - self._origin]

    def put(self, name: str, offsets: Offsets, value: Any) -> None:
        """Sets the values of these offsets; states are set by `move`."""
        self._arrays[name][offsets - self._origin] = value
        self.changes += 1

    def move(self, offsets: Offsets, state: int) -> None:
        """Sets the state of these offsets, each of which is there once."""
        if self.busy is not None:
            self._count_busy(self.busy, offsets, _BUSY[state])
        self.put("state", offsets, state)

    def _count_busy(self, busy: BusySlots, offsets: Offsets, is_busy: bool) -> None:
        known = offsets[offsets < busy.known_to]
        changed = known[_IS_BUSY[self.of("state", known)] != is_busy]
        (busy.add if is_busy else busy.remove)(self.of("slot", changed))

    def know(self, first: int, slots: Array) -> None:
        """Takes in the slots of the offsets from `first` on, which were not known."""
        self.reach(first + len(slots))
        self.span("slot", first, first + len(slots))[:] = slots
        self.changes += 1
        if self.busy is not None:
            self.busy.known_to = first + len(slots)
            self.busy.add(slots[_IS_BUSY[self.span("state", first, first + len(slots))]])

    def count(self, offsets: Offsets, step: int) -> None:
        """Adds to the attempts of these offsets."""
        changed = self.of("attempts", offsets).astype(np.int32) + step
        self.put("attempts", offsets, changed.clip(0, MOST_ATTEMPTS))

    def find(self, first: int, *states: int, last: int | None = None) -> Offsets:
        """Returns the offsets of [first, last) in one of these states."""
        found = self.span("state", first, last)
        mask = found == states[0]
        for state in states[1:]:
            mask |= found == state
        return np.flatnonzero(mask) + first

    def numbers(self, name: str) -> set[int]:
        """Returns all values of an array that some unacked offset has."""
        unacked = self.span("state", self.low) != ACKED
        return set(np.unique(self.span(name, self.low)[unacked]).tolist())

    def reach(self, end: int) -> None:
        """Extends the arrays up to `end`, unless they reach further."""
        if end <= self.end:
            return
        if end - self._origin > len(self._arrays["state"]):
            size = FIRST_SIZE
            while size < 2 * (end - self.low):
                size *= 2
            shift, used = self.low - self._origin, self.end - self.low
            for name, old in self._arrays.items():
                new = self._arrays[name] = np.zeros(size, old.dtype)
                new[:used] = old[shift : shift + used]
            self._origin = self.low
        self.end = end

    def forget(self, below: int) -> None:
        """Forgets all offsets below this one; the arrays too where nothing is left. None of those that stay behind is
        busy, unless all go."""
        self.low = below
        self.changes += 1
        if self.low >= self.end:
            self._empty(below)

"""The state of each offset of a segment from the first unacked one on, in flat arrays: 7 bytes an offset, none while
nothing is delivered.

Pure. Offsets from `end` on were never given to anybody in this epoch, and are FREE.
"""

from typing import Any

import numpy as np

from seaweedq.broker.log.intervals import Offsets

FREE, HELD, ACKING, ACKED = range(4)
NOBODY = 0  # no consumer has this number
FIRST_SIZE = 1024

Array = np.ndarray[Any, np.dtype[Any]]


class Window:
    """Arrays over [low, end): `state`; `holder`, the consumer that had the offset last; `attempts`, its deliveries.

    A slice of an array is a view, for `low <= first <= last <= end`.
    """

    def __init__(self, low: int) -> None:
        self._empty(low)

    def _empty(self, low: int) -> None:
        self.low = self.end = low
        self._origin = low  # the offset at index 0
        self._state = np.zeros(0, np.uint8)
        self._holder = np.zeros(0, np.uint32)
        self._attempts = np.zeros(0, np.uint16)

    def state(self, first: int, last: int) -> Array:
        """Returns the states of [first, last)."""
        return self._state[first - self._origin : last - self._origin]

    def states_of(self, offsets: Offsets) -> Array:
        """Returns the states of these offsets."""
        return self._state[offsets - self._origin]

    def holders_of(self, offsets: Offsets) -> Array:
        """Returns the numbers of the consumers that had these offsets last."""
        return self._holder[offsets - self._origin]

    def attempts_of(self, offsets: Offsets) -> Array:
        """Returns how often each of these offsets was delivered."""
        return self._attempts[offsets - self._origin]

    def holders(self) -> set[int]:
        """Returns the numbers of all consumers that had some offset last."""
        return set(np.unique(self._holder).tolist())

    def set_state(self, offsets: Offsets, state: int) -> None:
        """Sets the state of these offsets."""
        self._state[offsets - self._origin] = state

    def give(self, offsets: Offsets, holder: int) -> None:
        """Counts a delivery of these offsets to a consumer."""
        at = offsets - self._origin
        self._state[at] = HELD
        self._holder[at] = holder
        self._count(at, 1)

    def take_back(self, offsets: Offsets) -> None:
        """Undoes a delivery that never happened."""
        at = offsets - self._origin
        self._state[at] = FREE
        self._holder[at] = NOBODY
        self._count(at, -1)

    def know_attempts(self, first: int, last: int, attempts: dict[int, int]) -> None:
        """States that [first, last) was delivered once, and these offsets so often."""
        self._attempts[first - self._origin : last - self._origin] = 1
        for offset, count in attempts.items():
            if first <= offset < last:
                self._attempts[offset - self._origin] = min(count, 65_535)

    def attempts_above_one(self) -> list[tuple[int, int]]:
        """Returns the unacked offsets that were delivered more than once, with how often."""
        span = slice(self.low - self._origin, self.end - self._origin)
        at = np.flatnonzero((self._attempts[span] > 1) & (self._state[span] != ACKED))
        return list(zip((at + self.low).tolist(), self._attempts[span][at].tolist(), strict=True))

    def reach(self, end: int) -> None:
        """Extends the arrays up to `end`, unless they reach further."""
        if end <= self.end:
            return
        if end - self._origin > len(self._state):
            size = FIRST_SIZE
            while size < 2 * (end - self.low):
                size *= 2
            shift, used = self.low - self._origin, self.end - self.low
            for name in ("_state", "_holder", "_attempts"):
                old = getattr(self, name)
                new = np.zeros(size, old.dtype)
                new[:used] = old[shift : shift + used]
                setattr(self, name, new)
            self._origin = self.low
        self.end = end

    def forget(self, below: int) -> None:
        """Forgets all offsets below this one; the arrays too where nothing is left."""
        self.low = below
        if self.low >= self.end:
            self._empty(below)

    def _count(self, at: Array, step: int) -> None:
        self._attempts[at] = np.minimum(self._attempts[at].astype(np.int32) + step, 65_535)

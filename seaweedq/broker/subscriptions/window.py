"""The state of each offset of a segment from the first unacked one on, in flat arrays: 39 bytes an offset, none while
nothing is delivered. Pure.

Offsets from `end` on were never given to anybody in this epoch, and are FREE.

| state | the offset is |
| --- | --- |
| FREE | available |
| HELD | leased: `lease` has it until `due_s` |
| DELAYED | leased to nobody: it is available again at `due_s` |
| DYING | given up, and with nobody: its dead letter is published, at `due_s` at the earliest (delivery) |
| ACKING | acked, and its frame is on its way to the journal |
| ACKED | acked durably |

The steps between them are the methods of `Window`, and those of docs/internals/states.md. Only this module writes
states.

The progress is all that becomes durable (`CursorRecord`): acked below `acked_to`, and which offsets beyond it. The
frames of acks come first, then a checkpoint. Leases and delays (leases) do not become durable.

A *slot* is the hash of a message's key, by which `keyed` keeps order. A slot is *busy* while a message of it is with
somebody: leased, delayed, or acked and not durable yet.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from seaweedq.broker.log.intervals import Offsets, Run, runs_of
from seaweedq.coordination.records import CursorRecord

SLOTS = 65_536
NO_KEY = -1  # the slot of a message without a key
Slots = np.ndarray[Any, np.dtype[np.int32]]
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
    "slot": np.int32,  # the hash of the key, if the mode asks for it
}
Array = np.ndarray[Any, np.dtype[Any]]
_IS_BUSY = np.array(_BUSY)
EMPTY: Offsets = np.zeros(0, np.int64)


class BusySlots:
    """How many messages of each slot are with somebody, those below `known_to` alone: the keys of others are not known.
    To search the window for them at each pull would cost more than all else. There is no table while none is."""

    def __init__(self, known_to: int) -> None:
        self.known_to = known_to
        self._counts: np.ndarray[Any, np.dtype[np.uint32]] | None = None

    def add(self, slots: Slots) -> None:
        """Counts messages that somebody has now."""
        if len(slots):
            self._counts = np.zeros(SLOTS + 1, np.uint32) if self._counts is None else self._counts
            np.add.at(self._counts, slots, 1)
            self._counts[NO_KEY] = 0  # the last place: those without a key wait for nobody

    def remove(self, slots: Slots) -> None:
        """Counts messages that nobody has any more."""
        if self._counts is not None and len(slots):
            np.subtract.at(self._counts, slots, 1)
            self._counts[NO_KEY] = 0

    def clear(self) -> None:
        """Nobody has anything."""
        self._counts = None

    def free(self, slots: Slots) -> "np.ndarray[Any, np.dtype[np.bool_]]":
        """Tells which of these slots are not busy."""
        return np.ones(len(slots), bool) if self._counts is None else self._counts[slots] == 0


class Window:
    """Arrays over [`acked_to`, `end`), one for each name in TYPES, and the progress.

    Everything below `acked_to` is acked, and `acked_count` offsets beyond it; offsets from `delivered_to` on were never
    delivered. Those below `sought_below` may have been delivered before a seek. No offset of the window below
    `free_from` is FREE. `changes` counts changes. `busy` is there if keys matter.
    """

    def __init__(
        self,
        acked_to: int,
        acked: Iterable[Run] = (),
        attempts: Mapping[int, int] | None = None,
        delivered_to: int = 0,
    ) -> None:
        acked = list(acked)
        self.changes = 0
        self.busy: BusySlots | None = None
        self._empty(acked_to)
        self.free_from = acked_to
        self.acked_count = 0
        self.sought_below = 0
        # After a crash acks are newer than the checkpoint.
        self.delivered_to = max(delivered_to, acked_to, *(high for _, high in acked))
        self.reach(self.delivered_to)
        self.span("attempts", acked_to)[:] = 1
        for offset, count in (attempts or {}).items():
            if acked_to <= offset < self.delivered_to:
                self._put("attempts", np.array([offset]), min(count, MOST_ATTEMPTS))
        self.pass_over_all(acked)

    def _empty(self, acked_to: int) -> None:
        self.acked_to = self.end = acked_to
        self._origin = acked_to  # the offset at index 0
        if self.busy is not None:
            self.busy.clear()
        self._arrays: dict[str, Array] = {name: np.zeros(0, kind) for name, kind in TYPES.items()}

    # Values

    @property
    def is_idle(self) -> bool:
        """Whether nothing beyond `acked_to` is leased, delayed or acked. Most segments of most subscriptions are."""
        return self.end <= self.acked_to

    def span(self, name: str, first: int, last: int | None = None) -> Array:
        """Returns a view of the values of [first, last), by default up to the end."""
        last = self.end if last is None else last
        return self._arrays[name][first - self._origin : max(first, last) - self._origin]

    def values(self, name: str, offsets: Offsets) -> Array:
        """Returns the values of these offsets."""
        return self._arrays[name][offsets - self._origin]

    def find(self, first: int, *states: int, last: int | None = None) -> Offsets:
        """Returns the offsets of [first, last) in one of these states."""
        found = self._arrays["state"][first - self._origin : (self.end if last is None else last) - self._origin]
        mask = found == states[0]
        for state in states[1:]:
            mask |= found == state
        return np.flatnonzero(mask) + first

    def unleased(self, low: int, high: int, limit: int) -> Offsets:
        """Returns the FREE offsets of [low, high), or about `limit` of them if the arrays do not reach so far; below
        `low` nothing is FREE."""
        known = max(low, min(high, self.end))
        free = self.find(low, FREE, last=known) if low < known else EMPTY
        self.free_from = int(free[0]) if len(free) else known
        if len(free) < limit and known < high:
            free = np.concatenate([free, self.reach_free(known, min(high, known + limit - len(free)))])
        return free

    def reach_free(self, low: int, high: int) -> Offsets:
        """Returns the offsets of [low, high), which nobody has had, and extends the arrays up to them."""
        self.reach(high)
        return np.arange(low, high, dtype=np.int64)

    def within(self, offsets: Offsets) -> Offsets:
        """Returns those of sorted offsets that are in the window."""
        if len(offsets) and self.acked_to <= offsets[0] and offsets[-1] < self.end:
            return offsets
        return offsets[(offsets >= self.acked_to) & (offsets < self.end)]

    def count(self, state: int) -> int:
        """Returns how many offsets are in a state."""
        if self.end <= self.acked_to:
            return 0
        states = self._arrays["state"][self.acked_to - self._origin : self.end - self._origin]
        return int(np.count_nonzero(states == state))

    def counts(self) -> list[int]:
        """Returns how many offsets beyond `acked_to` are in each state."""
        if self.is_idle:
            return [0] * STATES
        counts: list[int] = np.bincount(self.span("state", self.acked_to), minlength=STATES).tolist()
        return counts

    def numbers(self, name: str) -> set[int]:
        """Returns all values of an array that some unacked offset has."""
        unacked = self.span("state", self.acked_to) != ACKED
        return set(np.unique(self.span(name, self.acked_to)[unacked]).tolist())

    def reach(self, end: int) -> None:
        """Extends the arrays up to `end`, unless they reach further."""
        if end <= self.end:
            return
        if end - self._origin > len(self._arrays["state"]):
            size = FIRST_SIZE
            while size < 2 * (end - self.acked_to):
                size *= 2
            shift, used = self.acked_to - self._origin, self.end - self.acked_to
            for name, old in self._arrays.items():
                new = self._arrays[name] = np.zeros(size, old.dtype)
                new[:used] = old[shift : shift + used]
            self._origin = self.acked_to
        self.end = end

    def set_slots(self, first: int, slots: Array) -> None:
        """Takes in the slots of the offsets from `first` on, which were not known."""
        self.reach(first + len(slots))
        self.span("slot", first, first + len(slots))[:] = slots
        self.changes += 1
        if self.busy is not None:
            self.busy.known_to = first + len(slots)
            self.busy.add(slots[_IS_BUSY[self.span("state", first, first + len(slots))]])

    # Steps

    def lease(self, offsets: Offsets, lease: int, consumer: int, due_s: float, attempts: int = 1) -> None:
        """available → leased. It counts as so many attempts."""
        if not len(offsets):
            return
        first, end = int(offsets[0]), int(offsets[-1]) + 1
        self.reach(end)
        self._move(offsets, HELD)
        arrays, is_dense = self._arrays, end - first == len(offsets)
        at = slice(first - self._origin, end - self._origin) if is_dense else offsets - self._origin
        arrays["before"][at] = np.where(arrays["consumer"][at] == consumer, arrays["before"][at], NOBODY)
        arrays["lease"][at], arrays["consumer"][at], arrays["due_s"][at] = lease, consumer, due_s
        arrays["attempts"][at] = np.minimum(arrays["attempts"][at].astype(np.int32) + attempts, MOST_ATTEMPTS)
        self.delivered_to = max(self.delivered_to, end)
        if is_dense and first == max(self.free_from, self.acked_to):
            self.free_from = end

    def free(self, offsets: Offsets) -> None:
        """leased, delayed or acking → available."""
        if len(offsets):
            self._move(offsets, FREE)
            self.free_from = min(self.free_from, int(offsets[0]))

    def take_back(self, offsets: Offsets) -> None:
        """leased → available, as if it had not been: nobody got those messages. A consumer that was to have them again
        has had them last."""
        before = self.values("before", offsets)
        self._put("lease", offsets, before)
        self._put("consumer", offsets[before == NOBODY], NOBODY)
        self.count_attempts(offsets, -1)
        self.free(offsets)

    def give_again(self, offsets: Offsets) -> None:
        """leased → available, for the same consumer: acks of those leases count too."""
        self._put("before", offsets, self.values("lease", offsets))
        self.free(offsets)

    def delay(self, offsets: Offsets, due_s: float | Array) -> None:
        """leased or available → delayed."""
        if len(offsets):
            self._move(offsets, DELAYED)
            self._put("due_s", offsets, due_s)

    def extend(self, offsets: Offsets, due_s: float) -> None:
        """Sets the time at which leases and delays end, and at which dead letters are due."""
        self._put("due_s", offsets, due_s)

    def give_up(self, offsets: Offsets, due_s: float | None = None) -> None:
        """leased, delayed, available or acking → dying: it is with nobody any more."""
        self._move(offsets, DYING)
        self._put("lease", offsets, NOBODY)
        self._put("consumer", offsets, NOBODY)
        if due_s is not None:
            self._put("due_s", offsets, due_s)

    def begin_ack(self, offsets: Offsets) -> None:
        """leased, available, delayed or dying → acking."""
        self._move(offsets, ACKING)
        if len(offsets):
            self.delivered_to = max(self.delivered_to, int(offsets[-1]) + 1)

    def mark_acked(self, offsets: Offsets) -> None:
        """acking → acked. The same of offsets that nobody will get, since they have expired, were filtered out or
        removed: those need not become durable."""
        if not len(offsets):
            return
        self.acked_count += int((self.values("state", offsets) != ACKED).sum())
        self._move(offsets, ACKED)
        self.delivered_to = max(self.delivered_to, int(offsets[-1]) + 1)
        span = self.span("state", self.acked_to)
        if len(span) and span[0] == ACKED:
            others = span != ACKED
            count = int(others.argmax()) if others.any() else len(span)
            self.acked_count -= count
            self._forget(self.acked_to + count)

    def pass_over(self, low: int, high: int) -> None:
        """As `mark_acked`, of all offsets of [low, high)."""
        low = max(low, self.acked_to)
        if low == self.acked_to and high >= self.end:  # a recovery passes over millions at a time
            self.acked_count = 0
            self.delivered_to = max(self.delivered_to, high)
            self._forget(max(low, high))
        elif low < high:
            self.reach(high)
            self.mark_acked(np.arange(low, high, dtype=np.int64))

    def pass_over_all(self, runs: Iterable[Run]) -> None:
        """As `pass_over`, of rising runs, which may be very many: those behind a hole are marked at once."""
        left = deque(runs)
        while left and left[0][0] <= self.acked_to:
            self.pass_over(*left.popleft())
        if left:
            self.reach(left[-1][1])
            self.mark_acked(np.concatenate([np.arange(low, high, dtype=np.int64) for low, high in left]))

    def retire(self, below: int) -> int:
        """Counts offsets below one as acked, since retention has removed them. Returns how many of them nobody had
        acked."""
        span = self.span("state", self.acked_to, max(self.acked_to, min(below, self.end)))
        acked = int((span >= ACKING).sum())
        skipped = max(0, below - self.acked_to) - acked
        self.pass_over(self.acked_to, below)
        return skipped

    def count_attempts(self, offsets: Offsets, step: int) -> None:
        """Adds to the attempts of these offsets."""
        changed = self.values("attempts", offsets).astype(np.int32) + step
        self._put("attempts", offsets, changed.clip(0, MOST_ATTEMPTS))

    # The durable state

    def record(self, epoch: int) -> CursorRecord:
        """Returns the state as a cursor's record, without leases."""
        return CursorRecord(
            epoch,
            self.acked_to,
            tuple(self.acked_runs()),
            self._attempts(),
            self.delivered_to,
            sought_below=self.sought_below if self.sought_below > self.acked_to else 0,
        )

    def acked_runs(self) -> list[Run]:
        """Returns the acked runs beyond `acked_to`."""
        if not self.acked_count:
            return []
        return runs_of(self.find(self.acked_to, ACKED))

    def _attempts(self) -> dict[str, int]:
        """Returns the attempts of unacked offsets below `delivered_to` that were not delivered just once."""
        if self.is_idle:
            return {}
        attempts = self.span("attempts", self.acked_to, self.delivered_to)
        states = self.span("state", self.acked_to, self.delivered_to)
        at = np.flatnonzero((attempts != 1) & (states != ACKED))
        return dict(zip(map(str, (at + self.acked_to).tolist()), attempts[at].tolist(), strict=True))

    # Writes

    def _move(self, offsets: Offsets, state: int) -> None:
        """Sets the state of these offsets, each of which is there once."""
        if self.busy is not None:
            known = offsets[offsets < self.busy.known_to]
            is_busy = _BUSY[state]
            changed = known[_IS_BUSY[self.values("state", known)] != is_busy]
            (self.busy.add if is_busy else self.busy.remove)(self.values("slot", changed))
        self._arrays["state"][offsets - self._origin] = state
        self.changes += 1

    def _put(self, name: str, offsets: Offsets, value: Any) -> None:
        self._arrays[name][offsets - self._origin] = value
        self.changes += 1

    def _forget(self, below: int) -> None:
        """Forgets all offsets below this one; the arrays too if nothing is left. None of those that stay behind is
        busy, unless all go."""
        self.acked_to = below
        self.changes += 1
        if self.acked_to >= self.end:
            self._empty(below)

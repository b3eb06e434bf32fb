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

The progress is all that becomes durable (`CursorRecord`): acked below `acked_to`, and which offsets beyond it. The
frames of acks come first, then a checkpoint. Leases and delays (leases) do not become durable.

A *slot* is the hash of a message's key, by which `keyed` keeps order. A slot is *busy* while a message of it is with
somebody: leased, delayed, or acked and not durable yet.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from msgspec import UNSET
from msgspec.structs import replace

from seaweedq.broker.log.intervals import Offsets, Run, runs_of
from seaweedq.coordination.records.subscriptions import SUBSCRIPTION_LEVEL, CursorRecord

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
    "slot": np.int32,  # the hash of the key, where the mode asks for it
}
Array = np.ndarray[Any, np.dtype[Any]]
_IS_BUSY = np.array(_BUSY)
PACKED_LEVEL = 2  # of the cluster, from which on cursors are packed (coordination/records/cursor_form)
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


@dataclass(frozen=True, slots=True)
class Asker:
    """The consumer or lease in whose name something is acked, nacked or extended; None for any. A lease comes with its
    consumer. `anything`: it may ack whatever lies in the window, delivered by this dispatcher or not, unless it may
    have been delivered before a seek."""

    consumer: int | None = None
    lease: int | None = None
    anything: bool = False


@dataclass(slots=True)
class AckResult:
    """The result of an ack of some offsets: `taken` (sorted) must be made durable, `known` counts the acked ones,
    `late` those of them whose lease had ended, `unknown` are neither leased nor acked."""

    taken: Offsets = field(default_factory=lambda: EMPTY)
    known: int = 0
    late: int = 0
    unknown: list[int] = field(default_factory=list)


class Progress:
    """Everything below `acked_to` is acked, and `acked_count` offsets beyond it; offsets from `delivered_to` on were
    never delivered. Those below `sought_below` may have been delivered before a seek."""

    def __init__(
        self, acked_to: int, acked: Iterable[Run], attempts: Mapping[int, int] | None, delivered_to: int
    ) -> None:
        acked = list(acked)
        self.acked_to = acked_to
        self.acked_count = 0
        self.sought_below = 0
        # After a crash acks are newer than the checkpoint.
        self.delivered_to = max(delivered_to, acked_to, *(high for _, high in acked))
        self._window = Window(acked_to)
        self._window.reach(self.delivered_to)
        self._window.span("attempts", acked_to)[:] = 1
        for offset, count in (attempts or {}).items():
            if acked_to <= offset < self.delivered_to:
                self._window.put("attempts", np.array([offset]), min(count, MOST_ATTEMPTS))
        self.pass_over_all(acked)

    def record(self, epoch: int, level: int = 1) -> CursorRecord:
        """Returns the state as a cursor's record of a level, without leases."""
        needs = PACKED_LEVEL if level >= PACKED_LEVEL else UNSET
        attempts = self._attempts(least=2 if needs is UNSET else 0)
        record = CursorRecord(
            epoch, self.acked_to, tuple(self.acked_runs()), attempts, self.delivered_to, needs_level=needs
        )
        if self.sought_below <= self.acked_to:
            return record
        return replace(record, needs_level=SUBSCRIPTION_LEVEL, sought_below=self.sought_below)

    @property
    def is_idle(self) -> bool:
        """Whether nothing beyond `acked_to` is leased, delayed or acked. Most segments of most subscriptions are."""
        return self._window.end <= self.acked_to

    def acked_runs(self) -> list[Run]:
        """Returns what is acked beyond `acked_to`."""
        if not self.acked_count:
            return []
        return runs_of(self._window.find(self.acked_to, ACKED))

    def attempts_of(self, offsets: Offsets) -> Array:
        """Returns how often each of these offsets was delivered."""
        return self._window.of("attempts", offsets)

    def in_use(self, name: str) -> set[int]:
        """Returns the numbers of the leases, or consumers, that had some unacked offset last."""
        return self._window.numbers(name)

    def pass_over(self, low: int, high: int) -> None:
        """Counts offsets that nobody will get (expired messages) as acked. They need not become durable."""
        low = max(low, self.acked_to)
        if low == self.acked_to and high >= self._window.end:  # a recovery passes over millions at a time
            self.acked_count = 0
            self.acked_to, self.delivered_to = max(low, high), max(self.delivered_to, high)
            self._window.forget(self.acked_to)
        elif low < high:
            self._window.reach(high)
            self._settle(np.arange(low, high, dtype=np.int64))

    def retire(self, below: int) -> int:
        """Counts what is below an offset as acked, since retention has removed it. Returns how many of them nobody had
        acked."""
        span = self._window.span("state", self.acked_to, max(self.acked_to, min(below, self._window.end)))
        acked = int((span >= ACKING).sum())
        skipped = max(0, below - self.acked_to) - acked
        self.pass_over(self.acked_to, below)
        return skipped

    def pass_over_all(self, runs: Iterable[Run]) -> None:
        """As `pass_over`, of rising runs, which may be very many: what lies behind a hole is settled at once."""
        left = deque(runs)
        while left and left[0][0] <= self.acked_to:
            self.pass_over(*left.popleft())
        if left:
            self._window.reach(left[-1][1])
            self._settle(np.concatenate([np.arange(low, high, dtype=np.int64) for low, high in left]))

    def settle(self, offsets: Offsets) -> None:
        """As `pass_over`, of some offsets of the window."""
        if len(offsets):
            self._settle(offsets)

    def _settle(self, offsets: Offsets) -> None:
        self.acked_count += int((self._window.of("state", offsets) != ACKED).sum())
        self._window.move(offsets, ACKED)
        self.delivered_to = max(self.delivered_to, int(offsets[-1]) + 1)
        span = self._window.span("state", self.acked_to)
        if len(span) and span[0] == ACKED:
            others = span != ACKED
            count = int(others.argmax()) if others.any() else len(span)
            self.acked_to += count
            self.acked_count -= count
            self._window.forget(self.acked_to)

    def _attempts(self, least: int) -> dict[str, int]:
        """Returns the attempts of unacked offsets below `delivered_to` that were not delivered just once."""
        if self.is_idle:
            return {}
        span = slice(self.acked_to, self.delivered_to)
        attempts = self._window.span("attempts", span.start, span.stop)
        states = self._window.span("state", span.start, span.stop)
        at = np.flatnonzero((attempts != 1) & (attempts >= least) & (states != ACKED))
        return dict(zip(map(str, (at + self.acked_to).tolist()), attempts[at].tolist(), strict=True))

    def _is_ragged(self, max_runs: int) -> bool:
        if self.acked_count < max_runs:
            return False
        acked = self._window.span("state", self.acked_to) == ACKED
        return int((acked[1:] & ~acked[:-1]).sum()) + int(acked[0]) >= max_runs

"""Delivery of one segment to one subscription, mode `ordered`: acked, leased and next offsets.

Pure: the time is an argument, nothing is read or written. One consumer at a time has the segment. When a lease ends
without an ack, those of all later offsets end with it; delivery begins again at the first unacked offset, and skips
acked ones. An ack counts once the journal has it: until then its offsets are `acking`, neither due nor acked. An ack of
an ended lease is *late*: it counts as long as nobody else was given the message meanwhile.

All work is by arrays (broker/subscriptions/window): the cost of an ack of any offsets does not depend on the leases.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

import numpy as np
from msgspec import UNSET

from seaweedq.broker.log.intervals import Offsets, Run, runs_of
from seaweedq.broker.subscriptions.window import ACKED, ACKING, FREE, HELD, NOBODY, Array, Window
from seaweedq.coordination.records import CursorRecord

WINDOW = 100_000
PACKED_LEVEL = 2  # of the cluster, from which on cursors are packed (coordination/cursor_form)
MOST_CONSUMERS = 1_000  # that are remembered, apart from those that had some unacked message last
EMPTY: Offsets = np.zeros(0, np.int64)


@dataclass(slots=True)
class Lease:
    """The offsets [low, high), which the consumer has until `deadline_s` (monotonic); what is acked of them is not
    leased any more."""

    low: int
    high: int
    deadline_s: float


@dataclass(slots=True)
class AckResult:
    """The result of an ack of some offsets: `taken` (sorted) must be made durable, `known` counts the acked ones,
    `late` those of them whose lease had ended, `unknown` are neither leased nor acked."""

    taken: Offsets = field(default_factory=lambda: EMPTY)
    known: int = 0
    late: int = 0
    unknown: list[int] = field(default_factory=list)


class Delivery:
    """The state of a segment in a subscription: everything below `acked_to` is acked; offsets from `delivered_to` on
    were never delivered."""

    def __init__(
        self,
        acked_to: int,
        acked: Iterable[Run] = (),
        attempts: dict[int, int] | None = None,
        delivered_to: int = 0,
        leases: Iterable[Lease] = (),
        consumer: str | None = None,
    ) -> None:
        acked = list(acked)
        self.acked_to = acked_to
        self.acked_count = 0  # beyond `acked_to`
        # After a crash acks are newer than the checkpoint.
        self.delivered_to = max(delivered_to, acked_to, *(high for _, high in acked))
        self._window = Window(acked_to)
        self._position = acked_to  # no offset between `acked_to` and this one is FREE
        self._leases: deque[Lease] = deque()  # in the order of offsets and of deadlines
        self._held = 0
        self._consumer: str | None = None
        self._consumers: dict[str, int] = {}
        self._newest_consumer = NOBODY
        self._window.reach(self.delivered_to)
        self._window.know_attempts(acked_to, self.delivered_to, attempts or {})
        self.pass_over_all(acked)
        for lease in leases:
            self._hold_again(lease, consumer or "")

    @staticmethod
    def of(record: CursorRecord, leases: Iterable[Lease] = ()) -> "Delivery":
        """Returns the state that a cursor's record holds, with the leases of its consumer."""
        attempts = {int(offset): count for offset, count in record.attempts.items()}
        consumer = record.consumer if leases else None
        return Delivery(record.acked_to, record.acked, attempts, record.delivered_to, leases, consumer)

    def record(self, epoch: int, level: int = 1) -> CursorRecord:
        """Returns the state as a cursor's record of a level, without leases."""
        attempts = {str(offset): count for offset, count in self._window.attempts_above_one()}
        needs = PACKED_LEVEL if level >= PACKED_LEVEL else UNSET
        runs = tuple(self.acked_runs())
        return CursorRecord(epoch, self.acked_to, runs, attempts, self.delivered_to, needs_level=needs)

    @property
    def in_flight(self) -> int:
        """Returns how many offsets are leased."""
        return self._held

    def acked_runs(self) -> list[Run]:
        """Returns what is acked beyond `acked_to`."""
        return runs_of(np.flatnonzero(self._span(self.acked_to) == ACKED) + self.acked_to)

    def attempts_of(self, offsets: Offsets) -> Array:
        """Returns how often each of these offsets was delivered."""
        return self._window.attempts_of(offsets)

    def expire(self, now_s: float) -> None:
        """Ends the leases whose time is over, and all that follow the first offset of those."""
        while self._leases:
            first = self._first_held(self._leases[0])
            if first is None:
                self._leases.popleft()
            elif self._leases[0].deadline_s <= now_s:
                self._rewind(first)
            else:
                return

    def leased(self) -> tuple[list[Lease], str | None]:
        """Returns the leases, and their consumer."""
        return [lease for lease in self._leases if self._first_held(lease) is not None], self._consumer

    def next_deadline(self) -> float | None:
        """Returns the time at which the next lease ends (monotonic seconds), or None."""
        while self._leases and self._first_held(self._leases[0]) is None:
            self._leases.popleft()
        return self._leases[0].deadline_s if self._leases else None

    def available(self, consumer: str, end: int, limit: int, max_runs: int = WINDOW) -> Offsets:
        """Returns the next offsets for this consumer, at most `limit`, below `end`, in order; none where it is another
        consumer's turn. With `max_runs` acked runs nothing is delivered that never was."""
        if self._held and self._consumer != consumer:
            return EMPTY
        low = max(self._position, self.acked_to)
        high = min(end, self.delivered_to if self._is_ragged(max_runs) else self.acked_to + WINDOW)
        known = max(low, min(high, self._window.end))
        free = np.flatnonzero(self._window.state(low, known) == FREE)[:limit] + low if low < known else EMPTY
        if len(free) < limit and known < high:
            free = np.concatenate([free, np.arange(known, min(high, known + limit - len(free)), dtype=np.int64)])
        self._position = int(free[0]) if len(free) else known
        return free

    def lease(self, offsets: Offsets, consumer: str, deadline_s: float = inf) -> None:
        """Leases offsets that are `available` to a consumer, and counts an attempt of each. Without a deadline the
        leases are to be begun, or to be cancelled, by the caller."""
        low, high = int(offsets[0]), int(offsets[-1]) + 1
        self._window.reach(high)
        self._consumer = consumer
        self._window.give(offsets, self._number_of(consumer))
        self._held += len(offsets)
        self._add_lease(Lease(low, high, deadline_s))
        self.delivered_to = max(self.delivered_to, high)

    def begin_leases(self, deadline_s: float) -> None:
        """Gives the leases that have no deadline this one."""
        for lease in reversed(self._leases):
            if lease.deadline_s != inf:
                break
            lease.deadline_s = deadline_s

    def cancel_leases(self) -> None:
        """Takes the leases back that have no deadline: nobody got those messages."""
        while self._leases and self._leases[-1].deadline_s == inf:
            lease = self._leases.pop()
            low = max(lease.low, self.acked_to)
            held = np.flatnonzero(self._window.state(low, max(low, lease.high)) == HELD) + low
            self._window.take_back(held)
            self._held -= len(held)
            self._position = min(self._position, low)

    def pass_over(self, low: int, high: int) -> None:
        """Counts offsets that nobody will get (expired messages) as acked. They need not become durable."""
        low = max(low, self.acked_to)
        if low == self.acked_to and high >= self._window.end:  # a recovery passes over millions at a time
            self._held = self.acked_count = 0
            self.acked_to, self.delivered_to = max(low, high), max(self.delivered_to, high)
            self._window.forget(self.acked_to)
        elif low < high:
            self._window.reach(high)
            self._settle(np.arange(low, high, dtype=np.int64))

    def retire(self, below: int) -> int:
        """Counts what is below an offset as acked, since retention has removed it. Returns how many of them nobody had
        acked."""
        span = self._window.state(self.acked_to, max(self.acked_to, min(below, self._window.end)))
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
        """As `pass_over`, of some offsets that are leased."""
        if len(offsets):
            self._settle(offsets)

    def judge(self, offsets: Iterable[int], consumer: str | None) -> AckResult:
        """Sorts the offsets of an ack into leased, acked and unknown ones.

        An offset whose ack is on its way to the journal goes there once more, so that the repeated request waits for
        durability too.
        """
        wanted = np.unique(np.fromiter(offsets, np.int64))
        here = wanted[(wanted >= self.acked_to) & (wanted < self._window.end)]
        state, holder = self._window.states_of(here), self._window.holders_of(here)
        mine = holder != NOBODY if consumer is None else holder == self._consumers.get(consumer, -1)
        late = (state == FREE) & mine
        taken = late | (state == ACKING) | (state == HELD) & mine
        unknown = np.concatenate([here[~taken & (state != ACKED)], wanted[wanted >= self._window.end]]).tolist()
        return AckResult(here[taken], len(wanted) - len(unknown), int(late.sum()), unknown)

    def begin_ack(self, taken: Offsets) -> None:
        """Marks offsets whose ack is on its way to the journal."""
        self._held -= int((self._window.states_of(taken) == HELD).sum())
        self._window.set_state(taken, ACKING)

    def end_ack(self, taken: Offsets, durable: bool) -> None:
        """Takes in the outcome of an ack: `durable`, or the offsets are delivered again."""
        taken = taken[taken >= self.acked_to]
        if not len(taken):
            return
        if durable:
            self._settle(taken)
            return
        failed = taken[self._window.states_of(taken) == ACKING]
        self._window.set_state(failed, FREE)
        self._rewind(int(taken[0]))

    def _settle(self, offsets: Offsets) -> None:
        state = self._window.states_of(offsets)
        self._held -= int((state == HELD).sum())
        self.acked_count += int((state != ACKED).sum())
        self._window.set_state(offsets, ACKED)
        self.delivered_to = max(self.delivered_to, int(offsets[-1]) + 1)
        span = self._span(self.acked_to)
        if len(span) and span[0] == ACKED:
            others = span != ACKED
            count = int(others.argmax()) if others.any() else len(span)
            self.acked_to += count
            self.acked_count -= count
            self._window.forget(self.acked_to)

    def _rewind(self, offset: int) -> None:
        """Ends all leases of this offset and of those behind it."""
        span = self._span(offset)
        held = span == HELD
        self._held -= int(held.sum())
        span[held] = FREE
        self._position = min(self._position, offset)
        while self._leases and self._leases[-1].low >= offset:
            self._leases.pop()
        if self._leases:
            self._leases[-1].high = min(self._leases[-1].high, offset)

    def _hold_again(self, lease: Lease, consumer: str) -> None:
        """Takes over a lease of the dispatcher before, which has counted its attempt."""
        low = max(lease.low, self.acked_to)
        self._window.reach(lease.high)
        free = np.flatnonzero(self._window.state(low, max(low, lease.high)) == FREE) + low
        if len(free):
            self._consumer = consumer
            self._window.take_back(free)
            self._window.give(free, self._number_of(consumer))
            self._held += len(free)
            self._add_lease(lease)

    def _add_lease(self, lease: Lease) -> None:
        last = self._leases[-1] if self._leases else None
        if last and last.deadline_s == lease.deadline_s:
            last.high = lease.high  # what lies between is acked, or is about to be
            return
        if last:  # a deadline that was shortened meanwhile ends no lease before those of earlier offsets
            lease.deadline_s = max(lease.deadline_s, last.deadline_s)
        self._leases.append(lease)

    def _first_held(self, lease: Lease) -> int | None:
        low = max(lease.low, self.acked_to)
        held = self._window.state(low, max(low, lease.high)) == HELD
        return low + int(held.argmax()) if held.any() else None

    def _number_of(self, consumer: str) -> int:
        found = self._consumers.get(consumer)
        if found is None:
            if len(self._consumers) >= MOST_CONSUMERS:
                known = self._window.holders()
                self._consumers = {name: number for name, number in self._consumers.items() if number in known}
            found = self._consumers[consumer] = self._newest_consumer = self._newest_consumer + 1
        return found

    def _is_ragged(self, max_runs: int) -> bool:
        if self.acked_count < max_runs:
            return False
        acked = self._span(self.acked_to) == ACKED
        return int((acked[1:] & ~acked[:-1]).sum()) + int(acked[0]) >= max_runs

    def _span(self, first: int) -> Array:
        return self._window.state(first, max(first, self._window.end))

"""Delivery of one segment to one subscription, in all modes: acked, leased, delayed, dying and available offsets.

Pure: the time is an argument, nothing is read or written. The module decides which offsets may be delivered next, and
how a delivery ends.

    available → leased → acking → acked       leased → available or delayed (deadline, nack) → available
    available or delayed → acking (late)       acking → available (the journal refuses)
    leased → dying (rejected, or its attempts are over) → acking
    delayed → dying (its attempts are over)    acking → dying (the journal refuses)

An ack counts once the journal has it: until then its offsets are `acking`, neither due nor acked. An ack after the
deadline is *late*: it counts as long as the message was not delivered again. A delivery that is nacked or expires
counts as an attempt. In `ordered` and `keyed` the leases of all that must come after it (of the segment, of the key)
end with it, and those deliveries do not count. In `ordered` a consumer that comes back gets its messages again.

A message dies when it is rejected, or when its `max_attempts`-th delivery fails. From then on it is delivered to
nobody, and ends by an ack alone, which follows a durable dead letter (dead_lettering). It holds up nothing: it does not
come again, so nothing has to wait for it.

All work is by arrays (window): the cost of an ack of any offsets does not depend on the leases.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from seaweedq.broker.log.intervals import Offsets, Run, distinct
from seaweedq.broker.subscriptions.leases import Asker, LeaseTable
from seaweedq.broker.subscriptions.policy import NORMAL, PullLimits, Rules, later_of_slots, same_attempt_class
from seaweedq.broker.subscriptions.window import (
    ACKED,
    ACKING,
    DELAYED,
    DYING,
    EMPTY,
    FREE,
    HELD,
    NOBODY,
    WINDOW,
    Array,
    BusySlots,
    Window,
)
from seaweedq.coordination.records import CursorRecord

REJECTED, MAX_ATTEMPTS = "rejected", "max-attempts"
NO_ANSWER = "no answer came before the deadline"


class DeadLetterReason(NamedTuple):
    """The reason for which messages were given up, REJECTED or MAX_ATTEMPTS, and the detail that the consumer gave."""

    reason: str
    detail: str = ""


class DeadLetterBatch(NamedTuple):
    """A batch of dead letters that may have been published: under which identity, and of which offsets."""

    producer: str
    sequence: int
    offsets: tuple[int, ...]

    @property
    def name(self) -> str:
        """Returns the identity as a text, which `parse` takes."""
        return f"{self.producer}:{self.sequence}"

    @staticmethod
    def parse(name: str, offsets: tuple[int, ...]) -> "DeadLetterBatch":
        """Returns the batch of an identity."""
        producer, _, sequence = name.rpartition(":")
        return DeadLetterBatch(producer, int(sequence), offsets)


class DeadLetterQueue:
    """The offsets that die in a window, with their reasons. `sent` is the batch of them that is published first, as it
    was begun: at this dispatcher, or at one before."""

    def __init__(self, window: Window) -> None:
        self.sent: DeadLetterBatch | None = None
        self._window = window
        self._reasons: dict[int, DeadLetterReason] = {}

    def __bool__(self) -> bool:
        return bool(self._reasons)

    def add(self, offsets: Offsets, death: DeadLetterReason, due_s: float) -> None:
        """Lets offsets of the window die; they are with nobody any more."""
        self._window.give_up(offsets, due_s)
        self._reasons.update(dict.fromkeys(offsets.tolist(), death))

    def restore(self, failed: Offsets) -> Offsets:
        """Lets those offsets die on whose ack was refused. Returns the others."""
        is_dying = np.fromiter((offset in self._reasons for offset in failed.tolist()), bool, len(failed))
        self._window.give_up(failed[is_dying])
        others: Offsets = failed[~is_dying]
        return others

    def dying(self) -> Offsets:
        """Returns the offsets that are dying, and forgets the reasons of those that ended."""
        if not self._reasons:
            return np.zeros(0, np.int64)
        known = np.array(sorted(offset for offset in self._reasons if offset >= self._window.acked_to), np.int64)
        states = self._window.values("state", known)
        self._reasons = {
            offset: self._reasons[offset] for offset in known[(states == DYING) | (states == ACKING)].tolist()
        }
        found: Offsets = known[states == DYING]
        return found

    def unacked(self) -> list[int]:
        """Returns the offsets that are dying, and those whose ack is on its way."""
        self.dying()
        return sorted(self._reasons)

    def pending_batch(self) -> DeadLetterBatch | None:
        """Returns the batch that may have been published. It forgets one of which some is gone or acked: that cannot be
        repeated as it was."""
        if self.sent and not set(self.sent.offsets) <= set(self.unacked()):
            self.sent = None
        return self.sent

    def due(self, now_s: float) -> Offsets:
        """Returns the offsets whose dead letters are to be published now."""
        found = self.dying()
        due: Offsets = found[self._window.values("due_s", found) <= now_s]
        return due

    def still_dying(self, offsets: Offsets) -> Offsets:
        """Returns those of these offsets that are dying now."""
        found: Offsets = np.intersect1d(offsets, self.dying(), assume_unique=True)
        return found

    def reason_of(self, offset: int) -> DeadLetterReason:
        """Returns the reason of an offset that is dying."""
        return self._reasons[offset]

    def due_s(self, offsets: Offsets) -> list[float]:
        """Returns when the dead letters of dying offsets are to be published (monotonic seconds)."""
        found: list[float] = self._window.values("due_s", offsets).tolist()
        return found

    def postpone(self, offsets: Offsets, due_s: float) -> None:
        """Lets the dead letters of offsets that are still dying wait."""
        self._window.extend(self.still_dying(offsets), due_s)


@dataclass(slots=True)
class AckResult:
    """The result of an ack of some offsets: `taken` (sorted) must be made durable, `known` counts the acked ones,
    `late` those of them whose lease had ended, `unknown` are neither leased nor acked."""

    taken: Offsets = field(default_factory=lambda: EMPTY)
    known: int = 0
    late: int = 0
    unknown: list[int] = field(default_factory=list)


class SegmentDelivery:
    """The state of a segment in a subscription: the offsets of a `window`, the `leases` that hold them, the
    `dead_letters` that wait, and the `rules` by which they are delivered. In `keyed` the slots of the keys are known
    below `read_to`."""

    def __init__(
        self,
        acked_to: int,
        acked: Iterable[Run] = (),
        attempts: Mapping[int, int] | None = None,
        delivered_to: int = 0,
        rules: Rules | None = None,
    ) -> None:
        self.rules = rules or Rules()
        self.window = Window(acked_to, acked, attempts, delivered_to)
        self.window.busy = BusySlots(acked_to) if self.rules.mode == "keyed" else None
        self.leases = LeaseTable(self.window)
        self.dead_letters = DeadLetterQueue(self.window)
        self._read_to = acked_to
        self._asked: tuple[PullLimits, Rules, int, int] | None = None  # the last arguments of `available`
        self._asked_to = 0
        self._found = EMPTY

    @staticmethod
    def from_record(record: CursorRecord, rules: Rules | None = None) -> "SegmentDelivery":
        """Returns the state that a cursor's record holds, without leases."""
        attempts = {int(offset): count for offset, count in record.attempts.items()}
        found = SegmentDelivery(record.acked_to, record.acked, attempts, record.delivered_to, rules)
        found.window.sought_below = record.sought_below
        return found

    @property
    def read_to(self) -> int:
        """Returns the offset up to which the slots of the keys are known."""
        return max(self._read_to, self.window.acked_to)

    @property
    def needed_keys_to(self) -> int:
        """Returns the offset up to which the keys must be known before anything is delivered: beyond `read_to` if
        leases and delays were taken over, since a key is with one lease at a time."""
        waiting = self.leases.waiting() if self.read_to < self.window.delivered_to else EMPTY
        return max(self.read_to, int(waiting[-1]) + 1) if len(waiting) else self.read_to

    def is_full(self, end: int) -> bool:
        """Tells whether there are messages beyond the window, and all of it is delivered."""
        window = self.window
        high = window.acked_to + WINDOW
        return window.end >= high < end and not len(window.find(window.acked_to, FREE, last=high))

    # Leases

    def expire(self, now_s: float) -> None:
        """Ends the leases and the delays whose time is over."""
        if now_s < self.leases.next_s:
            return
        leased, delayed = self.leases.over(now_s)
        self.window.free(self._give_up(delayed, now_s, NO_ANSWER))
        self._fail(leased, now_s, None, NO_ANSWER)
        self.leases.find_next()

    def available(self, want: PullLimits, end: int) -> Offsets:
        """Returns the next offsets for a pull, below `end`, in order; none if it is another consumer's turn. It is
        asked several times in a pull: if nothing has changed, the offsets below a smaller end are known."""
        window = self.window
        read_to = max(self._read_to, window.acked_to)
        if self._asked == (want, self.rules, read_to, window.changes) and end <= self._asked_to:
            return self._found[: int(np.searchsorted(self._found, end))]
        self._found = self._available(want, end, read_to)
        self._asked, self._asked_to = (want, self.rules, read_to, window.changes), end
        return self._found

    def _available(self, want: PullLimits, end: int, read_to: int) -> Offsets:
        window, rules = self.window, self.rules
        low = max(window.free_from, window.acked_to)
        high = min(end, window.acked_to + WINDOW)
        if low >= high:
            return EMPTY
        if rules.mode == "ordered":
            high = min(high, self._end_of_turn(want.consumer))
        if rules.reads_ahead:
            high = min(high, read_to)
        if low >= window.end and want.kind in (None, NORMAL):  # nobody has had any of them
            return window.reach_free(low, min(high, low + want.limit))
        free = window.unleased(low, high, want.limit)
        if window.busy is not None:
            free = free[window.busy.free(window.values("slot", free))]
        if not len(free):
            return EMPTY
        free = free[: want.limit]
        return same_attempt_class(rules, free, window.values("attempts", free), window.values("slot", free), want.kind)

    def is_drained(self, end: int) -> bool:
        """Tells whether it is known, without a look at the offsets, that nothing below `end` is available. An ack
        changes nothing about that."""
        return max(self.window.free_from, self.window.acked_to) >= end

    def kind_of(self, offset: int) -> int:
        """Returns the kind (policy) that the next delivery of an offset would be."""
        return int(self.rules.kinds(self.window.values("attempts", np.array([offset])))[0])

    def set_slots(self, first: int, slots: Array) -> None:
        """Takes in the slots of the keys of the offsets from `first` on, which is not above `read_to`; if keys do
        not matter any slots."""
        if first + len(slots) > self.read_to:
            self.window.set_slots(self.read_to, slots[self.read_to - first :])
            self._read_to = first + len(slots)

    def leave_out(self, offsets: Offsets) -> None:
        """Counts offsets as acked that the filter leaves out."""
        acked_to = self.window.acked_to
        offsets = offsets[offsets >= acked_to]
        if len(offsets) == self._read_to - acked_to and len(offsets):  # all that is known
            self.window.pass_over(acked_to, self._read_to)
        else:
            self.window.mark_acked(offsets)

    def restore_dying(self, offsets: Offsets, death: DeadLetterReason, now_s: float) -> None:
        """Takes over the messages that were dying at the dispatcher before."""
        offsets = self.window.within(offsets)
        self.dead_letters.add(offsets[self.window.values("state", offsets) == FREE], death, now_s)

    def nack(self, held: Offsets, now_s: float, delay_s: float | None = None, reason: str = "") -> None:
        """Ends the lease of leased offsets, which are delivered again after `delay_s`; None is the backoff. Those whose
        attempts are over die."""
        self._fail(held, now_s, delay_s, reason)

    def give_back(self, held: Offsets) -> None:
        """Ends the lease of leased offsets that nobody has tried to handle: they are delivered again at once, and these
        deliveries do not count."""
        self.window.count_attempts(held, -1)
        self._drag(held)
        self.window.free(held)

    def give_again(self, consumer: int) -> bool:
        """Ends the leases of a consumer, so that it gets their messages again: it has come back. These deliveries
        count, and so do acks of those leases, until others are acked or somebody else has the messages. What has had
        its last attempt stays leased, since it does not come again. Returns whether there is anything."""
        window = self.window
        held = window.find(window.acked_to, HELD)
        mine = held[window.values("consumer", held) == consumer]
        mine = mine[~self.rules.gives_up(window.values("attempts", mine))]
        if len(mine):
            self.leases.has_given_again = True
            window.give_again(mine)
        return len(mine) > 0

    def reject(self, held: Offsets, now_s: float, reason: str = "") -> None:
        """Lets leased offsets die."""
        self.dead_letters.add(held, DeadLetterReason(REJECTED, reason), now_s)

    def hold_last(self, due_s: float) -> None:
        """Lets available messages whose attempts are over wait for late acks until `due_s`; then they die."""
        window = self.window
        free = window.find(window.acked_to, FREE, last=min(window.delivered_to, window.end))
        self.leases.delay(free[self.rules.gives_up(window.values("attempts", free))], due_s)

    # Acks

    def judge(self, offsets: Iterable[int], asker: Asker, end: int = 0) -> AckResult:
        """Sorts the offsets of an ack into leased, acked and unknown ones.

        An offset whose ack is on its way to the journal goes there once more, so that the repeated request waits for
        durability too. `end` of the segment bounds the acks of an asker that may ack anything.
        """
        window, wanted = self.window, distinct(offsets)
        if asker.anything:
            window.reach(min(end, window.acked_to + WINDOW))
        here = window.within(wanted)
        state, mine = window.values("state", here), self.leases.is_of(here, asker)
        if len(here) == len(wanted) and (state == HELD).all() and mine.all():
            return AckResult(here, len(here))
        late = ((state == FREE) | (state == DELAYED)) & mine
        taken = late | (state == ACKING) | (state == HELD) & mine
        unknown = np.concatenate([here[~taken & (state != ACKED)], wanted[wanted >= window.end]]).tolist()
        return AckResult(here[taken], len(wanted) - len(unknown), int(late.sum()), unknown)

    def judge_lease(self, asker: Asker) -> AckResult:
        """As `judge`, of all that a lease may ack."""
        mine = self.leases.last_had_by(asker)
        state = self.window.values("state", mine)
        return AckResult(mine, len(mine), int(((state == FREE) | (state == DELAYED)).sum()))

    def begin_ack(self, taken: Offsets) -> Array:
        """Marks offsets whose ack is on its way to the journal. Returns the lease of each one whose ack was not."""
        leases = self.window.values("lease", taken[self.window.values("state", taken) != ACKING])
        self.window.begin_ack(taken)
        return leases

    def end_ack(self, taken: Offsets, durable: bool) -> None:
        """Takes in the outcome of an ack: `durable`, or the offsets are delivered again."""
        taken = taken[taken >= self.window.acked_to]
        if not len(taken):
            return
        if durable:
            self.window.mark_acked(taken)
            return
        failed = self.dead_letters.restore(taken[self.window.values("state", taken) == ACKING])
        self.window.free(failed)
        self._drag(failed)

    def uncounted(self, record: CursorRecord) -> CursorRecord:
        """Returns a record of this state in which leased messages were not delivered: their leases end, and did
        not fail."""
        held, _ = self.leases.held()
        if not len(held):
            return record
        before = (self.window.values("attempts", held).astype(np.int64) - 1).clip(0).tolist()
        attempts = {**record.attempts, **dict(zip(map(str, held.tolist()), before, strict=True))}
        return replace(record, attempts={offset: count for offset, count in attempts.items() if count != 1})

    # Ends of deliveries

    def _end_of_turn(self, consumer: int) -> int:
        """Returns the end of the offsets that this consumer may get in order: nothing of a segment that is with another
        one, and nothing behind a delayed message."""
        window = self.window
        waiting = EMPTY if window.is_idle else window.find(window.acked_to, HELD, DELAYED)
        if not len(waiting):
            return window.acked_to + WINDOW
        whose = window.values("consumer", waiting)
        if ((whose != consumer) & (whose != NOBODY)).any():
            return window.acked_to
        delayed = waiting[window.values("state", waiting) == DELAYED]
        return int(delayed[0]) if len(delayed) else window.acked_to + WINDOW

    def _give_up(self, offsets: Offsets, now_s: float, why: str) -> Offsets:
        """Lets those die whose attempts are over. Returns the others."""
        over = self.rules.gives_up(self.window.values("attempts", offsets))
        if over.any():
            self.dead_letters.add(offsets[over], DeadLetterReason(MAX_ATTEMPTS, why), now_s)
        return offsets[~over]

    def _fail(self, failed: Offsets, now_s: float, delay_s: float | None, why: str) -> None:
        """Ends leases that count as failed, and those that end with them. A dying message ends no other lease: it does
        not come again."""
        failed = self._give_up(failed, now_s, why)
        if not len(failed):
            return
        attempts = self.window.values("attempts", failed)
        delays_s = self.rules.delays_s(attempts) if delay_s is None else np.full(len(failed), delay_s)
        self._drag(failed)
        is_delayed = delays_s > 0
        self.window.free(failed[~is_delayed])
        self.leases.delay(failed[is_delayed], now_s + delays_s[is_delayed])

    def _drag(self, failed: Offsets) -> None:
        """Ends the leases of messages that must come after offsets that are delivered again; those deliveries do not
        count. In `keyed` those whose keys are not known, which were taken over from the dispatcher before, stay: what
        of their keys is before them waits for them once the keys are read."""
        window = self.window
        if self.rules.mode == "keyed":
            failed = failed[failed < self.read_to]
        if not len(failed) or self.rules.mode == "shared":
            return
        held = np.setdiff1d(window.find(int(failed[0]), HELD), failed, assume_unique=True)
        if self.rules.mode == "keyed":
            held = held[held < self.read_to]
            held = held[later_of_slots(held, window.values("slot", held), failed, window.values("slot", failed))]
        window.count_attempts(held, -1)
        window.free(held)

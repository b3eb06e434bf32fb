"""The cursor of one segment of a subscription at its dispatcher: its delivery, its last checkpoint, and the commit with
its oldest ack since then; and the invariants of subscriptions and their cursors, of each record and of each change.

- In a segment, 0 <= `acked_to` <= `delivered_to` <= the segment's end, if that is known; acked offsets beyond
  `acked_to` are disjoint runs that rise, and end at `delivered_to` at the latest: acked messages were delivered.
- Within an epoch neither `acked_to` nor `delivered_to` falls, and nothing that is acked becomes unacked.
- The epoch of a subscription and of its cursors never falls.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter

import numpy as np
from msgspec.structs import replace

from seaweedq.broker.log.intervals import Run, Runs, runs_of
from seaweedq.broker.subscriptions.delivery import DeadLetterBatch, DeadLetterReason, SegmentDelivery
from seaweedq.broker.subscriptions.leases import ANYBODY, Leases
from seaweedq.broker.subscriptions.policy import Rules
from seaweedq.broker.subscriptions.window import NOBODY
from seaweedq.coordination.records import CursorRecord, HeldLease, SubscriptionRecord
from seaweedq.coordination.versioned import Versioned


class SegmentCursor:
    """One segment of a subscription, whose `leases` have names. `held` is the last checkpoint, as far as it is known to
    be written."""

    def __init__(self, held: Versioned[CursorRecord], rules: Rules | None = None, leases: Leases | None = None) -> None:
        self.delivery = SegmentDelivery.from_record(held.record, rules)
        self.pin: int | None = None
        self.held = held
        self._leases = leases or Leases()
        self._newest = -1

    def take_over(self, segment: int, epoch: int, now_s: float) -> None:
        """Takes over the leases that the dispatcher of the epoch before has handed over, and dying messages, of any
        epoch: dispatchers may have died before their first checkpoint, and a seek has left the cursor where it was."""
        record = self.held.record
        for one in record.held if record.epoch == epoch - 1 else [one for one in record.held if one.dying]:
            if one.dying and one.name:
                continue
            offsets = np.concatenate([np.arange(low, high) for low, high in one.runs])
            due_s = now_s + one.left_s
            if one.dying:
                self.delivery.restore_dying(offsets, DeadLetterReason(*one.dying), now_s)
                continue
            if not one.name and not one.consumer:
                self.delivery.leases.take_over(offsets, NOBODY, NOBODY, due_s)
                continue
            lease = self._leases.find(one.name) or self._leases.make(one.name, one.consumer)
            lease.segments.add(segment)
            self._leases.add(lease)
            self.delivery.leases.take_over(offsets, lease.number, lease.consumer, due_s)
        for one in record.held:
            if one.dying and one.name:  # behind the reasons, of which some may not have fitted into the record
                batch = [offset for low, high in one.runs for offset in range(low, high)]
                self.delivery.restore_dying(np.array(batch, np.int64), DeadLetterReason(*one.dying), now_s)
                self.delivery.dead_letters.sent = DeadLetterBatch.parse(one.name, tuple(batch))

    def handed_over(self, epoch: int, now_s: float) -> CursorRecord:
        """Returns a checkpoint of the cursor, with its leases."""
        return replace(self.delivery.window.record(epoch), held=(*self._held(now_s), *self._dying()))

    def changed(self, epoch: int, handover_s: float | None = None, is_last: bool = False) -> CursorRecord | None:
        """Returns the checkpoint to write, or None if the last one is still current and no commit waits for one. The
        last one without a handover ends the leases: those deliveries do not count."""
        if handover_s is None:
            record = self.delivery.window.record(epoch)
            if is_last:
                record = self.delivery.uncounted(record)
            if self.delivery.dead_letters:
                record = replace(record, held=tuple(self._dying()))
        else:
            record = self.handed_over(epoch, handover_s)
        return record if record != self.held.record or self.pin is not None else None

    def pin_at(self, commit: int) -> None:
        """Notes that this commit holds an ack."""
        if self.pin is None:
            self.pin = commit
        self._newest = commit

    def saved(self, held: Versioned[CursorRecord], newest: int) -> None:
        """Notes that a checkpoint is durable with the acks of all commits up to `newest`."""
        self.held = held
        if self.pin is not None:
            self.pin = newest + 1 if self._newest > newest else None

    def replaces(self, there: Versioned[CursorRecord] | None) -> None:
        """Notes the record in whose place the next checkpoint goes, None for none. The last checkpoint stays as it is
        known here: the record in coordination may be older, or be that of a lost answer."""
        self.held = (there or Versioned.new(self.held.record)).with_record(self.held.record)

    @property
    def newest(self) -> int:
        """The newest commit that holds an ack, -1 for none."""
        return self._newest

    def has_batch(self, sent: DeadLetterBatch) -> bool:
        """Tells whether the last checkpoint has a batch of dead letters."""
        return any(one.name == sent.name and one.dying for one in self.held.record.held)

    def _dying(self) -> Iterator[HeldLease]:
        """Yields the batch that may have been published, under its identity, and the dying offsets, by the reason."""
        queue = self.delivery.dead_letters
        if sent := queue.pending_batch():
            yield HeldLease(sent.name, ANYBODY, 0.0, tuple(runs_of(sent.offsets)), (*queue.reason_of(sent.offsets[0]),))
        offsets = sorted((queue.reason_of(offset), offset) for offset in queue.unacked())
        for death, group in groupby(offsets, itemgetter(0)):
            yield HeldLease("", ANYBODY, 0.0, tuple(runs_of(offset for _, offset in group)), (*death,))

    def _held(self, now_s: float) -> Iterator[HeldLease]:
        """Yields the leased and delayed offsets, by lease and deadline."""
        waiting, consumers = self.delivery.leases.waiting(), self._leases.consumer_names()
        holds = zip(
            *(column.tolist() for column in self.delivery.leases.holds_of(waiting)), waiting.tolist(), strict=True
        )
        for (number, consumer, due_s), group in groupby(sorted(holds), itemgetter(0, 1, 2)):
            runs = tuple(runs_of(offset for *_, offset in group))
            lease = self._leases.numbered(number)
            name = lease.name if lease else ""
            yield HeldLease(name, consumers.get(consumer, ANYBODY), due_s - now_s, runs)


def broken_by(before: CursorRecord | None, after: CursorRecord, end: int | None = None) -> list[str]:
    """Returns the invariants that a cursor breaks which replaces `before`, in a segment that ends at `end`.

    An invariant that was broken before is not the fault of this write.
    """
    known = set(_broken_in(before, end)) if before else set()
    found = [text for text in _broken_in(after, end) if text not in known]
    return [*found, *(_broken_between(before, after) if before else ())]


def broken_by_subscription(before: SubscriptionRecord | None, after: SubscriptionRecord) -> list[str]:
    """Returns the invariants that the change of a subscription's record breaks."""
    if before and after.epoch < before.epoch:
        return [f"the epoch decreases from {before.epoch} to {after.epoch}"]
    return []


def _broken_in(record: CursorRecord, end: int | None) -> Iterator[str]:
    if not 0 <= record.acked_to <= record.delivered_to:
        yield (
            f"messages below {record.acked_to} are acked, but only messages below {record.delivered_to} were delivered"
        )
    if end is not None and record.delivered_to > end:
        yield f"messages below {record.delivered_to} were delivered, but the segment ends at {end}"
    bounds = np.array([(record.acked_to, record.acked_to), *record.acked]).ravel()[1:]
    if (bounds[1:] <= bounds[:-1]).any():
        yield f"the acked runs {record.acked[:10]} must rise, and lie above {record.acked_to}"
    if bounds[-1] > record.delivered_to:
        yield f"offsets up to {bounds[-1]} are acked, but only those below {record.delivered_to} were delivered"
    runs = [run for one in record.held for run in one.runs]
    if any(low > high or high > record.delivered_to for low, high in runs):
        yield f"leases {runs[:10]} do not match the messages delivered below {record.delivered_to}"


def _broken_between(before: CursorRecord, after: CursorRecord) -> Iterator[str]:
    if after.epoch < before.epoch:
        yield f"the cursor's epoch decreases from {before.epoch} to {after.epoch}"
    if after.epoch != before.epoch:
        return
    if after.acked_to < before.acked_to:
        yield f"acked_to decreases from {before.acked_to} to {after.acked_to}"
    if after.delivered_to < before.delivered_to:
        yield f"delivered_to decreases from {before.delivered_to} to {after.delivered_to}"
    if not _within(before.acked, [(0, after.acked_to), *after.acked]):
        acked = Runs([(0, after.acked_to), *after.acked])
        if lost := [gap for run in before.acked for gap in acked.gaps(*run)]:
            yield f"offsets {lost[:10]} are no longer acked"


def _within(before: Sequence[Run], after: Sequence[Run]) -> bool:
    """Tells whether each of some runs lies in one of others that rise. There may be tens of thousands; of those that do
    not rise, or touch, it may say no though they do."""
    if not before:
        return True
    runs, others = np.array(before), np.array(after)
    lows, highs = others.T
    if (lows[1:] <= highs[:-1]).any():
        return False
    at = np.searchsorted(lows, runs[:, 0], side="right") - 1
    return bool((at >= 0).all() and (highs[at] >= runs[:, 1]).all())

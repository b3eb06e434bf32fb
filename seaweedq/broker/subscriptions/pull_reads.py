"""The reads of one round: what is due next in a segment is read and leased, and what a lease holds is read again.

No owner that has just fallen silent may hold up a round, which has `delivering`, for which all consumers of its
subscription wait. So it waits READ_S for an owner; then the segment is left out, and the read goes on by itself. Rows
at an offset never change, so that a later round takes the answer, if it wants those rows yet. One that nobody has taken
is forgotten after KEPT_S.
"""

import asyncio
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa

from seaweedq.broker.log.intervals import Offsets
from seaweedq.broker.log.reader import Pieces
from seaweedq.broker.read.readable_segments import Readable
from seaweedq.broker.subscriptions.delivery import SegmentDelivery
from seaweedq.broker.subscriptions.leases import Lease
from seaweedq.broker.subscriptions.policy import NORMAL, PullLimits, left_out
from seaweedq.broker.subscriptions.subscription import Subscription
from seaweedq.broker.subscriptions.window import NO_KEY, SLOTS, WINDOW, Array
from seaweedq.concurrency.deadline import Deadline
from seaweedq.errors import BelowRetention, Unavailable
from seaweedq.segments.row_hashes import hash_keys

READ_S = 0.5
KEPT_S = 10.0
PULL_BYTES = 8 * 1024 * 1024
SPAN_GAP = 4096  # acked rows between two due ones that are rather skipped than read
KEYS_AHEAD = 4_096  # rows that are read at a time to know their keys
Part = tuple[Offsets, pa.RecordBatch]


@dataclass(eq=False, slots=True)
class _SlowRead:
    """A read from an offset on that a round has left behind."""

    offset: int
    task: "asyncio.Task[Pieces]"


class SlowReads:
    """Reads for looks, one at a time of each subscription and segment."""

    def __init__(self) -> None:
        self._of: WeakKeyDictionary[Subscription, dict[int, _SlowRead]] = WeakKeyDictionary()

    async def read(
        self, subscription: Subscription, segment: Readable, what: tuple[int, int, int], waits_s: float
    ) -> Pieces:
        """Returns rows of another broker's segment as `segment.read` does: `what` are an offset, a limit, and bytes.
        Raises Unavailable if they do not come within `waits_s`."""
        offset = what[0]
        late = self._of.setdefault(subscription, {})
        before = late.pop(segment.id, None)
        if before and before.offset == offset:
            task, waits_s = before.task, 0.0
        else:
            if before:
                before.task.cancel()
            task = asyncio.create_task(segment.read(*what))
            task.add_done_callback(_heard)
        try:
            await asyncio.wait([task], timeout=waits_s)
        finally:
            if not task.done():
                late[segment.id] = one = _SlowRead(offset, task)
                asyncio.get_running_loop().call_later(KEPT_S, _forget, late, segment.id, one)
        if not task.done():
            raise Unavailable(f"the owner of segment {segment.id} has not answered a read yet")
        return task.result()


def _heard(task: "asyncio.Task[Pieces]") -> None:
    if not task.cancelled():
        task.exception()  # whoever takes the answer gets it


def _forget(late: dict[int, _SlowRead], segment: int, one: _SlowRead) -> None:
    if late.get(segment) is one:
        del late[segment]
        one.task.cancel()


@dataclass(frozen=True, slots=True)
class DeliveredRows:
    """Messages of one segment that a pull returns: rows of one schema, their offsets, and how often each was delivered,
    this time included."""

    segment: Readable
    offsets: Offsets
    attempts: Array
    rows: pa.RecordBatch


@dataclass(slots=True)
class PullRound:
    """The state of one round: its lease, what is found so far, and what may still be."""

    subscription: Subscription
    lease: Lease
    reads: SlowReads
    count: int
    max_bytes: int
    rows_left: int
    patience: Deadline
    kind: int | None = None
    found: list[DeliveredRows] = field(default_factory=list)
    touched: list[SegmentDelivery] = field(default_factory=list)  # the segments' that were looked at
    waits_s: float = READ_S  # for another broker
    frees: bool = False  # messages that may have held streams back are due no more

    def is_enough(self, delivery: SegmentDelivery, end: int) -> bool:
        """Tells whether a segment, which ends at `end`, is not looked at any further."""
        if self.count <= 0 or self.max_bytes <= 0 or self.kind not in (None, NORMAL):
            return True
        return bool(self.found) and (self.patience.is_over or delivery.is_drained(end))

    async def read(self, segment: Readable, offset: int, limit: int, max_bytes: int) -> Pieces:
        """Returns rows from `offset` on. Raises Unavailable, also where another broker does not answer at once: a round
        waits for one such read."""
        try:
            if segment.certain:
                return await segment.read(offset, limit, max_bytes)
            return await self.reads.read(self.subscription, segment, (offset, limit, max_bytes), self.waits_s)
        except Unavailable:
            self.waits_s = 0.0
            raise

    def due(self, delivery: SegmentDelivery, end: int) -> Offsets:
        """Returns the offsets below `end` that are due."""
        return delivery.available(PullLimits(self.lease.consumer, self.count, self.kind), end)


async def take(segment: Readable, round: PullRound) -> list[Part] | None:
    """Reads and leases the next messages, with one read for all that lie close together. Returns None where there are
    none. Raises Unavailable."""
    subscription, lease = round.subscription, round.lease
    delivery = subscription.cursor(segment.id).delivery
    while True:
        try:
            if delivery.rules.reads_ahead:
                await _read_ahead(segment, delivery, round)
            due = round.due(delivery, segment.end)
            if not len(due):
                return None
            low, high = int(due[0]), _end_of_span(due)
            pieces = await round.read(segment, low, high - low, round.max_bytes)
        except BelowRetention as error:
            _retire(subscription, segment.id, int(error.fields["start_offset"]))
            continue
        read_to = low
        for _, rows in pieces:
            read_to += rows.num_rows
        given = round.due(delivery, read_to)
        if len(given) and given[0] == low:
            round.kind = delivery.kind_of(low)
            delivery.leases.lease(given, lease.number, lease.consumer)
            return _rows_at(pieces, given)
        # Leases ended, or an ack failed, during the read: the offsets that became due go first.


async def _read_ahead(segment: Readable, delivery: SegmentDelivery, round: PullRound) -> None:
    """Reads on, until enough messages are due whose keys are free, or all of the window are known, or the round has
    filtered enough; in any case up to the last lease that was taken over, where keys matter."""
    wanted, is_keyed = round.subscription.record.filter, delivery.rules.mode == "keyed"
    ahead = KEYS_AHEAD
    while (first := delivery.read_to) < (end := min(segment.end, delivery.window.acked_to + WINDOW)):
        may_stop = not is_keyed or first >= delivery.needed_keys_to
        due = len(round.due(delivery, segment.end)) if may_stop else 0
        if due >= round.count or (due and first >= delivery.window.delivered_to + KEYS_AHEAD):
            return
        if wanted and may_stop and round.rows_left > 0 and round.patience.is_over:
            round.rows_left = 0  # the next round goes on
        if wanted and may_stop and round.rows_left <= 0:
            return
        pieces = await round.read(segment, first, min(end - first, ahead), PULL_BYTES)
        for start, rows in pieces:
            if start <= delivery.read_to:
                delivery.know(start, _slots(rows) if is_keyed else np.full(rows.num_rows, NO_KEY, np.int32))
                if wanted:
                    delivery.leave_out(np.flatnonzero(left_out(wanted, rows)) + start)
                    round.rows_left -= rows.num_rows
        ahead = min(2 * ahead, max(KEYS_AHEAD, round.rows_left)) if wanted and not due else KEYS_AHEAD
        if delivery.read_to == first:
            return


def _slots(rows: pa.RecordBatch) -> Array:
    """Returns the slot of each row's key."""
    at = rows.schema.get_field_index("_key")
    if at < 0:
        return np.full(rows.num_rows, NO_KEY, np.int32)
    keys = rows.column(at)
    slots: Array = (hash_keys(keys) % SLOTS).astype(np.int32)
    slots[keys.is_null().to_numpy(zero_copy_only=False)] = NO_KEY
    return slots


async def read_all(segment: Readable, subscription: Subscription, delivery: SegmentDelivery, lease: int) -> list[Part]:
    """Reads all that a lease holds of a segment. What ends meanwhile is left out."""
    parts: list[Part] = []
    held = delivery.leases.held_by(lease)
    while len(held):
        low, high = int(held[0]), _end_of_span(held)
        try:
            pieces = await segment.read(low, high - low, PULL_BYTES)
        except BelowRetention as error:
            _retire(subscription, segment.id, int(error.fields["start_offset"]))
            held = delivery.leases.held_by(lease)
            continue
        read_to = low + sum(rows.num_rows for _, rows in pieces)
        still = delivery.leases.held_by(lease)
        parts += _rows_at(pieces, still[(still >= low) & (still < read_to)])
        held = still[still >= read_to]
    return parts


def _retire(subscription: Subscription, segment: int, start: int) -> None:
    """Moves a cursor up over what retention has removed. Raises Unavailable where it stays: it, or the segment's
    record, has just become unreadable."""
    subscription.retire(segment, start)
    if subscription.acked_to(segment) < start:
        raise Unavailable(f"the cursor of segment {segment} cannot be moved up to its start, {start}; try again")


def _end_of_span(offsets: Offsets) -> int:
    far = np.flatnonzero(np.diff(offsets) > SPAN_GAP)
    return int(offsets[far[0] if len(far) else -1]) + 1


def _rows_at(pieces: Pieces, offsets: Offsets) -> list[Part]:
    """Returns the rows at these offsets, which lie in the pieces."""
    parts: list[Part] = []
    for first, rows in pieces:
        here = offsets[np.searchsorted(offsets, first) : np.searchsorted(offsets, first + rows.num_rows)]
        if len(here) == rows.num_rows:
            parts.append((here, rows))
        elif len(here):
            parts.append((here, rows.take(pa.array(here - first))))
    return parts

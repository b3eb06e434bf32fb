"""Rounds of pulls: messages that are due in the segments of a subscription are read and leased.

The messages of a pull are one lease, whose name the client chose, or the broker that took the request. The same name
again gives the messages that the lease still holds, with the same attempts and a new deadline; a name whose lease has
ended gives nothing any more. So a pull that is repeated after a lost answer gets the same messages.

In `ordered` a new name, of a consumer that has a name too, says that the consumer holds nothing that it knows of: it
has crashed, and come back. So its messages come again first, else later ones would overtake them. One that
does know of it, since it prefetches, goes `ahead`; so does a stream, but for its first lease.

No owner that has just fallen silent may hold up a round, which has `delivering`, for which all consumers of its
subscription wait. So it waits READ_S for an owner; then the segment is left out, and the read goes on by itself. Rows
at an offset never change, so that a later round takes the answer, if it wants those rows yet. An answer that no round
has taken is forgotten after KEPT_S. Retention may raise a segment's start during a read, and remove its cursor.

The next turn of a stream is messages of it that its client does not have yet, or a new lease, or nothing. Nothing goes
out over the stream's `max_in_flight`. A message that may have killed its consumer goes alone (policy): while a stream
holds such messages it gets nothing, and if one is due it waits until the stream holds nothing. In `ordered` the newest
stream of a consumer alone gets messages: nobody may read an older one any more, and what that gets would be missing in
the newest one until a deadline ends.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from weakref import WeakKeyDictionary

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from seaweedq.broker.log.intervals import Offsets
from seaweedq.broker.log.reader import Pieces, expired
from seaweedq.broker.read.readable_segments import Readable, ReadableSegments
from seaweedq.broker.subscriptions.delivery import SegmentDelivery
from seaweedq.broker.subscriptions.leases import ANYBODY, FEW, Lease, Position, name_lease, of_another
from seaweedq.broker.subscriptions.policy import FILTERED_ROWS, NORMAL, PullLimits, left_out
from seaweedq.broker.subscriptions.subscription import StreamHolds, Subscription
from seaweedq.broker.subscriptions.window import NO_KEY, SLOTS, WINDOW, Array
from seaweedq.clock import Clock
from seaweedq.concurrency.deadline import Deadline
from seaweedq.concurrency.futures import mark_retrieved
from seaweedq.errors import BelowRetention, LeaseEnded, Unavailable
from seaweedq.segments.row_hashes import hash_keys

READ_S = 0.5
KEPT_S = 10.0
PULL_BYTES = 8 * 1024 * 1024
SPAN_GAP = 4096  # acked rows between two due ones that are rather skipped than read
KEYS_AHEAD = 4_096  # rows that are read at a time to know their keys
Part = tuple[Offsets, pa.RecordBatch]
ROUND_S = 1.0  # before a pull answers with the messages that it has


class Pull(msgspec.Struct, frozen=True):
    """The messages that a client wants: how many at most, for whom, under which lease, and how long it waits for the
    first one. With `ahead` it goes on behind the messages that its consumer holds. A stream names its position instead
    of a lease. Rows of `max_bytes` are enough."""

    max_messages: int = 100
    wait_s: float = 0.0
    consumer: str | None = None
    lease: str | None = None
    ahead: bool = False
    position: Position | None = None
    max_bytes: int = PULL_BYTES


class DeliveredRows(msgspec.Struct, frozen=True):
    """Messages of one segment that a pull returns: rows of one schema, their offsets, and how often each was delivered,
    this time included."""

    segment: Readable
    offsets: Offsets
    attempts: Array
    rows: pa.RecordBatch


class PullResult(msgspec.Struct, frozen=True):
    """Messages, and the name of the lease that they are under; None if there are no messages."""

    name: str | None = None
    messages: Sequence[DeliveredRows] = ()


def _nothing_hidden() -> None:
    pass


class RoundResult(msgspec.Struct, frozen=True):
    """The result of one round of the segments: the leased messages, the segments that could not be read, and which have
    a `stale` end: the one that their owner reported last. `check_hidden` raises NeedsNewerBroker if there are more,
    whose records or cursors cannot be read. A stream is `held_back` while it holds too much. `rows_left` may be
    filtered yet; 0: there may be more messages."""

    found: PullResult
    missing: set[int] = msgspec.field(default_factory=set)
    stale: set[int] = msgspec.field(default_factory=set)
    check_hidden: Callable[[], None] = _nothing_hidden
    held_back: bool = False
    rows_left: int = FILTERED_ROWS


@dataclass(eq=False, slots=True)
class _SlowRead:
    """A read from an offset on that a round has left behind."""

    offset: int
    task: "asyncio.Task[Pieces]"


class SlowReads:
    """Reads for looks, one at a time of each subscription and segment."""

    def __init__(self) -> None:
        self._reads: WeakKeyDictionary[Subscription, dict[int, _SlowRead]] = WeakKeyDictionary()

    async def read(
        self, subscription: Subscription, segment: Readable, what: tuple[int, int, int], waits_s: float
    ) -> Pieces:
        """Returns rows of another broker's segment as `segment.read` does: `what` are an offset, a limit, and bytes.
        Raises Unavailable if they do not come within `waits_s`."""
        offset = what[0]
        late = self._reads.setdefault(subscription, {})
        before = late.pop(segment.id, None)
        if before and before.offset == offset:
            task, waits_s = before.task, 0.0
        else:
            if before:
                before.task.cancel()
            task = asyncio.create_task(segment.read(*what))
            task.add_done_callback(mark_retrieved)  # the round may have gone
        try:
            await asyncio.wait([task], timeout=waits_s)
        finally:
            if not task.done():
                late[segment.id] = one = _SlowRead(offset, task)
                asyncio.get_running_loop().call_later(KEPT_S, _forget, late, segment.id, one)
        if not task.done():
            raise Unavailable(f"the owner of segment {segment.id} has not answered an earlier read yet")
        return task.result()


def _forget(late: dict[int, _SlowRead], segment: int, one: _SlowRead) -> None:
    if late.get(segment) is one:
        del late[segment]
        one.task.cancel()


@dataclass(slots=True)
class PullRound:
    """The state of one round: its lease, the messages that are found, and the bounds of further ones."""

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
        """Returns rows from `offset` on. Raises Unavailable, also if another broker does not answer at once: a round
        waits for one such read."""
        try:
            if segment.certain:
                return await segment.read(offset, limit, max_bytes)
            return await self.reads.read(self.subscription, segment, (offset, limit, max_bytes), self.waits_s)
        except Unavailable:
            self.waits_s = 0.0
            raise


class Leasing:
    """Leases the messages of subscriptions that are open at this broker. The caller holds `delivering`."""

    def __init__(self, readables: ReadableSegments, clock: Clock) -> None:
        self._readables = readables
        self._clock = clock
        self._slow_reads = SlowReads()

    async def round(self, subscription: Subscription, wanted: Pull, rows_left: int = FILTERED_ROWS) -> RoundResult:
        """Leases messages that are known to exist, and filters so many rows at most. Raises LeaseEnded, LeaseOfAnother,
        and Unavailable if messages of an open lease cannot be read."""
        now_s = self._clock.monotonic_s()
        if wanted.lease and (lease := subscription.leases.known(wanted.lease, wanted.consumer)):
            return RoundResult(PullResult(lease.name, await self._again(subscription, lease, now_s)))
        if wanted.position:
            return await self._next(subscription, wanted, wanted.position, rows_left)
        return await self._lease(subscription, wanted, now_s, rows_left)

    async def _next(self, subscription: Subscription, wanted: Pull, position: Position, rows_left: int) -> RoundResult:
        """Gives a stream its messages behind its position, one lease at a time, else a new lease. Raises LeaseEnded
        if the connection has left, LeaseOfAnother if it goes on with another consumer's stream."""
        leases = subscription.leases
        while True:
            now_s = self._clock.monotonic_s()
            _check_connection(subscription, position)
            leases.streams.note(position, now_s)
            if position.resumed and position.consumer != position.stream:  # both have names
                lease = leases.find(position.lease)
                if lease and lease.consumer not in map(leases.known_consumer, (position.consumer, position.stream)):
                    raise of_another(position.lease, position.consumer)
            subscription.expire(list(subscription.cursors), now_s)
            turn = next_turn(subscription, position, now_s)
            if turn is None:
                return RoundResult(PullResult(), held_back=True)
            if not isinstance(turn, Resend):
                count = min(turn.count, wanted.max_messages)
                asked = replace(wanted, lease=turn.name, max_messages=count, ahead=not turn.is_first)
                return await self._lease(subscription, asked, now_s, rows_left)
            with suppress(LeaseEnded):  # of all that it held the deadline was over, or the acks came, in between
                behind: list[DeliveredRows] = []
                for one in await self._again(subscription, turn.lease, now_s):
                    mask = np.isin(one.offsets, turn.behind(one.segment.id, one.offsets))
                    if mask.any():
                        unsent = one.rows.filter(pa.array(mask))
                        behind.append(DeliveredRows(one.segment, one.offsets[mask], one.attempts[mask], unsent))
                if behind:
                    return RoundResult(PullResult(turn.lease.name, behind))

    async def _again(self, subscription: Subscription, lease: Lease, now_s: float) -> list[DeliveredRows]:
        """Reads the messages of an open lease, and gives it a new deadline."""
        found: list[DeliveredRows] = []
        segments, missing = await self._readables.available(subscription.topic, tuple(lease.segments))
        self._extend(subscription, lease, now_s)
        for segment in sorted(segments, key=lambda one: one.id):
            if cursor := subscription.cursors.get(segment.id):
                parts = await _read_held(segment, subscription, cursor.delivery, lease.number)
                found += await self._without_expired(segment, cursor.delivery, parts)
        held = subscription.held_by(lease)
        if unread := sorted(missing & held.keys())[:10]:
            raise Unavailable(f"segments {unread} could not be read; try again", segments=unread)
        if not found:
            raise LeaseEnded(
                f"lease {lease.name!r} has ended; use another lease name for the next pull", lease=lease.name
            )
        self._extend(subscription, lease, self._clock.monotonic_s())
        return found

    def _extend(self, subscription: Subscription, lease: Lease, now_s: float) -> None:
        subscription.expire(lease.segments, now_s)
        for segment, offsets in subscription.held_by(lease).items():
            subscription.cursors[segment].delivery.leases.extend(offsets, now_s + subscription.record.ack_deadline_s)

    async def _lease(self, subscription: Subscription, wanted: Pull, now_s: float, rows_left: int) -> RoundResult:
        """Goes round the segments, beginning with another one each time, until there are enough messages, or some after
        ROUND_S: a consumer that waits no longer would never get any. The lease begins when all is read, however long
        that takes."""
        topic, record = subscription.topic, subscription.record
        subscription.expire(subscription.frontier.open, now_s)  # all: waiting pulls are woken when the next one ends
        consumer = subscription.leases.consumer(wanted.consumer or ANYBODY)
        mine = subscription.share_of(consumer, now_s)
        if wanted.consumer and wanted.lease and not (wanted.ahead or record.paused) and record.mode == "ordered":
            subscription.give_again(consumer)
        if self._is_drained(subscription):
            subscription.full = False
            return RoundResult(
                PullResult(), check_hidden=partial(subscription.check_readable, subscription.frontier.hidden)
            )
        lease = subscription.leases.make(wanted.lease, wanted.consumer or ANYBODY)
        segments, missing = await self._readables.available(topic, tuple(subscription.frontier.open))
        stale = {segment.id for segment in segments if not segment.certain}
        result = RoundResult(
            PullResult(), missing, stale, partial(subscription.check_readable, subscription.frontier.hidden)
        )
        if record.paused:
            return result
        patience = Deadline(self._clock, ROUND_S)
        # Nobody else leases meanwhile. Dying messages count, so that they are bounded if their topic takes nothing.
        room = record.max_in_flight - subscription.outstanding
        subscription.full = room <= 0
        count = min(wanted.max_messages, room)
        round = PullRound(subscription, lease, self._slow_reads, count, wanted.max_bytes, rows_left, patience)
        turns = subscription.rotate([segment for segment in segments if segment.id in mine])
        await self._fill(round, wanted, turns, missing)
        deadline_s = self._clock.monotonic_s() + record.ack_deadline_s
        for delivery in round.touched:
            delivery.leases.begin(deadline_s)
        if round.frees or (round.found and round.kind != NORMAL):  # those that held streams back are gone
            subscription.leases.streams.wake_all()
        if not round.found:
            return replace(result, rows_left=max(0, round.rows_left))
        subscription.leases.add(lease)
        return RoundResult(PullResult(lease.name, round.found), missing, stale)

    async def _fill(self, round: PullRound, wanted: Pull, segments: Iterable[Readable], missing: set[int]) -> None:
        """Leases messages that are due, a segment after the other, until there is enough; `missing` gets those that
        could not be read. If it fails, nothing that it took is leased."""
        subscription = round.subscription
        try:
            for segment in segments:
                if segment.id not in subscription.frontier.open:
                    continue  # it is done by now, and its cursor may be gone
                round.touched.append(delivery := subscription.cursor(segment.id).delivery)
                while not round.is_enough(delivery, segment.end):
                    try:
                        taken = await _lease_next(segment, delivery, round)
                    except Unavailable:
                        missing.add(segment.id)
                        break
                    if taken is None:
                        break
                    alive = await self._without_expired(segment, delivery, taken)
                    round.found += alive
                    round.lease.segments.add(segment.id)
                    count = leased = 0
                    for one in alive:
                        count += len(one.offsets)
                    for offsets, rows in taken:
                        leased += len(offsets)
                        round.max_bytes -= rows.nbytes
                    round.frees |= round.kind != NORMAL and count < leased
                    round.count -= count
                    if not round.found:
                        round.kind = None
            if wanted.position:  # messages leased now would be with nobody until their deadline
                _check_connection(subscription, wanted.position)
        except BaseException:
            for delivery in round.touched:
                delivery.leases.cancel()
            subscription.leases.streams.wake_all()
            raise

    def _is_drained(self, subscription: Subscription) -> bool:
        """Tells whether all that there is was delivered, of segments that are all open at this broker. Most looks come
        right behind the one that gave the last message."""
        opened = subscription.topic.opened
        for number in subscription.frontier.open:
            segment, cursor = opened.get(number), subscription.cursors.get(number)
            if segment is None or segment.closed or cursor is None or not cursor.delivery.is_drained(segment.tail.end):
                return False
        return True

    async def _without_expired(
        self, segment: Readable, delivery: SegmentDelivery, taken: Sequence[Part]
    ) -> list[DeliveredRows]:
        """Returns the rows whose time is not over; the others get to nobody, so they count as acked. This broker's
        clock does not decide that alone. During a read, or while others are asked, acks and retention may have moved
        the cursor up."""
        found: list[DeliveredRows] = []
        now_us, some_are_over = self._clock.now_us(), False
        for _, rows in taken:
            some_are_over = some_are_over or expired(rows, now_us) is not None
        if some_are_over:
            now_us = await self._readables.time.now_us()
        low = delivery.window.acked_to
        for offsets, rows in taken:
            if first := int(np.searchsorted(offsets, low)):
                offsets, rows = offsets[first:], rows.slice(first)
            over = expired(rows, now_us) if some_are_over else None
            if over is not None:
                delivery.window.mark_acked(offsets[over])
                offsets, rows = offsets[~over], rows.filter(pa.array(~over))
            if len(offsets):
                found.append(DeliveredRows(segment, offsets, delivery.window.values("attempts", offsets), rows))
        return found


def _check_connection(subscription: Subscription, position: Position) -> None:
    """Raises LeaseEnded if the connection of a stream has left."""
    if subscription.leases.streams.has_left(position.connection):
        raise LeaseEnded("the client of the stream has disconnected", lease=position.lease)


async def _lease_next(segment: Readable, delivery: SegmentDelivery, round: PullRound) -> list[Part] | None:
    """Reads and leases the next messages, with one read for all that lie close together. Returns None if there are
    none. Raises Unavailable."""
    lease, limits = round.lease, PullLimits(round.lease.consumer, round.count, round.kind)
    while True:
        try:
            if delivery.rules.reads_ahead:
                await _read_ahead(segment, delivery, round, limits)
            due = delivery.available(limits, segment.end)
            if not len(due):
                return None
            low, high = int(due[0]), _end_of_span(due)
            pieces = await round.read(segment, low, high - low, round.max_bytes)
        except BelowRetention as error:
            if not _retire(round.subscription, segment.id, delivery, error):
                return None
            continue
        read_to = low
        for _, rows in pieces:
            read_to += rows.num_rows
        given = delivery.available(limits, read_to)
        if len(given) and given[0] == low:
            round.kind = delivery.kind_of(low)
            delivery.leases.lease(given, lease.number, lease.consumer)
            return _rows_at(pieces, given)
        # Leases ended, or an ack failed, during the read: the offsets that became due go first.


async def _read_ahead(segment: Readable, delivery: SegmentDelivery, round: PullRound, limits: PullLimits) -> None:
    """Reads on, until enough messages are due whose keys are free, or all of the window are known, or the round has
    filtered enough; in any case up to the last lease that was taken over, if keys matter."""
    wanted, is_keyed = round.subscription.record.filter, delivery.rules.mode == "keyed"
    ahead = KEYS_AHEAD
    while (first := delivery.read_to) < (end := min(segment.end, delivery.window.acked_to + WINDOW)):
        may_stop = not is_keyed or first >= delivery.needed_keys_to
        due = len(delivery.available(limits, segment.end)) if may_stop else 0
        if due >= round.count or (due and first >= delivery.window.delivered_to + KEYS_AHEAD):
            return
        if wanted and may_stop and round.rows_left > 0 and round.patience.is_over:
            round.rows_left = 0  # the next round goes on
        if wanted and may_stop and round.rows_left <= 0:
            return
        pieces = await round.read(segment, first, min(end - first, ahead), PULL_BYTES)
        for start, rows in pieces:
            if start <= delivery.read_to:
                delivery.set_slots(start, _slots(rows) if is_keyed else np.full(rows.num_rows, NO_KEY, np.int32))
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


async def _read_held(
    segment: Readable, subscription: Subscription, delivery: SegmentDelivery, lease: int
) -> list[Part]:
    """Reads all that a lease holds of a segment. Leases that end meanwhile are left out."""
    parts: list[Part] = []
    held = delivery.leases.held_by(lease)
    while len(held):
        low, high = int(held[0]), _end_of_span(held)
        try:
            pieces = await segment.read(low, high - low, PULL_BYTES)
        except BelowRetention as error:
            if not _retire(subscription, segment.id, delivery, error):
                break
            held = delivery.leases.held_by(lease)
            continue
        read_to = low + sum(rows.num_rows for _, rows in pieces)
        still = delivery.leases.held_by(lease)
        parts += _rows_at(pieces, still[(still >= low) & (still < read_to)])
        held = still[still >= read_to]
    return parts


def _retire(subscription: Subscription, segment: int, delivery: SegmentDelivery, error: BelowRetention) -> bool:
    """Moves a cursor up over removed messages. Returns False if retention has removed the segment, and so
    its cursor. Raises Unavailable if the cursor stays: it, or the segment's record, has just become unreadable."""
    start = int(error.fields["start_offset"])
    subscription.retire(segment, start)
    cursor = subscription.cursors.get(segment)
    if cursor is None or cursor.delivery is not delivery:
        return False
    if delivery.window.acked_to < start:
        raise Unavailable(
            f"retention removed the messages below offset {start} of segment {segment}, but the "
            "subscription's cursor for this segment could not be moved forward to that offset; try again"
        )
    return True


def _end_of_span(offsets: Offsets) -> int:
    if offsets[-1] - offsets[0] <= SPAN_GAP:
        return int(offsets[-1]) + 1
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


@dataclass(frozen=True, slots=True)
class Resend:
    """An open lease, of which the client lacks the messages behind the position."""

    lease: Lease
    position: Position

    def behind(self, segment: int, offsets: Offsets) -> Offsets:
        """Returns those offsets that the client does not have."""
        return self.position.behind(self.position.serial, segment, offsets)


@dataclass(frozen=True, slots=True)
class NewLease:
    """A new lease of at most so many messages; the first one of a new stream does not go ahead."""

    name: str
    count: int
    is_first: bool


def next_turn(subscription: Subscription, position: Position, now_s: float) -> Resend | NewLease | None:
    """Returns the turn that a stream gets behind its position; None if it has to wait. The caller has expired the
    leases."""
    leases = subscription.leases
    if subscription.record.mode == "ordered" and not leases.streams.is_newest(position, now_s):
        return None
    stream, before = leases.streams.get(position.stream), position.serial
    if position.resumed and not leases.find(position.lease):
        position = position.at(0)
    held = subscription.held_by_stream(position.stream)
    holding = [numbers for _, _, numbers in held.values()]
    unique = dict.fromkeys(n for some in holding for n in (some if len(some) < FEW else np.unique(some)).tolist())
    for serial, number in stream.holding(unique, position.serial):
        misses = any(  # the client does not have all that the lease holds
            len(position.behind(serial, segment, offsets[numbers == number]))
            for segment, (_, offsets, numbers) in held.items()
        )
        if misses and (lease := leases.numbered(number)):
            return Resend(lease, position if serial == position.serial else position.at(serial))
    in_flight = sum(len(offsets) for _, offsets, _ in held.values())
    if in_flight >= position.max_in_flight or (in_flight and _has_to_empty(subscription, held, position.consumer)):
        return None
    last = max(stream.last, before)
    while leases.is_used(name := name_lease(position.stream, last + 1)):
        last += 1
    return NewLease(name, position.max_in_flight - in_flight, is_first=not (stream.last or before))


def _has_to_empty(subscription: Subscription, held: StreamHolds, consumer: str) -> bool:
    """Tells whether a stream that holds something gets nothing more until it holds nothing."""
    for delivery, offsets, _ in held.values():
        if delivery.rules.kinds(delivery.window.values("attempts", offsets) - np.uint16(1)).any():
            return True
    limits = PullLimits(subscription.leases.consumer(consumer), 1)
    for segment in subscription.frontier.open:
        cursor = subscription.cursors.get(segment)
        if cursor is None:
            continue
        delivery, delivered_to = cursor.delivery, cursor.delivery.window.delivered_to
        if delivery.is_drained(delivered_to):
            continue
        due = delivery.available(limits, delivered_to)  # the first one, of those that were delivered before
        if len(due) and delivery.kind_of(int(due[0])) != NORMAL:
            return True
    return False

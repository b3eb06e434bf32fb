"""Leasing of messages to consumers: one look at the segments that a subscription may read.

The messages of a pull are one lease, whose name the client chose, or the broker that took the request. The same name
again gives what the lease still holds, with the same attempts and a new deadline; a name whose lease has ended gives
nothing any more. So a pull that is repeated after a lost answer gets the same messages.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa

from seaweedq.broker.log.intervals import Offsets
from seaweedq.broker.log.reader import Pieces, expired
from seaweedq.broker.read.remote_reader import ReadableSegments
from seaweedq.broker.read.segment_reader import Readable
from seaweedq.broker.subscriptions.consumers.leases import ANYBODY, Lease, of_another
from seaweedq.broker.subscriptions.consumers.stream_leases import Position
from seaweedq.broker.subscriptions.cursors.cursor_store import CursorStore
from seaweedq.broker.subscriptions.cursors.subscription import Subscription
from seaweedq.broker.subscriptions.delivery.choosing import NORMAL, Want
from seaweedq.broker.subscriptions.delivery.filtering import FILTERED_ROWS, left_out
from seaweedq.broker.subscriptions.delivery.segment_delivery import Delivery
from seaweedq.broker.subscriptions.delivery.slots import NO_KEY, SLOTS
from seaweedq.broker.subscriptions.delivery.window import WINDOW, Array
from seaweedq.broker.subscriptions.dispatch.late_reads import READ_S, LateReads
from seaweedq.broker.subscriptions.dispatch.stream_turn import Again, next_turn
from seaweedq.broker.topics.catalog import Catalog
from seaweedq.clock import Clock
from seaweedq.concurrency.deadline import Deadline
from seaweedq.errors import BelowRetention, LeaseEnded, Unavailable
from seaweedq.segments.row_hashes import hash_keys

PULL_BYTES = 8 * 1024 * 1024
LOOK_S = 1.0  # before a pull answers with what it has
SPAN_GAP = 4096  # acked rows between two due ones that are rather skipped than read
KEYS_AHEAD = 4_096  # rows that are read at a time to know their keys
Part = tuple[Offsets, pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class Pull:
    """The messages that a client wants: how many at most, for whom, under which lease, and how long it waits for the
    first one. A stream names its position instead of a lease. Rows of `max_bytes` are enough."""

    max_messages: int = 100
    wait_s: float = 0.0
    consumer: str | None = None
    lease: str | None = None
    position: Position | None = None
    max_bytes: int = PULL_BYTES


@dataclass(frozen=True, slots=True)
class Delivered:
    """Messages of one segment that a pull returns: rows of one schema, their offsets, and how often each was delivered,
    this time included."""

    segment: Readable
    offsets: Offsets
    attempts: Array
    rows: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Leased:
    """Messages, and the name of the lease that they are under; None where there are no messages."""

    name: str | None = None
    messages: Sequence[Delivered] = ()


def _nothing_hidden() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Look:
    """The outcome of one look at the segments: what was leased, which segments could not be read, and which have a
    `stale` end: the one that their owner reported last. `check_hidden` raises NeedsNewerBroker where there are more,
    whose records or cursors cannot be read. A stream is `held_back` while it holds too much. `rows_left` may be
    filtered yet; 0: there may be more messages."""

    found: Leased
    missing: set[int] = field(default_factory=set)
    stale: set[int] = field(default_factory=set)
    check_hidden: Callable[[], None] = _nothing_hidden
    held_back: bool = False
    rows_left: int = FILTERED_ROWS


@dataclass(slots=True)
class _Round:
    """The state of one look: its lease, what is found so far, and what may still be."""

    subscription: Subscription
    lease: Lease
    reads: LateReads
    count: int
    max_runs: int
    max_bytes: int
    rows_left: int
    patience: Deadline
    kind: int | None = None
    found: list[Delivered] = field(default_factory=list)
    waits_s: float = READ_S  # for another broker
    frees: bool = False  # messages that may have held streams back are due no more

    @property
    def is_full(self) -> bool:
        return self.count <= 0 or self.max_bytes <= 0 or self.kind not in (None, NORMAL)

    async def read(self, segment: Readable, offset: int, limit: int, max_bytes: int) -> Pieces:
        """Returns rows from `offset` on. Raises Unavailable, also where another broker does not answer at once: a look
        waits for one such read."""
        try:
            return await self.reads.read(self.subscription, segment, (offset, limit, max_bytes), self.waits_s)
        except Unavailable:
            self.waits_s = 0.0
            raise

    def due(self, delivery: Delivery, end: int) -> Offsets:
        """Returns the offsets below `end` that are due."""
        return delivery.available(Want(self.lease.consumer, self.count, self.kind, self.max_runs), end)


class Leasing:
    """Leases the messages of subscriptions that are open at this broker. The caller holds `delivering`."""

    def __init__(self, catalog: Catalog, readables: ReadableSegments, cursors: CursorStore, clock: Clock) -> None:
        self._catalog = catalog
        self._readables = readables
        self._cursors = cursors
        self._clock = clock
        self._late_reads = LateReads()

    async def look(self, subscription: Subscription, wanted: Pull, rows_left: int = FILTERED_ROWS) -> Look:
        """Leases what is known to exist, and filters so many rows at most. Raises LeaseEnded, LeaseOfAnother, and
        Unavailable where messages of an open lease cannot be read."""
        now_s = self._clock.monotonic_s()
        if wanted.lease and (lease := subscription.leases.known(wanted.lease, wanted.consumer)):
            return Look(Leased(lease.name, await self._again(subscription, lease, now_s)))
        if wanted.position:
            return await self._next(subscription, wanted, wanted.position, rows_left)
        return await self._lease(subscription, wanted, now_s, rows_left)

    async def _next(self, subscription: Subscription, wanted: Pull, position: Position, rows_left: int) -> Look:
        """Gives a stream what it holds behind its position, one lease at a time, else a new lease. Raises LeaseEnded
        where the connection has left, LeaseOfAnother where it goes on with another consumer's stream."""
        while True:
            now_s = self._clock.monotonic_s()
            _check_connection(subscription, wanted)
            _check_consumer(subscription, position)
            subscription.expire(list(subscription.cursors), now_s)
            turn = next_turn(subscription, position)
            if turn is None:
                return Look(Leased(), held_back=True)
            if not isinstance(turn, Again):
                count = min(turn.count, wanted.max_messages)
                asked = replace(wanted, lease=turn.name, max_messages=count)
                return await self._lease(subscription, asked, now_s, rows_left)
            with suppress(LeaseEnded):  # of all that it held the deadline was over, or the acks came, in between
                found = await self._again(subscription, turn.lease, now_s)
                if behind := [part for one in found if (part := _behind(turn, one))]:
                    return Look(Leased(turn.lease.name, behind))

    async def _again(self, subscription: Subscription, lease: Lease, now_s: float) -> list[Delivered]:
        """Reads what an open lease holds, and gives it a new deadline."""
        found: list[Delivered] = []
        segments, missing = await self._readables.of(subscription.topic, tuple(lease.segments))
        self._extend(subscription, lease, now_s)
        for segment in sorted(segments, key=lambda one: one.id):
            if cursor := subscription.cursors.get(segment.id):
                parts = await _read_all(segment, subscription, cursor.delivery, lease.number)
                found += await self._without_expired(segment, cursor.delivery, parts)
        held = subscription.held_by(lease)
        if unread := sorted(missing & held.keys())[:10]:
            raise Unavailable(f"segments {unread} could not be read; try again", segments=unread)
        if not found:
            raise LeaseEnded(f"lease {lease.name!r} has ended; a new pull takes another name", lease=lease.name)
        self._extend(subscription, lease, self._clock.monotonic_s())
        return found

    def _extend(self, subscription: Subscription, lease: Lease, now_s: float) -> None:
        subscription.expire(lease.segments, now_s)
        for segment, offsets in subscription.held_by(lease).items():
            subscription.cursors[segment].delivery.extend(offsets, now_s + subscription.record.ack_deadline_s)

    async def _lease(self, subscription: Subscription, wanted: Pull, now_s: float, rows_left: int) -> Look:
        """Goes round the segments, beginning with another one each time, until there are enough messages, or some after
        LOOK_S: a consumer that waits no longer would never get any. The lease begins when all is read, however long
        that takes."""
        topic, record = subscription.topic, subscription.record
        subscription.expire(subscription.frontier.open, now_s)  # all: who waits is woken when the next one ends
        if self._is_drained(subscription):
            subscription.full = False
            subscription.turns.pulls(subscription.leases.consumer(wanted.consumer or ANYBODY), now_s)
            return Look(Leased(), check_hidden=partial(subscription.check_readable, subscription.frontier.hidden))
        lease = subscription.leases.make(wanted.lease, wanted.consumer or ANYBODY)
        segments, missing = await self._readables.of(topic, tuple(subscription.frontier.open))
        mine = subscription.share_of(lease.consumer, now_s)
        stale = {segment.id for segment in segments if not segment.certain}
        look = Look(Leased(), missing, stale, partial(subscription.check_readable, subscription.frontier.hidden))
        if record.paused:
            return look
        touched: list[Delivery] = []
        patience = Deadline(self._clock, LOOK_S)
        # Nobody else leases meanwhile. What is dying counts, so that it is bounded where its topic takes nothing.
        room = record.max_in_flight - subscription.in_flight - subscription.dying
        subscription.full = room <= 0
        count, max_runs = min(wanted.max_messages, room), self._cursors.max_runs
        round = _Round(subscription, lease, self._late_reads, count, max_runs, wanted.max_bytes, rows_left, patience)
        try:
            for segment in subscription.rotate([segment for segment in segments if segment.id in mine]):
                touched.append(delivery := subscription.cursor(segment.id).delivery)
                while not round.is_full and not (
                    round.found and (patience.is_over or delivery.is_drained(segment.end))
                ):
                    try:
                        taken = await _take(segment, round)
                    except Unavailable:
                        missing.add(segment.id)
                        break
                    if taken is None:
                        break
                    await self._gather(round, segment, delivery, taken)
            _check_connection(subscription, wanted)  # what begins now would be with nobody until its deadline
        except BaseException:
            for delivery in touched:
                delivery.cancel_leases()
            subscription.leases.streams.wake_all()
            raise
        deadline_s = self._clock.monotonic_s() + record.ack_deadline_s
        for delivery in touched:
            delivery.begin_leases(deadline_s)
        if round.frees or (round.found and round.kind != NORMAL):  # what held streams back is gone, or with this one
            subscription.leases.streams.wake_all()
        if not round.found:
            return replace(look, rows_left=max(0, round.rows_left))
        subscription.leases.add(lease)
        return Look(Leased(lease.name, round.found), missing, stale)

    def _is_drained(self, subscription: Subscription) -> bool:
        """Tells whether all that there is was delivered, of segments that are all open at this broker. Most looks come
        right behind the one that gave the last message."""
        opened = subscription.topic.opened
        for number in subscription.frontier.open:
            segment, cursor = opened.get(number), subscription.cursors.get(number)
            if segment is None or segment.closed or cursor is None or not cursor.delivery.is_drained(segment.end):
                return False
        return True

    async def _gather(self, round: _Round, segment: Readable, delivery: Delivery, taken: Sequence[Part]) -> None:
        alive = await self._without_expired(segment, delivery, taken)
        round.found += alive
        round.lease.segments.add(segment.id)
        count = sum(len(one.offsets) for one in alive)
        round.frees |= round.kind != NORMAL and count < sum(len(offsets) for offsets, _ in taken)
        round.count -= count
        round.max_bytes -= sum(rows.nbytes for _, rows in taken)
        if not round.found:
            round.kind = None

    async def _without_expired(self, segment: Readable, delivery: Delivery, taken: Sequence[Part]) -> list[Delivered]:
        """Returns the rows whose time is not over; the others get to nobody, so they count as acked. This broker's
        clock does not decide that alone. During a read, or while others are asked, acks and retention may have moved
        the cursor up."""
        found, time = [], self._readables.time
        now_us = time.own_us()
        if some_are_over := any(expired(rows, now_us) is not None for _, rows in taken):
            now_us = await time.now_us()
        for offsets, rows in _rows_from(taken, delivery.acked_to):
            over = expired(rows, now_us) if some_are_over else None
            if over is not None:
                delivery.settle(offsets[over])
                offsets, rows = offsets[~over], rows.filter(pa.array(~over))
            if len(offsets):
                found.append(Delivered(segment, offsets, delivery.attempts_of(offsets), rows))
        return found


def _check_connection(subscription: Subscription, wanted: Pull) -> None:
    """Raises LeaseEnded where the connection of a stream has left."""
    position = wanted.position
    if position and subscription.leases.streams.has_left(position.connection):
        raise LeaseEnded("the client of the stream has gone", lease=position.lease)


def _check_consumer(subscription: Subscription, position: Position) -> None:
    """Raises LeaseOfAnother where a client goes on with a stream of another consumer, and both have names."""
    leases = subscription.leases
    lease = leases.find(position.lease) if position.resumed and position.consumer != position.stream else None
    if lease and lease.consumer not in map(leases.known_consumer, (position.consumer, position.stream)):
        raise of_another(position.lease, position.consumer)


async def _take(segment: Readable, round: _Round) -> list[Part] | None:
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
        read_to = low + sum(rows.num_rows for _, rows in pieces)
        given = round.due(delivery, read_to)
        if len(given) and given[0] == low:
            round.kind = delivery.kind_of(low)
            delivery.lease(given, lease.number, lease.consumer)
            return list(_rows_at(pieces, given))
        # Leases ended, or an ack failed, during the read: the offsets that became due go first.


async def _read_ahead(segment: Readable, delivery: Delivery, round: _Round) -> None:
    """Reads on, until enough messages are due whose keys are free, or all of the window are known, or the round has
    filtered enough; in any case up to the last lease that was taken over, where keys matter."""
    wanted, is_keyed = round.subscription.record.filter, delivery.rules.mode == "keyed"
    ahead = KEYS_AHEAD
    while (first := delivery.read_to) < (end := min(segment.end, delivery.acked_to + WINDOW)):
        may_stop = not is_keyed or first >= delivery.needed_keys_to
        due = len(round.due(delivery, segment.end)) if may_stop else 0
        if due >= round.count or (due and first >= delivery.delivered_to + KEYS_AHEAD):
            return
        if wanted and may_stop and round.rows_left > 0 and round.patience.is_over:
            round.rows_left = 0  # the next look goes on
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


async def _read_all(segment: Readable, subscription: Subscription, delivery: Delivery, lease: int) -> list[Part]:
    """Reads all that a lease holds of a segment. What ends meanwhile is left out."""
    parts: list[Part] = []
    held = delivery.held_by(lease)
    while len(held):
        low, high = int(held[0]), _end_of_span(held)
        try:
            pieces = await segment.read(low, high - low, PULL_BYTES)
        except BelowRetention as error:
            _retire(subscription, segment.id, int(error.fields["start_offset"]))
            held = delivery.held_by(lease)
            continue
        read_to = low + sum(rows.num_rows for _, rows in pieces)
        still = delivery.held_by(lease)
        parts += _rows_at(pieces, still[(still >= low) & (still < read_to)])
        held = still[still >= read_to]
    return parts


def _retire(subscription: Subscription, segment: int, start: int) -> None:
    """Moves a cursor up over what retention has removed. Raises Unavailable where it stays: it, or the segment's
    record, has just become unreadable."""
    subscription.retire(segment, start)
    if subscription.acked_to(segment) < start:
        raise Unavailable(f"the cursor of segment {segment} cannot be moved up to its start, {start}; try again")


def _behind(turn: Again, one: Delivered) -> Delivered | None:
    """Returns those of some messages that a stream's client does not have."""
    mask = np.isin(one.offsets, turn.behind(one.segment.id, one.offsets))
    if not mask.any():
        return None
    return Delivered(one.segment, one.offsets[mask], one.attempts[mask], one.rows.filter(pa.array(mask)))


def _end_of_span(offsets: Offsets) -> int:
    far = np.flatnonzero(np.diff(offsets) > SPAN_GAP)
    return int(offsets[far[0] if len(far) else -1]) + 1


def _rows_from(parts: Sequence[Part], low: int) -> Iterator[Part]:
    """Yields the parts without the rows below an offset."""
    for offsets, rows in parts:
        first = int(np.searchsorted(offsets, low))
        yield (offsets[first:], rows.slice(first)) if first else (offsets, rows)


def _rows_at(pieces: Pieces, offsets: Offsets) -> Iterator[Part]:
    """Yields the rows at these offsets, which lie in the pieces."""
    for first, rows in pieces:
        here = offsets[np.searchsorted(offsets, first) : np.searchsorted(offsets, first + rows.num_rows)]
        if len(here) == rows.num_rows:
            yield here, rows
        elif len(here):
            yield here, rows.take(pa.array(here - first))

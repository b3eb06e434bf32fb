"""Pulls: one round of the segments that a subscription may read, or rounds until there is something, or the wait ends.

An empty answer says that there was nothing: it comes after the owners of all those segments were asked.

The messages of a pull are one lease, whose name the client chose, or the broker that took the request. The same name
again gives what the lease still holds, with the same attempts and a new deadline; a name whose lease has ended gives
nothing any more. So a pull that is repeated after a lost answer gets the same messages.

In `ordered` a new name, of a consumer that has a name too, says that the consumer holds nothing that it knows of: it
has crashed, and come back. So what it holds comes again first, else what is behind that would overtake it. One that
does know of it, since it prefetches, goes `ahead`; so does a stream, but for its first lease.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa

from seaweedq.broker.context import ClusterView
from seaweedq.broker.log.reader import expired
from seaweedq.broker.read.readable_segments import Readable, ReadableSegments
from seaweedq.broker.subscriptions.cursor_store import CursorStore
from seaweedq.broker.subscriptions.delivery import SegmentDelivery
from seaweedq.broker.subscriptions.leases import ANYBODY, Lease, Position, of_another
from seaweedq.broker.subscriptions.open_subscriptions import OpenSubscriptions
from seaweedq.broker.subscriptions.policy import FILTERED_ROWS, NORMAL
from seaweedq.broker.subscriptions.pull_queue import Waiter
from seaweedq.broker.subscriptions.pull_reads import (
    PULL_BYTES,
    DeliveredRows,
    Part,
    PullRound,
    SlowReads,
    read_all,
    take,
)
from seaweedq.broker.subscriptions.stream_turn import Resend, next_turn
from seaweedq.broker.subscriptions.subscription import Subscription
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.clock import Clock
from seaweedq.concurrency.deadline import Deadline
from seaweedq.errors import LeaseEnded, NotReady, Unavailable

ROUND_S = 1.0  # before a pull answers with what it has
PAUSE_S = 0.2  # before a segment that could not be read is tried again


@dataclass(frozen=True, slots=True)
class Pull:
    """The messages that a client wants: how many at most, for whom, under which lease, and how long it waits for the
    first one. With `ahead` it goes on behind what its consumer holds. A stream names its position instead of a lease.
    Rows of `max_bytes` are enough."""

    max_messages: int = 100
    wait_s: float = 0.0
    consumer: str | None = None
    lease: str | None = None
    ahead: bool = False
    position: Position | None = None
    max_bytes: int = PULL_BYTES


@dataclass(frozen=True, slots=True)
class PullResult:
    """Messages, and the name of the lease that they are under; None where there are no messages."""

    name: str | None = None
    messages: Sequence[DeliveredRows] = ()


def _nothing_hidden() -> None:
    pass


@dataclass(frozen=True, slots=True)
class RoundResult:
    """The result of one round of the segments: what was leased, which segments could not be read, and which have a
    `stale` end: the one that their owner reported last. `check_hidden` raises NeedsNewerBroker where there are more,
    whose records or cursors cannot be read. A stream is `held_back` while it holds too much. `rows_left` may be
    filtered yet; 0: there may be more messages."""

    found: PullResult
    missing: set[int] = field(default_factory=set)
    stale: set[int] = field(default_factory=set)
    check_hidden: Callable[[], None] = _nothing_hidden
    held_back: bool = False
    rows_left: int = FILTERED_ROWS


class Leasing:
    """Leases the messages of subscriptions that are open at this broker. The caller holds `delivering`."""

    def __init__(self, catalog: Catalog, readables: ReadableSegments, cursors: CursorStore, clock: Clock) -> None:
        self._catalog = catalog
        self._readables = readables
        self._cursors = cursors
        self._clock = clock
        self._slow_reads = SlowReads()

    async def round(self, subscription: Subscription, wanted: Pull, rows_left: int = FILTERED_ROWS) -> RoundResult:
        """Leases what is known to exist, and filters so many rows at most. Raises LeaseEnded, LeaseOfAnother, and
        Unavailable where messages of an open lease cannot be read."""
        now_s = self._clock.monotonic_s()
        if wanted.lease and (lease := subscription.leases.known(wanted.lease, wanted.consumer)):
            return RoundResult(PullResult(lease.name, await self._again(subscription, lease, now_s)))
        if wanted.position:
            return await self._next(subscription, wanted, wanted.position, rows_left)
        return await self._lease(subscription, wanted, now_s, rows_left)

    async def _next(self, subscription: Subscription, wanted: Pull, position: Position, rows_left: int) -> RoundResult:
        """Gives a stream what it holds behind its position, one lease at a time, else a new lease. Raises LeaseEnded
        where the connection has left, LeaseOfAnother where it goes on with another consumer's stream."""
        while True:
            now_s = self._clock.monotonic_s()
            _check_connection(subscription, wanted)
            _check_consumer(subscription, position)
            subscription.expire(list(subscription.cursors), now_s)
            turn = next_turn(subscription, position)
            if turn is None:
                return RoundResult(PullResult(), held_back=True)
            if not isinstance(turn, Resend):
                count = min(turn.count, wanted.max_messages)
                asked = replace(wanted, lease=turn.name, max_messages=count, ahead=not turn.is_first)
                return await self._lease(subscription, asked, now_s, rows_left)
            with suppress(LeaseEnded):  # of all that it held the deadline was over, or the acks came, in between
                found = await self._again(subscription, turn.lease, now_s)
                if behind := [part for one in found if (part := _behind(turn, one))]:
                    return RoundResult(PullResult(turn.lease.name, behind))

    async def _again(self, subscription: Subscription, lease: Lease, now_s: float) -> list[DeliveredRows]:
        """Reads what an open lease holds, and gives it a new deadline."""
        found: list[DeliveredRows] = []
        segments, missing = await self._readables.available(subscription.topic, tuple(lease.segments))
        self._extend(subscription, lease, now_s)
        for segment in sorted(segments, key=lambda one: one.id):
            if cursor := subscription.cursors.get(segment.id):
                parts = await read_all(segment, subscription, cursor.delivery, lease.number)
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
            subscription.cursors[segment].delivery.leases.extend(offsets, now_s + subscription.record.ack_deadline_s)

    async def _lease(self, subscription: Subscription, wanted: Pull, now_s: float, rows_left: int) -> RoundResult:
        """Goes round the segments, beginning with another one each time, until there are enough messages, or some after
        ROUND_S: a consumer that waits no longer would never get any. The lease begins when all is read, however long
        that takes."""
        topic, record = subscription.topic, subscription.record
        subscription.expire(subscription.frontier.open, now_s)  # all: who waits is woken when the next one ends
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
        # Nobody else leases meanwhile. What is dying counts, so that it is bounded where its topic takes nothing.
        room = record.max_in_flight - subscription.outstanding
        subscription.full = room <= 0
        count = min(wanted.max_messages, room)
        round = PullRound(subscription, lease, self._slow_reads, count, wanted.max_bytes, rows_left, patience)
        turns = subscription.rotate([segment for segment in segments if segment.id in mine])
        await self._fill(round, wanted, turns, missing)
        deadline_s = self._clock.monotonic_s() + record.ack_deadline_s
        for delivery in round.touched:
            delivery.leases.begin(deadline_s)
        if round.frees or (round.found and round.kind != NORMAL):  # what held streams back is gone, or with this one
            subscription.leases.streams.wake_all()
        if not round.found:
            return replace(result, rows_left=max(0, round.rows_left))
        subscription.leases.add(lease)
        return RoundResult(PullResult(lease.name, round.found), missing, stale)

    async def _fill(self, round: PullRound, wanted: Pull, segments: Iterable[Readable], missing: set[int]) -> None:
        """Takes what is due, a segment after the other, until there is enough; `missing` gets those that could not be
        read. Where it fails, nothing that it took is leased."""
        subscription = round.subscription
        try:
            for segment in segments:
                round.touched.append(delivery := subscription.cursor(segment.id).delivery)
                while not round.is_enough(delivery, segment.end):
                    try:
                        taken = await take(segment, round)
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
            _check_connection(subscription, wanted)  # what begins now would be with nobody until its deadline
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
            if segment is None or segment.closed or cursor is None or not cursor.delivery.is_drained(segment.end):
                return False
        return True

    async def _without_expired(
        self, segment: Readable, delivery: SegmentDelivery, taken: Sequence[Part]
    ) -> list[DeliveredRows]:
        """Returns the rows whose time is not over; the others get to nobody, so they count as acked. This broker's
        clock does not decide that alone. During a read, or while others are asked, acks and retention may have moved
        the cursor up."""
        found, time = [], self._readables.time
        now_us, some_are_over = time.own_us(), False
        for _, rows in taken:
            some_are_over = some_are_over or expired(rows, now_us) is not None
        if some_are_over:
            now_us = await time.now_us()
        low = delivery.window.acked_to
        for offsets, rows in taken:
            if first := int(np.searchsorted(offsets, low)):
                offsets, rows = offsets[first:], rows.slice(first)
            over = expired(rows, now_us) if some_are_over else None
            if over is not None:
                delivery.window.settle(offsets[over])
                offsets, rows = offsets[~over], rows.filter(pa.array(~over))
            if len(offsets):
                found.append(DeliveredRows(segment, offsets, delivery.window.of("attempts", offsets), rows))
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


def _behind(turn: Resend, one: DeliveredRows) -> DeliveredRows | None:
    """Returns those of some messages that a stream's client does not have."""
    mask = np.isin(one.offsets, turn.behind(one.segment.id, one.offsets))
    if not mask.any():
        return None
    return DeliveredRows(one.segment, one.offsets[mask], one.attempts[mask], one.rows.filter(pa.array(mask)))


class Pulling:
    """The pulls of the subscriptions that are open here. One insists for `timeout_s` on segments that cannot be
    read."""

    def __init__(
        self,
        view: ClusterView,
        opened: OpenSubscriptions,
        leasing: Leasing,
        readables: ReadableSegments,
        timeout_s: float,
    ) -> None:
        self._catalog = view.catalog
        self._clock = view.clock
        self._opened = opened
        self._leasing = leasing
        self._readables = readables
        self._timeout_s = timeout_s
        self._closing = False  # pulls do not wait any more

    def close(self) -> None:
        """Lets no pull wait any more."""
        self._closing = True
        for subscription in self._opened.all():
            subscription.queue.wake_all()
            subscription.leases.streams.wake_all()

    async def pull_now(self, topic: Topic, name: str, wanted: Pull) -> PullResult:
        """Leases up to `max_messages` of those that are known to exist. Raises LeaseEnded."""
        return (await self.round(topic, name, wanted)).found

    async def pull(self, topic: Topic, name: str, wanted: Pull) -> PullResult:
        """Leases up to `max_messages`, and waits up to `wait_s` for the first one. An empty answer means that there was
        none: the owners of all segments that the subscription may read were asked. Raises LeaseEnded, Unavailable where
        some did not answer, NeedsNewerBroker where the records or cursors of some cannot be read."""
        poll = Deadline(self._clock, wanted.wait_s)
        deadline = Deadline(self._clock, max(wanted.wait_s, self._timeout_s))
        found, is_first = None, True
        while found is None:
            subscription = await self._opened.open(topic, name)
            if wanted.position and not is_first:  # a round has found that it is held back
                await self._until_free(subscription, wanted.position, poll)
            is_first = False
            consumer = subscription.leases.consumer(wanted.consumer or ANYBODY)
            where = wanted.position.connection if wanted.position else wanted.lease
            with subscription.waiting(consumer, where) as waiter:
                found = await self._wait(subscription, wanted, (poll, deadline), waiter)
                waiter.fed = found is not None and bool(found.messages)
        return found

    async def _wait(
        self, subscription: Subscription, wanted: Pull, until: tuple[Deadline, Deadline], waiter: Waiter
    ) -> PullResult | None:
        """As `pull`. Returns None where the subscription was closed, and is open here again, with another room; or
        where a stream is held back, which must not keep the turn of others."""
        topic, name, (poll, deadline) = subscription.topic, subscription.name, until
        asked: set[int] = set()
        unsure: set[int] = set()
        async for attempt in deadline.attempts(waiter):
            result = await self.round(topic, name, wanted)
            if result.found.messages:
                return result.found
            if self._closing and not poll.is_over:  # there may be messages yet, at another broker
                raise NotReady("the broker is stopping; pull again")
            if (subscription.closed or result.held_back) and not poll.is_over:
                return None
            unsure = result.missing | (result.stale - asked)
            if unsure:
                if attempt.has_changed and not poll.is_over:
                    continue
                refreshing = self._readables.refresh(topic, unsure)
                asked |= await (refreshing if poll.is_over else waiter.beside(refreshing)) or set()
                unsure = result.missing | (result.stale - asked)
                if attempt.has_changed:
                    continue
            if poll.is_over and not unsure:
                result.check_hidden()
                return result.found
            if unsure and not poll.is_over:
                subscription.queue.arm(PAUSE_S)  # the first one who waits looks, for all
            attempt.pause_s = PAUSE_S if poll.is_over else poll.left_s if result.rows_left else 0.0
        if unsure:
            numbers = sorted(unsure)[:10]
            raise Unavailable(
                f"segments {numbers} of topic {topic.name!r} could not be read within {deadline.time_s:g} s; try again",
                segments=numbers,
            )
        return await self.pull_now(topic, name, wanted)  # the last refresh reported new messages

    async def _until_free(self, subscription: Subscription, position: Position, poll: Deadline) -> None:
        """Waits while a stream is held back: it holds too much. It stands in no queue, in which it would take turns
        for nothing. Each change that may free it wakes it (`Streams.wake_all`, `free`), and so does the next deadline.
        Raises NotOwner, LeaseEnded, NotReady."""
        streams = subscription.leases.streams
        while not poll.is_over and not self._closing:
            subscription.check()
            now_s = self._clock.monotonic_s()
            subscription.expire(list(subscription.cursors), now_s)
            if streams.has_left(position.connection) or next_turn(subscription, position) is not None:
                return
            left_s = [deadline_s - now_s for deadline_s in subscription.deadlines()]
            await streams.of(position.stream).freed.wait(max(0.001, min([poll.left_s, *left_s])))

    async def round(self, topic: Topic, name: str, wanted: Pull) -> RoundResult:
        """Looks once at all segments that the subscription may read."""
        subscription = await self._opened.open_for_use(topic, name)
        async with subscription.delivering:
            subscription.check()
            shares = subscription.shares.changes
            await self._advance(topic, subscription)
            result = await self._leasing.round(subscription, wanted)
            while not result.found.messages and subscription.has_ended(self._catalog.records(topic)):
                await self._advance(topic, subscription)  # all messages that were left had expired
                if not result.rows_left:
                    break
                result = await self._leasing.round(subscription, wanted, result.rows_left)
            if subscription.shares.changes != shares:
                subscription.queue.event()
            if result.found.name is not None:
                subscription.queue.rearm(result.found.name)
            subscription.arm(self._clock.monotonic_s())
            return result

    async def _advance(self, topic: Topic, subscription: Subscription) -> None:
        """Takes in what has changed of the topic's segments, and cursors that can be read by now."""
        if subscription.unreadable:
            await self._opened.reread(subscription)
        is_hidden = subscription.is_hidden(self._catalog.unreadable_of(topic))
        if not is_hidden or not subscription.advance(self._catalog.records(topic)):
            await self._catalog.reread(topic)
            subscription.reset_frontier(self._catalog.records(topic), self._catalog.unreadable_of(topic))

"""The dispatcher of subscriptions: delivers messages, takes acks, and hands a subscription over to another broker.

To open a subscription is to take it over (broker/subscriptions/assignment) and then to read its cursors. Its frontier
(broker/subscriptions/frontier) says which segments it reads: done ones no more, those with unacked predecessors not
yet. An ack is a frame in the journal. A checkpoint (broker/subscriptions/cursor_store) comes before the release of
those frames, and is written every `checkpoint_s` for what has changed. A crash in between leaves the frames, which
recovery replays.

Order of a handover: 1. no more leases and acks, waiting requests are redirected; 2. the acks under way become durable;
3. a checkpoint of everything, leases too, so that no message is delivered twice; 4. the record names no dispatcher; 5.
this broker forgets it. A crash before 4 is the death of a dispatcher whose journal holds nothing of this subscription;
a crash after 4 has no effect.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from weakref import WeakValueDictionary

import msgspec
import numpy as np
import pyarrow as pa

from seaweedq.broker.log.group_commit import GroupCommit
from seaweedq.broker.log.intervals import Offsets, runs_of
from seaweedq.broker.log.reader import Pieces, expired
from seaweedq.broker.read.remote_reader import ReadableSegments
from seaweedq.broker.read.segment_reader import Readable
from seaweedq.broker.subscriptions.assignment import Assignment
from seaweedq.broker.subscriptions.cursor_store import CursorStore
from seaweedq.broker.subscriptions.delivery import AckResult, Delivery
from seaweedq.broker.subscriptions.subscription import Acks, SegmentCursor, Subscription
from seaweedq.broker.subscriptions.window import Array
from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.topics.cluster_view import ClusterView
from seaweedq.concurrency.deadline import Deadline
from seaweedq.errors import BelowRetention, NeedsNewerBroker, NotOwner, NotReady, Unavailable
from seaweedq.failpoints import reach
from seaweedq.segments.frames import Frame, FrameKind

PULL_BYTES = 8 * 1024 * 1024
SPAN_GAP = 4096  # acked rows between two due ones that are rather skipped than read
LOOK_S = 1.0  # before a pull answers with what it has
PAUSE_S = 0.2  # before a segment that could not be read is tried again
REREAD_S = 1.0  # between two looks at cursors that could not be read
ANYBODY = ""  # pulls without a consumer count as one


Part = tuple[Offsets, pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class Delivered:
    """Messages of one segment that a pull returns: rows of one schema, their offsets, and how often each was delivered,
    this time included."""

    segment: Readable
    offsets: Offsets
    attempts: Array
    rows: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Wanted:
    """The messages that a consumer may still get of a segment: their number, about their bytes, and `max_runs` of the
    cursor."""

    consumer: str
    count: int
    max_bytes: int
    max_runs: int

    def of(self, delivery: Delivery, end: int) -> Offsets:
        """Returns the offsets below `end` that are due."""
        return delivery.available(self.consumer, end, self.count, self.max_runs)


def _nothing_hidden() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Look:
    """The outcome of one look at the segments: what was leased, which segments could not be read, and which have a
    `stale` end: the one that their owner reported last. `check_hidden` raises NeedsNewerBroker where there are more,
    whose records or cursors cannot be read."""

    found: list[Delivered]
    missing: set[int]
    stale: set[int]
    check_hidden: Callable[[], None] = _nothing_hidden


class Dispatcher:
    """The subscriptions that this broker dispatches. A pull insists for `timeout_s` on segments that cannot be read."""

    def __init__(
        self,
        view: ClusterView,
        assignment: Assignment,
        cursors: CursorStore,
        readables: ReadableSegments,
        commit: GroupCommit,
        timeout_s: float,
    ) -> None:
        self._catalog = view.catalog
        self._assignment = assignment
        self._cursors = cursors
        self._readables = readables
        self._commit = commit
        self._clock = view.clock
        self._timeout_s = timeout_s
        self._closing = False  # pulls do not wait any more
        self._subscriptions: dict[tuple[Topic, str], Subscription] = {}
        self._changing: WeakValueDictionary[tuple[Topic, str], asyncio.Lock] = WeakValueDictionary()

    @property
    def pin(self) -> int | None:
        """The oldest commit that must stay because of acks that no checkpoint has."""
        return min((s.pin for s in self._subscriptions.values() if s.pin is not None), default=None)

    def names(self) -> list[tuple[Topic, str]]:
        """Returns the subscriptions that are open here."""
        return list(self._subscriptions)

    def subscriptions(self) -> Collection[Subscription]:
        """Returns the subscriptions that are open here."""
        return self._subscriptions.values()

    def has(self, topic: Topic, name: str) -> bool:
        """Whether a subscription is open here, and is not being handed over."""
        found = self._subscriptions.get((topic, name))
        return found is not None and found.closed is None

    def changing(self, topic: Topic, name: str) -> AbstractAsyncContextManager[None]:
        """Returns the lock for creating, opening, handing over and removing a subscription."""
        lock = self._changing.get((topic, name))
        if lock is None:
            lock = self._changing[topic, name] = asyncio.Lock()
        return lock

    async def open(self, topic: Topic, name: str) -> Subscription:
        """Returns the subscription, which is taken over where it was not open. Raises SubscriptionNotFound,
        TopicBeingDeleted, and NotOwner where another broker has it."""
        found = self._subscriptions.get((topic, name))
        if found is None:
            async with self.changing(topic, name):
                found = self._subscriptions.get((topic, name)) or await self._open(topic, name)
        found.check()
        return found

    def close(self) -> None:
        """Lets no pull wait any more. The caller wakes the topics."""
        self._closing = True

    def forget(self, topic: Topic, name: str | None = None) -> None:
        """Closes a subscription, or all of a topic, that was deleted or is another broker's."""
        for key in [k for k in self._subscriptions if k[0] is topic and name in (None, k[1])]:
            self._subscriptions.pop(key).closed = NotOwner(
                f"subscription {key[1]!r} is no longer dispatched by this broker"
            )
        if not any(key[0] is topic for key in self._subscriptions):
            self._readables.forget(topic)
        topic.signal.wake()

    async def hand_over(self, topic: Topic, name: str) -> None:
        """Hands a subscription over. Raises Unavailable: then this broker still dispatches it, or has forgotten it."""
        async with self.changing(topic, name):
            subscription = self._subscriptions.get((topic, name))
            if subscription is None:
                return
            subscription.closed = NotOwner(f"subscription {name!r} is being handed to another broker")
            topic.signal.wake()
            try:
                async with subscription.delivering:
                    await self._commit.quiet()
                    saved = await self._cursors.save(subscription, self._clock.monotonic_s())
            except BaseException:
                subscription.closed = None
                raise
            try:
                if saved:
                    await self._assignment.release(topic, name, subscription.held)
            finally:
                self.forget(topic, name)

    async def look(self, topic: Topic, name: str, consumer: str | None, max_messages: int) -> list[Delivered]:
        """Leases up to `max_messages` of those that are known to exist."""
        return (await self._round(topic, name, consumer or ANYBODY, max_messages)).found

    async def pull(
        self, topic: Topic, name: str, consumer: str | None, max_messages: int, wait_s: float
    ) -> list[Delivered]:
        """Leases up to `max_messages`, and waits up to `wait_s` for the first one. An empty answer means that there was
        none: the owners of all segments that the subscription may read were asked. Raises Unavailable where some did
        not answer, NeedsNewerBroker where the records or cursors of some cannot be read."""
        poll = Deadline(self._clock, wait_s)
        deadline = Deadline(self._clock, max(wait_s, self._timeout_s))
        asked: set[int] = set()
        unsure: set[int] = set()
        async for attempt in deadline.attempts(topic.signal):
            look = await self._round(topic, name, consumer or ANYBODY, max_messages)
            if look.found:
                return look.found
            if self._closing and not poll.is_over:  # there may be messages yet, at another broker
                raise NotReady("the broker is stopping; pull again")
            unsure = look.missing | (look.stale - asked)
            if unsure:
                asked |= await self._readables.refresh(topic, unsure)
                unsure = look.missing | (look.stale - asked)
                if attempt.has_changed:
                    continue
            if poll.is_over and not unsure:
                look.check_hidden()
                return []
            attempt.pause_s = self._pause_s(topic, name, PAUSE_S if unsure else poll.left_s)
        if unsure:
            numbers = sorted(unsure)[:10]
            raise Unavailable(
                f"segments {numbers} of topic {topic.name!r} could not be read within {deadline.time_s:g} s; try again",
                segments=numbers,
            )
        return await self.look(topic, name, consumer, max_messages)  # the last refresh reported new messages

    async def ack(
        self, topic: Topic, name: str, offsets: dict[int, list[int]], consumer: str | None
    ) -> dict[int, AckResult]:
        """Acks offsets by segment, and returns when they are durable. Raises JournalUnavailable, NotReady,
        NeedsNewerBroker."""
        subscription = await self.open(topic, name)
        subscription.check_readable(offsets)
        now_s = self._clock.monotonic_s()
        judged: dict[int, AckResult] = {}
        durable: list[asyncio.Future[int]] = []
        for segment, wanted in offsets.items():
            cursor = subscription.cursors.get(segment)
            if cursor is None:
                judged[segment] = subscription.judge_done(self._catalog.records(topic).get(segment), segment, wanted)
                continue
            cursor.delivery.expire(now_s)
            judged[segment] = result = cursor.delivery.judge(wanted, consumer)
            if len(result.taken):
                durable.append(self._begin_ack(subscription, segment, cursor, result.taken))
        if durable:
            await asyncio.gather(*map(asyncio.shield, durable))
            self._commit.check_lease()
        return judged

    def _begin_ack(
        self, subscription: Subscription, segment: int, cursor: SegmentCursor, taken: Offsets
    ) -> asyncio.Future[int]:
        """Journals acks. They count, and pin their commit, once the journal has them, and before it can be released
        (broker/log/group_commit)."""
        cursor.delivery.begin_ack(taken)

        def end(commit: asyncio.Future[int]) -> None:
            is_durable = not commit.cancelled() and commit.exception() is None
            cursor.delivery.end_ack(taken, is_durable)
            if is_durable:
                cursor.pin_at(commit.result())
            subscription.topic.signal.wake()  # perhaps it is another consumer's turn now, or the window has room again

        commit = self._commit.append_frame(self._frame(subscription, segment, taken))
        commit.add_done_callback(end)
        return commit

    async def checkpoint(self) -> None:
        """Writes the cursors that have changed, and releases the commits that held their acks."""
        for (topic, name), subscription in list(self._subscriptions.items()):
            try:
                await self._reread(subscription)
                saved = await self._cursors.save(subscription)
                subscription.blocked = None
            except NeedsNewerBroker as error:
                subscription.blocked = error  # what it has acked pins the journal until it can be written
                continue
            if not saved and self._subscriptions.get((topic, name)) is subscription:
                self.forget(topic, name)

    async def _reread(self, subscription: Subscription) -> None:
        """Reads the cursors again that could not be read, now and then."""
        now_s = self._clock.monotonic_s()
        if subscription.unreadable and now_s >= subscription.reread_s:
            subscription.reread_s = now_s + REREAD_S
            await self._cursors.reread(subscription, now_s)

    async def _round(self, topic: Topic, name: str, consumer: str, max_messages: int) -> Look:
        """Looks once at all segments that the subscription may read."""
        subscription = await self.open(topic, name)
        async with subscription.delivering:
            subscription.check()
            look = await self._lease(topic, subscription, consumer, max_messages)
            while not look.found and subscription.has_ended(self._catalog.records(topic)):
                look = await self._lease(
                    topic, subscription, consumer, max_messages
                )  # all messages that were left had expired
            return look

    def _pause_s(self, topic: Topic, name: str, longest_s: float) -> float:
        """Returns the seconds until the next lease ends, at most `longest_s`."""
        subscription = self._subscriptions.get((topic, name))
        now_s = self._clock.monotonic_s()
        left_s = (deadline_s - now_s for deadline_s in (subscription.deadlines() if subscription else ()))
        return max(0.001, min([longest_s, *left_s]))

    async def _lease(self, topic: Topic, subscription: Subscription, consumer: str, wanted: int) -> Look:
        """Goes round the segments, beginning with another one each time, until there are enough messages, or some after
        LOOK_S: a consumer that waits no longer would never get any. The leases begin when all is read, however long
        that takes."""
        if subscription.unreadable:
            await self._reread(subscription)
        is_hidden = subscription.is_hidden(self._catalog.unreadable_of(topic))
        if not is_hidden or not subscription.advance(self._catalog.records(topic)):
            await self._catalog.reread(topic)
            subscription.reset_frontier(self._catalog.records(topic), self._catalog.unreadable_of(topic))
        now_s = self._clock.monotonic_s()
        found: list[Delivered] = []
        leased: list[Delivery] = []
        left_bytes = PULL_BYTES
        patience = Deadline(self._clock, LOOK_S)
        segments, missing = await self._readables.of(topic, tuple(subscription.frontier.open))
        try:
            for segment in subscription.rotate(segments):
                delivery = subscription.cursor(segment.id).delivery
                delivery.expire(now_s)
                leased.append(delivery)
                while wanted > 0 and left_bytes > 0 and not (found and patience.is_over):
                    try:
                        limit = Wanted(consumer, wanted, left_bytes, self._cursors.max_runs)
                        taken = await _take(segment, subscription, limit)
                    except Unavailable:
                        missing.add(segment.id)
                        break
                    if taken is None:
                        break
                    alive = self._without_expired(segment, delivery, taken)
                    found += alive
                    wanted -= sum(len(one.offsets) for one in alive)
                    left_bytes -= sum(rows.nbytes for _, rows in taken)
        except BaseException:
            for delivery in leased:
                delivery.cancel_leases()
            raise
        deadline_s = self._clock.monotonic_s() + subscription.record.ack_deadline_s
        for delivery in leased:
            delivery.begin_leases(deadline_s)
        stale = {segment.id for segment in segments if not segment.certain}
        return Look(found, missing, stale, partial(subscription.check_readable, subscription.frontier.hidden))

    def _without_expired(self, segment: Readable, delivery: Delivery, taken: Sequence[Part]) -> list[Delivered]:
        """Returns the rows whose time is not over; the others get to nobody, so they count as acked."""
        found, now_us = [], self._clock.now_us()
        for offsets, rows in taken:
            over = expired(rows, now_us)
            if over is not None:
                delivery.settle(offsets[over])
                offsets, rows = offsets[~over], rows.filter(pa.array(~over))
            if len(offsets):
                found.append(Delivered(segment, offsets, delivery.attempts_of(offsets), rows))
        return found

    def _frame(self, subscription: Subscription, segment: int, taken: Offsets) -> Frame:
        topic = subscription.topic
        acks = Acks(subscription.name, topic.record.incarnation, subscription.record.epoch, tuple(runs_of(taken)))
        payload = msgspec.msgpack.encode(acks)
        return Frame(FrameKind.ACKS, topic.name, segment, 0, 0, 0, 0, (), self._clock.now_us(), payload)

    async def _open(self, topic: Topic, name: str) -> Subscription:
        held = await self._assignment.take(topic, name)
        reach("dispatch.epoch")
        cursors, unreadable = await self._cursors.read(topic, name, held.record.epoch, self._clock.monotonic_s())
        await self._catalog.reread(topic)
        self._catalog.check(topic)
        records = self._catalog.records(topic)
        subscription = Subscription(topic, name, held, cursors, records, unreadable)
        self._subscriptions[topic, name] = subscription
        return subscription


async def _take(segment: Readable, subscription: Subscription, wanted: Wanted) -> list[Part] | None:
    """Reads and leases the next messages, with one read for all that lie close together. Returns None where there are
    none. Raises Unavailable."""
    delivery = subscription.cursor(segment.id).delivery
    while len(due := wanted.of(delivery, segment.end)):
        low, high = int(due[0]), _end_of_span(due)
        try:
            pieces = await segment.read(low, high - low, wanted.max_bytes)
        except BelowRetention as error:
            subscription.retire(segment.id, int(error.fields["start_offset"]))
            continue
        read_to = low + sum(rows.num_rows for _, rows in pieces)
        given = wanted.of(delivery, read_to)
        if len(given) and given[0] == low:
            delivery.lease(given, wanted.consumer)
            return list(_rows_at(pieces, given))
        # Leases ended, or an ack failed, during the read: the offsets that became due go first.
    return None


def _end_of_span(offsets: Offsets) -> int:
    far = np.flatnonzero(np.diff(offsets) > SPAN_GAP)
    return int(offsets[far[0] if len(far) else -1]) + 1


def _rows_at(pieces: Pieces, offsets: Offsets) -> Iterator[Part]:
    """Yields the rows at these offsets, which lie in the pieces."""
    for first, rows in pieces:
        here = offsets[np.searchsorted(offsets, first) : np.searchsorted(offsets, first + rows.num_rows)]
        if len(here) == rows.num_rows:
            yield here, rows
        elif len(here):
            yield here, rows.take(pa.array(here - first))

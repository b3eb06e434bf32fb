"""The dispatcher of subscriptions: delivers messages, takes acks, and hands a subscription over to another broker.

To open a subscription is to take it over (cursors/assignment) and then to read its cursors. Its frontier
(cursors/frontier) says which segments it reads: done ones no more, those with unacked predecessors not
yet. An ack is a frame in the journal. A checkpoint (cursors/cursor_store) comes before the release of
those frames, and is written every `checkpoint_s` for what has changed. A crash in between leaves the frames, which
recovery replays.

Order of a handover: 0. dead letters on their way become durable, and are acked; 1. no more leases and acks, waiting
requests are redirected; 2. the acks under way become durable;
3. a checkpoint of everything, leases too, so that no message is delivered twice; 4. the record names no dispatcher; 5.
this broker forgets it. A crash before 4 is the death of a dispatcher whose journal holds nothing of this subscription;
a crash after 4 has no effect.

Order of a seek, which begins a new epoch: 1. to 3. as above, but leases end: all acks of the old epoch are in cursors,
so those of segments that stay are kept; 4. the record says the epoch and the plan; from here on the seek has happened;
5. the cursors of the epoch are written, and then the record without the plan; 6. the subscription is opened anew. A
crash behind 4 leaves 5 to the next dispatcher, before it opens the subscription.
"""

import asyncio
from collections.abc import Collection
from contextlib import AbstractAsyncContextManager, suppress
from weakref import WeakValueDictionary

from msgspec.structs import replace

from seaweedq.broker.log.group_commit import GroupCommit
from seaweedq.broker.log.intervals import Offsets
from seaweedq.broker.read.remote_reader import ReadableSegments
from seaweedq.broker.subscriptions.consumers.leases import ANYBODY, Leases
from seaweedq.broker.subscriptions.consumers.stream_leases import Position
from seaweedq.broker.subscriptions.consumers.waiting import Place, Room
from seaweedq.broker.subscriptions.cursors.assignment import Assignment
from seaweedq.broker.subscriptions.cursors.cursor_store import CursorStore, TakeOver
from seaweedq.broker.subscriptions.cursors.subscription import Subscription
from seaweedq.broker.subscriptions.dispatch.answering import Answered, Answering, Refusal, Selection
from seaweedq.broker.subscriptions.dispatch.expiry_times import note_every_s
from seaweedq.broker.subscriptions.dispatch.leasing import Leased, Leasing, Look, Pull
from seaweedq.broker.subscriptions.dispatch.stream_turn import next_turn
from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.topics.cluster_view import ClusterView
from seaweedq.concurrency.deadline import Deadline
from seaweedq.concurrency.signal import Signal
from seaweedq.coordination.records import SeekRecord, SubscriptionRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import NeedsNewerBroker, NotOwner, NotReady, Unavailable
from seaweedq.failpoints import reach

PAUSE_S = 0.2  # before a segment that could not be read is tried again
SEEK_NAMES = 16  # of the last seeks that are remembered
HELD_BACK_S = 1.0  # between two looks of a stream that holds too much: what no ack says, retention for one
REREAD_S = 1.0  # between two looks at cursors that could not be read


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
        self._leasing = Leasing(view.catalog, readables, cursors, view.clock)
        self._answering = Answering(view.catalog, readables, commit, view.clock)
        self._timeout_s = timeout_s
        self.dying = Signal()  # something may have died
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
        """Lets no pull wait any more."""
        self._closing = True
        for subscription in self._subscriptions.values():
            subscription.room.wake_all()

    def forget(self, topic: Topic, name: str | None = None) -> None:
        """Closes a subscription, or all of a topic, that was deleted or is another broker's."""
        for key in [k for k in self._subscriptions if k[0] is topic and name in (None, k[1])]:
            self._subscriptions.pop(key).close(f"subscription {key[1]!r} is no longer dispatched by this broker")
        if not any(key[0] is topic for key in self._subscriptions):
            self._readables.forget(topic)

    def used(self, record: SubscriptionRecord) -> SubscriptionRecord:
        """Returns a record with the time of a use, as it is changed now."""
        return replace(record, used_us=self._clock.now_us() if record.expires_after_s else 0)

    async def hand_over(self, topic: Topic, name: str) -> None:
        """Hands a subscription over. Raises Unavailable: then this broker still dispatches it, or has forgotten it."""
        async with self.changing(topic, name):
            subscription = self._subscriptions.get((topic, name))
            if subscription is None:
                return
            why = f"subscription {name!r} is being handed to another broker"
            saved = await self._write_all(subscription, why, self._clock.monotonic_s())
            try:
                if saved:
                    await self._assignment.release(topic, name, subscription.held)
            finally:
                self.forget(topic, name)

    async def seek(self, topic: Topic, name: str, key: str, plan: str) -> tuple[Subscription, Subscription]:
        """Begins a new epoch as a plan says (coordination/seek_plan), unless the seek of this name has. Returns the
        subscription as it was, which is closed, and as it is. Raises NotOwner where it was changed meanwhile: then try
        again."""
        async with self.changing(topic, name):
            before = self._subscriptions.get((topic, name)) or await self._open(topic, name)
            before.check()
            if before.sought_as(key):
                return before, before
            before.check_readable(before.frontier.hidden | before.unreadable)
            if not await self._write_all(before, f"subscription {name!r} is just being sought; try again"):
                self.forget(topic, name)
                raise NotOwner(f"subscription {name!r} is no longer dispatched by this broker")
            new = before.held.with_record(self.used(_sought(before.record, key, plan)).in_its_form())
            try:
                reach("seek.begin")
                held = await self._assignment.claim(topic, name, new, before.held)
                reach("seek.begun")
            finally:
                # Where the outcome is unknown, the record tells it when the subscription is opened again.
                self._subscriptions.pop((topic, name), None)
            after = await self._opened(topic, name, held)
            after.tenure = before.tenure
            return before, after

    async def _write_all(self, subscription: Subscription, why: str, handover_s: float | None = None) -> bool:
        """Closes a subscription, and writes a checkpoint of everything. Returns False where another broker dispatches
        by now. Where it fails the subscription is open again."""
        async with subscription.burying:
            subscription.close(why)
        try:
            async with subscription.delivering:
                await self._commit.quiet()
                return await self._cursors.save(subscription, handover_s, is_last=True)
        except BaseException:
            subscription.closed = None
            raise

    async def look(self, topic: Topic, name: str, wanted: Pull) -> Leased:
        """Leases up to `max_messages` of those that are known to exist. Raises LeaseEnded."""
        return (await self._round(topic, name, wanted)).found

    async def pull(self, topic: Topic, name: str, wanted: Pull) -> Leased:
        """Leases up to `max_messages`, and waits up to `wait_s` for the first one. An empty answer means that there was
        none: the owners of all segments that the subscription may read were asked. Raises LeaseEnded, Unavailable where
        some did not answer, NeedsNewerBroker where the records or cursors of some cannot be read."""
        poll = Deadline(self._clock, wanted.wait_s)
        deadline = Deadline(self._clock, max(wanted.wait_s, self._timeout_s))
        found = None
        while found is None:
            subscription = await self.open(topic, name)
            if wanted.position:
                await self._until_free(subscription, wanted.position, poll)
            consumer = subscription.leases.consumer(wanted.consumer or ANYBODY)
            where = wanted.position.connection if wanted.position else wanted.lease
            with subscription.waiting(consumer, where) as place:
                found = await self._wait(subscription, wanted, (poll, deadline), place)
                place.fed = found is not None and bool(found.messages)
        return found

    async def _wait(
        self, subscription: Subscription, wanted: Pull, until: tuple[Deadline, Deadline], place: Place
    ) -> Leased | None:
        """As `pull`. Returns None where the subscription was closed, and is open here again, with another room; or
        where a stream is held back, which must not keep the turn of others."""
        topic, name, (poll, deadline) = subscription.topic, subscription.name, until
        asked: set[int] = set()
        unsure: set[int] = set()
        async for attempt in deadline.attempts(place):
            look = await self._round(topic, name, wanted)
            if look.found.messages:
                return look.found
            if self._closing and not poll.is_over:  # there may be messages yet, at another broker
                raise NotReady("the broker is stopping; pull again")
            if (subscription.closed or look.held_back) and not poll.is_over:
                return None
            unsure = look.missing | (look.stale - asked)
            if unsure:
                if attempt.has_changed and not poll.is_over:
                    continue
                refreshing = self._readables.refresh(topic, unsure)
                asked |= await (refreshing if poll.is_over else place.beside(refreshing)) or set()
                unsure = look.missing | (look.stale - asked)
                if attempt.has_changed:
                    continue
            if poll.is_over and not unsure:
                look.check_hidden()
                return look.found
            if unsure and not poll.is_over:
                subscription.room.arm(PAUSE_S)  # the first one who waits looks, for all
            attempt.pause_s = PAUSE_S if poll.is_over else poll.left_s if look.rows_left else 0.0
        if unsure:
            numbers = sorted(unsure)[:10]
            raise Unavailable(
                f"segments {numbers} of topic {topic.name!r} could not be read within {deadline.time_s:g} s; try again",
                segments=numbers,
            )
        return await self.look(topic, name, wanted)  # the last refresh reported new messages

    async def _until_free(self, subscription: Subscription, position: Position, poll: Deadline) -> None:
        """Waits while a stream is held back: it holds too much. It stands in no queue, in which it would take turns
        for nothing. Raises NotOwner, LeaseEnded, NotReady."""
        streams = subscription.leases.streams
        while not poll.is_over and not self._closing:
            subscription.check()
            now_s = self._clock.monotonic_s()
            subscription.expire(list(subscription.cursors), now_s)
            if streams.has_left(position.connection) or next_turn(subscription, position) is not None:
                return
            left_s = [deadline_s - now_s for deadline_s in subscription.deadlines()]
            await streams.of(position.stream).freed.wait(max(0.001, min([poll.left_s, HELD_BACK_S, *left_s])))

    async def ack(self, topic: Topic, name: str, selection: Selection) -> Answered:
        """Acks messages, and returns when they are durable. Raises LeaseEnded, JournalUnavailable, NotReady,
        NeedsNewerBroker."""
        return await self._answering.ack(await self._opened_for_use(topic, name), selection)

    async def nack(self, topic: Topic, name: str, selection: Selection, refusal: Refusal | None = None) -> Answered:
        """Ends leases: the messages are delivered again, by default after the backoff, or become dead letters. Raises
        LeaseEnded, NoDeadLetters, NeedsNewerBroker."""
        answered = self._answering.nack(await self._opened_for_use(topic, name), selection, refusal or Refusal())
        self.dying.wake()
        return answered

    async def bury(self, subscription: Subscription, segment: int, dying: Offsets, epoch: int) -> None:
        """Acks messages whose dead letters are durable, as far as they are still dying in this epoch. The caller holds
        `burying`. Raises NotOwner where this broker does not dispatch them any more, JournalUnavailable, NotReady."""
        subscription.check()
        cursor = subscription.cursors.get(segment)
        if cursor is None or subscription.record.epoch != epoch:
            return
        if len(left := cursor.delivery.deaths.still(dying)):
            await self._answering.bury(subscription, segment, cursor, left)

    async def extend(
        self, topic: Topic, name: str, selection: Selection, ack_deadline_s: float | None = None
    ) -> Answered:
        """Lets leases end so many seconds from now, by default as many as a new lease has. Raises LeaseEnded,
        NeedsNewerBroker."""
        return self._answering.extend(await self._opened_for_use(topic, name), selection, ack_deadline_s)

    async def leave(self, topic: Topic, name: str, position: Position, free: bool) -> None:
        """Has a connection of a stream get nothing any more, and with `free` its stream holds nothing then."""
        subscription = await self.open(topic, name)
        subscription.leases.streams.leave(position.connection, self._clock.monotonic_s())
        if free:
            self._answering.free(subscription, position.stream)
            subscription.turns.leave(subscription.leases.known_consumer(position.consumer))
        subscription.room.look_again(position.connection)  # a pull of it may wait
        subscription.leases.streams.wake_all()

    async def checkpoint(self) -> None:
        """Writes the cursors that have changed, and releases the commits that held their acks."""
        for (topic, name), subscription in list(self._subscriptions.items()):
            try:
                await self._reread(subscription)
                await self._note_if_due(subscription)
                subscription.sweep(self._clock.monotonic_s(), self._catalog.records(topic))
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
            before = len(subscription.unreadable)
            await self._cursors.reread(subscription, now_s)
            if len(subscription.unreadable) < before:
                subscription.room.event()

    async def _opened_for_use(self, topic: Topic, name: str) -> Subscription:
        """As `open`. The first use after a long rest is noted at once (broker/retention/expiry)."""
        subscription = await self.open(topic, name)
        expires_s = subscription.record.expires_after_s
        if expires_s is not None:
            now_s = self._clock.monotonic_s()
            if now_s - subscription.noted_s >= expires_s:
                await self._note_use(subscription, now_s)
                subscription.check()
            subscription.used_s = now_s
        return subscription

    async def _note_use(self, subscription: Subscription, now_s: float) -> None:
        """Raises NotOwner where the subscription is gone, or another broker's."""
        if not await self._cursors.note_use(subscription, self._clock.now_us(), now_s):
            if self._subscriptions.get((subscription.topic, subscription.name)) is subscription:
                self.forget(subscription.topic, subscription.name)
            subscription.check()

    async def _note_if_due(self, subscription: Subscription) -> None:
        expires_s, now_s = subscription.record.expires_after_s, self._clock.monotonic_s()
        if expires_s and subscription.in_flight:  # somebody is at work, perhaps for longer than `expires_after_s`
            subscription.used_s = now_s
        used = expires_s is not None and subscription.used_s > subscription.noted_s
        if expires_s and used and now_s - subscription.noted_s >= note_every_s(expires_s):
            with suppress(NotOwner):
                await self._note_use(subscription, now_s)

    async def _round(self, topic: Topic, name: str, wanted: Pull) -> Look:
        """Looks once at all segments that the subscription may read."""
        subscription = await self._opened_for_use(topic, name)
        async with subscription.delivering:
            subscription.check()
            shares = subscription.turns.changes
            await self._advance(topic, subscription)
            look = await self._leasing.look(subscription, wanted)
            while not look.found.messages and subscription.has_ended(self._catalog.records(topic)):
                await self._advance(topic, subscription)  # all messages that were left had expired
                if not look.rows_left:
                    break
                look = await self._leasing.look(subscription, wanted, look.rows_left)
            if subscription.turns.changes != shares:
                subscription.room.event()
            if look.found.name is not None:
                subscription.room.look_again(look.found.name)
            subscription.arm(self._clock.monotonic_s())
            return look

    async def _advance(self, topic: Topic, subscription: Subscription) -> None:
        """Takes in what has changed of the topic's segments, and cursors that can be read by now."""
        if subscription.unreadable:
            await self._reread(subscription)
        is_hidden = subscription.is_hidden(self._catalog.unreadable_of(topic))
        if not is_hidden or not subscription.advance(self._catalog.records(topic)):
            await self._catalog.reread(topic)
            subscription.reset_frontier(self._catalog.records(topic), self._catalog.unreadable_of(topic))

    async def _open(self, topic: Topic, name: str) -> Subscription:
        held = await self._assignment.take(topic, name)
        reach("dispatch.epoch")
        subscription = await self._opened(topic, name, held)
        if held.record.epoch > held.record.created_us + 1:  # it was dispatched before
            subscription.any_until_s = self._clock.monotonic_s() + held.record.ack_deadline_s
        return subscription

    async def _opened(self, topic: Topic, name: str, held: Versioned[SubscriptionRecord]) -> Subscription:
        """Opens a subscription of this broker, behind the end of a seek that was cut off."""
        if held.record.is_seeking:
            held = await self._cursors.finish_seek(topic, name, held)
        taken = TakeOver(held.record, Leases(), self._clock.monotonic_s())
        cursors, unreadable = await self._cursors.read(topic, name, taken)
        await self._catalog.reread(topic)
        self._catalog.check(topic)
        records = self._catalog.records(topic)
        subscription = Subscription(topic, name, held, cursors, records, unreadable)
        subscription.leases = taken.leases
        subscription.room = Room(lambda: subscription.sharers(self._clock.monotonic_s()))
        self._subscriptions[topic, name] = subscription
        return subscription


def _sought(record: SubscriptionRecord, key: str, plan: str) -> SubscriptionRecord:
    """Returns the record in the epoch that a seek begins."""
    names = (*(record.seek.ids if record.seek else ()), key)[-SEEK_NAMES:]
    epoch = record.epoch + 1
    return replace(record, epoch=epoch, seek=SeekRecord(epoch, names, plan))

"""The subscriptions that are open at this broker, which dispatches them.

To open a subscription is to take it over (assignment), to end a seek that was cut off, and then to read its cursors.
Its frontier says which segments it reads: done ones no more, those with unacked predecessors not yet.
"""

import asyncio
from collections.abc import Collection
from contextlib import AbstractAsyncContextManager, suppress
from weakref import WeakValueDictionary

from seaweedq.broker.context import ClusterView
from seaweedq.broker.read.readable_segments import ReadableSegments
from seaweedq.broker.subscriptions.assignment import Assignment
from seaweedq.broker.subscriptions.cursor_store import CursorStore, TakeOver
from seaweedq.broker.subscriptions.leases import Leases
from seaweedq.broker.subscriptions.pull_queue import PullQueue
from seaweedq.broker.subscriptions.subscription import Subscription
from seaweedq.broker.topics.catalog import Topic
from seaweedq.coordination.records import SubscriptionRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import NotOwner
from seaweedq.failpoints import reach

NOTE_S = 1_800.0  # between two notes of a use
WATCHED_S = 7_200.0  # for which the leader watches for notes: more than NOTE_S, with all that may delay one
REREAD_S = 1.0  # between two reads of cursors that could not be read


def note_every_s(expires_after_s: float) -> float:
    """Returns how long after a note the next one is due, if there was a use since."""
    return min(expires_after_s / 4, NOTE_S)


class OpenSubscriptions:
    """The table of open subscriptions, by topic and name."""

    def __init__(
        self, view: ClusterView, assignment: Assignment, cursors: CursorStore, readables: ReadableSegments
    ) -> None:
        self._catalog = view.catalog
        self._assignment = assignment
        self._cursors = cursors
        self._readables = readables
        self._clock = view.clock
        self._subscriptions: dict[tuple[Topic, str], Subscription] = {}
        self._changing: WeakValueDictionary[tuple[Topic, str], asyncio.Lock] = WeakValueDictionary()

    def names(self) -> list[tuple[Topic, str]]:
        """Returns the subscriptions that are open here."""
        return list(self._subscriptions)

    def all(self) -> Collection[Subscription]:
        """Returns the subscriptions that are open here."""
        return self._subscriptions.values()

    def find(self, topic: Topic, name: str) -> Subscription | None:
        """Returns a subscription that is open here, also one that is being handed over."""
        return self._subscriptions.get((topic, name))

    def is_here(self, subscription: Subscription) -> bool:
        """Tells whether this very subscription is open here: it was not forgotten, and not opened anew."""
        return self.find(subscription.topic, subscription.name) is subscription

    def has(self, topic: Topic, name: str) -> bool:
        """Tells whether a subscription is open here, and is not being handed over."""
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
                found = await self.take(topic, name)
        found.check()
        return found

    async def take(self, topic: Topic, name: str) -> Subscription:
        """As `open`, for a caller that holds `changing`; one that was closed is returned too."""
        if found := self._subscriptions.get((topic, name)):
            return found
        held = await self._assignment.take(topic, name)
        reach("dispatch.epoch")
        subscription = await self.open_held(topic, name, held)
        if held.record.epoch > held.record.created_us + 1:  # it was dispatched before
            subscription.any_until_s = self._clock.monotonic_s() + held.record.ack_deadline_s
        return subscription

    def forget(self, topic: Topic, name: str | None = None) -> None:
        """Closes a subscription, or all of a topic, that was deleted or is another broker's."""
        for key in [k for k in self._subscriptions if k[0] is topic and name in (None, k[1])]:
            self._subscriptions.pop(key).close(f"subscription {key[1]!r} is no longer dispatched by this broker")
        if not any(key[0] is topic for key in self._subscriptions):
            self._readables.forget(topic)

    def drop(self, topic: Topic, name: str) -> None:
        """Forgets a subscription that is closed: its record tells what it is when it is opened again."""
        self._subscriptions.pop((topic, name), None)

    async def open_for_use(self, topic: Topic, name: str) -> Subscription:
        """As `open`. The first use after a long rest is noted at once (broker/retention/subscription_expiry)."""
        subscription = self._subscriptions.get((topic, name)) or await self.open(topic, name)
        subscription.check()
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
            if self.is_here(subscription):
                self.forget(subscription.topic, subscription.name)
            subscription.check()

    async def note_if_due(self, subscription: Subscription) -> None:
        """Notes in the record that there was a use, if a note is due (expiry_times)."""
        expires_s, now_s = subscription.record.expires_after_s, self._clock.monotonic_s()
        if expires_s and subscription.in_flight:  # somebody is at work, perhaps for longer than `expires_after_s`
            subscription.used_s = now_s
        used = expires_s is not None and subscription.used_s > subscription.noted_s
        if expires_s and used and now_s - subscription.noted_s >= note_every_s(expires_s):
            with suppress(NotOwner):
                await self._note_use(subscription, now_s)

    async def reread(self, subscription: Subscription) -> None:
        """Reads the cursors again that could not be read, now and then."""
        now_s = self._clock.monotonic_s()
        if subscription.unreadable and now_s >= subscription.reread_s:
            subscription.reread_s = now_s + REREAD_S
            before = len(subscription.unreadable)
            await self._cursors.reread(subscription, now_s)
            if len(subscription.unreadable) < before:
                subscription.queue.event()

    async def open_held(self, topic: Topic, name: str, held: Versioned[SubscriptionRecord]) -> Subscription:
        """Opens a subscription that this broker holds, and ends a seek that was cut off before. The caller holds
        `changing`."""
        if held.record.is_seeking:
            held = await self._cursors.finish_seek(topic, name, held)
        taken = TakeOver(held.record, Leases(), self._clock.monotonic_s())
        cursors, unreadable = await self._cursors.read(topic, name, taken)
        await self._catalog.reread(topic)
        self._catalog.check(topic)
        records, hidden = self._catalog.records(topic), self._catalog.unreadable_of(topic)
        cursors = {number: one for number, one in cursors.items() if number in records or number in hidden}
        subscription = Subscription(topic, name, held, cursors, records, unreadable)
        subscription.leases = taken.leases
        subscription.queue = PullQueue(lambda: subscription.sharers(self._clock.monotonic_s()))
        self._subscriptions[topic, name] = subscription
        return subscription

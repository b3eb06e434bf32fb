"""The subscriptions that are open at this broker, which dispatches them, and their cursors in coordination.

To open a subscription is to take it over (assignment), to end a seek that was cut off, and then to read its cursors.
Its frontier says which segments it reads: done ones no more, those with unacked predecessors not yet.

A checkpoint writes the cursors. It compares the subscription's revision, so that only the present dispatcher writes,
and the revision of each cursor, so that a write which arrives late, after its answer was lost, does not overwrite a
newer one. A transaction has at most PAGE_BYTES. Acks pin their commits until a checkpoint with them is known to be
durable. A cursor that would break an invariant is not written: its acks stay in the journal, all other cursors are
written, and the subscription is not handed on. The same holds for a cursor in whose place there is one that cannot be
read.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import NamedTuple, TypeVar
from weakref import WeakValueDictionary

from msgspec.structs import replace

from seaweedq.broker.context import ClusterView
from seaweedq.broker.read.readable_segments import ReadableSegments
from seaweedq.broker.subscriptions.assignment import Assignment, changed_meanwhile, key_of
from seaweedq.broker.subscriptions.cursor import SegmentCursor, broken_by
from seaweedq.broker.subscriptions.leases import Leases
from seaweedq.broker.subscriptions.pull_queue import PullQueue
from seaweedq.broker.subscriptions.subscription import Subscription, rules_of
from seaweedq.broker.topics.catalog import Topic
from seaweedq.checks import InvariantViolated, reach
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Coordination, Entry, Put, read_all
from seaweedq.coordination.packed_forms import cursor_after, unpack_plan
from seaweedq.coordination.records import CursorRecord, SubscriptionRecord
from seaweedq.coordination.versioned import Unreadable, Versioned
from seaweedq.errors import NotOwner, NotReady

PAGE = 60  # cursors a transaction: a write and a comparison each
PAGE_BYTES = 512 * 1024
EndOf = Callable[[Topic, int], int | None]
T = TypeVar("T")
logger = logging.getLogger(__name__)


class TakeOver(NamedTuple):
    """The record as a dispatcher took the subscription over, at a monotonic time, and the leases that it fills."""

    record: SubscriptionRecord
    leases: Leases
    now_s: float

    def cursor(self, segment: int, held: Versioned[CursorRecord]) -> SegmentCursor:
        """Returns a cursor with the leases that the dispatcher before handed over."""
        found = SegmentCursor(held, rules_of(self.record), self.leases)
        found.take_over(segment, self.record.epoch, self.now_s)
        found.delivery.hold_last(self.now_s + self.record.ack_deadline_s)
        return found


class _Change(NamedTuple):
    """A cursor to write, with the newest commit that its record holds."""

    segment: int
    cursor: SegmentCursor
    record: CursorRecord
    newest: int

    @property
    def wanted(self) -> Versioned[CursorRecord]:
        return self.cursor.held.with_record(self.record)


class CursorStore:
    """Reads and writes the cursors of subscriptions. `end_of` gives the end of a segment that is known to be
    sealed."""

    def __init__(self, coordination: Coordination, end_of: EndOf = lambda _topic, _segment: None) -> None:
        self._coordination = coordination
        self._end_of = end_of

    async def read(self, topic: Topic, name: str, taken: TakeOver) -> tuple[dict[int, SegmentCursor], set[int]]:
        """Returns all cursors of a subscription that was taken over, by segment, and the segments whose cursors cannot
        be read."""
        found = {n: keys.CURSORS.read(entry) for n, entry in (await self._entries(topic, name)).items()}
        known = {n: taken.cursor(n, held) for n, held in found.items() if isinstance(held, Versioned)}
        return known, found.keys() - known.keys()

    async def reread(self, subscription: Subscription, now_s: float) -> None:
        """Reads the cursors again that could not be read."""
        for segment in sorted(subscription.unreadable):
            there = await self._coordination.get(self._key(subscription, segment))
            held = keys.CURSORS.read(there) if there else None
            if isinstance(held, Unreadable):
                continue
            subscription.unreadable.discard(segment)
            if cursor := subscription.cursors.get(segment):
                cursor.replaces(held)
            elif held:
                taken = TakeOver(subscription.record, subscription.leases, now_s)
                subscription.cursors[segment] = taken.cursor(segment, held)

    async def save(
        self, subscription: Subscription, handover_s: float | None = None, is_last: bool | None = None
    ) -> bool:
        """Writes the cursors that have changed, and releases the commits that held their acks. Returns False if
        another broker dispatches now.

        With `handover_s` (now, monotonic) the leases are written too. The last checkpoint of a closed subscription, by
        default that of a handover, has all cursors. Raises CoordinationUnavailable; of the last one also
        NeedsNewerBroker, InvariantViolated.
        """
        is_last = handover_s is not None if is_last is None else is_last
        async with subscription.saving:
            if subscription.closed and not is_last:
                return True  # it is closed by a caller that writes the last checkpoint
            if subscription.in_doubt and not await self.is_held(subscription):
                return False
            subscription.forget(subscription.topic.removed)
            while True:
                changed = [
                    _Change(segment, cursor, record, cursor.newest)
                    for segment, cursor in subscription.cursors.items()
                    if (record := cursor.changed(subscription.record.epoch, handover_s, is_last))
                ]
                if is_last:
                    subscription.check_readable(one.segment for one in changed)
                changed = [one for one in changed if one.segment not in subscription.unreadable]
                broken = self._broken(subscription, changed)
                if broken:
                    if not await self.is_held(subscription):  # a loss was accepted: a new epoch begins at what is left
                        return False
                    changed = self._without(subscription, changed, broken, is_last)
                puts = [
                    (one, Put(self._key(subscription, one.segment), keys.CURSORS.encode(one.wanted))) for one in changed
                ]
                pages = pages_of(puts, lambda one: len(one[1].value))
                if not [page for page in pages if not await self._write(subscription, page)]:
                    subscription.forget_done()
                    return True
                if not await self.is_held(subscription):
                    return False
                await self._refresh(subscription)

    def _broken(self, subscription: Subscription, changed: Sequence[_Change]) -> dict[int, list[str]]:
        """Returns the invariants that cursors would break, by segment."""
        found = {
            one.segment: broken_by(one.cursor.held.record, one.record, self._end_of(subscription.topic, one.segment))
            for one in changed
        }
        return {segment: texts for segment, texts in found.items() if texts}

    def _without(
        self, subscription: Subscription, changed: Sequence[_Change], broken: dict[int, list[str]], is_last: bool
    ) -> list[_Change]:
        """Returns the cursors that may be written, and logs the others. Raises InvariantViolated if all are needed."""
        topic, name = subscription.topic, subscription.name
        for one in changed:
            if found := broken.get(one.segment):
                logger.error(
                    "not writing the cursor of subscription %s for segment %s of topic %s, because an "
                    "invariant would be broken: %s; before: %s; after: %s",
                    name,
                    one.segment,
                    topic.name,
                    "; ".join(found),
                    one.cursor.held.record,
                    one.record,
                )
        if is_last:
            raise InvariantViolated(
                f"the broker did not write cursors of subscription {name!r} of topic {topic.name!r}, because they "
                "would break an invariant; see the broker's log for details"
            )
        return [one for one in changed if one.segment not in broken]

    async def _refresh(self, subscription: Subscription) -> None:
        """Reads the records again that the next checkpoints replace. The last ones stay as they are known here: those
        may be newer than the answers that were lost."""
        entries = await self._entries(subscription.topic, subscription.name)
        for segment, cursor in subscription.cursors.items():
            found = keys.CURSORS.read(entries[segment]) if segment in entries else None
            if isinstance(found, Unreadable):
                subscription.unreadable.add(segment)
            else:
                cursor.replaces(found)

    async def record_use(self, subscription: Subscription, used_us: int, now_s: float) -> bool:
        """Writes that somebody uses a subscription, once for all callers of a time. Returns False if another broker
        dispatches now, or it is gone. Raises CoordinationUnavailable, NeedsNewerBroker."""
        async with subscription.saving:
            while not subscription.closed and subscription.recorded_s < now_s:
                wanted = subscription.held.replace(used_us=used_us)
                put = Put(key_of(subscription.topic, subscription.name), keys.SUBSCRIPTIONS.encode(wanted))
                revision = await self._coordination.commit([Compare(put.key, subscription.held.revision)], [put])
                if revision is not None:
                    subscription.held, subscription.recorded_s = wanted.stored(revision), now_s
                elif not await self.is_held(subscription):
                    return False
        return True

    async def is_held(self, subscription: Subscription) -> bool:
        """Reads the subscription's record again. Tells whether it is still this broker's, in the same epoch: its
        settings may have been changed by a write whose answer was lost. Raises NeedsNewerBroker."""
        there = await self._coordination.get(key_of(subscription.topic, subscription.name))
        found = keys.SUBSCRIPTIONS.require(there) if there else None
        if found is None or _tenure(found.record) != _tenure(subscription.record):
            return False
        subscription.held, subscription.in_doubt = found, False
        subscription.set_rules()
        return True

    async def finish_seek(
        self, topic: Topic, name: str, held: Versioned[SubscriptionRecord]
    ) -> Versioned[SubscriptionRecord]:
        """Writes the cursors with which the epoch of a seek begins, as far as they are not written, and then the record
        without the plan. Each write compares the record's revision. Raises NotOwner, NeedsNewerBroker."""
        seek = held.record.seek
        assert seek is not None
        wanted: list[tuple[Compare, Put]] = []
        entries = await self._entries(topic, name)
        for one in unpack_plan(seek.plan or ""):
            entry = entries.get(one.segment)
            there = keys.CURSORS.require(entry) if entry else None
            if cursor := cursor_after(one, seek.epoch, there.record if there else None):
                new = there.with_record(cursor) if there else Versioned.new(cursor)
                key = keys.CURSORS.key(topic.name, topic.record.incarnation, name, one.segment)
                wanted.append((Compare(key, new.revision), Put(key, keys.CURSORS.encode(new))))
        unchanged = Compare(key_of(topic, name), held.revision)
        for page in pages_of(wanted, lambda one: len(one[1].value)):
            reach("seek.cursors")
            if not await self._coordination.commit([unchanged, *(c for c, _ in page)], [put for _, put in page]):
                raise changed_meanwhile(topic, name)
        reach("seek.written")
        done = held.with_record(replace(held.record, seek=replace(seek, plan=None)))
        revision = await self._coordination.commit([unchanged], [Put(unchanged.key, keys.SUBSCRIPTIONS.encode(done))])
        if revision is None:
            raise changed_meanwhile(topic, name)
        return done.stored(revision)

    async def _entries(self, topic: Topic, name: str) -> dict[int, Entry]:
        entries, _ = await read_all(self._coordination, keys.CURSORS.prefix(topic.name, topic.record.incarnation, name))
        return {int(keys.CURSORS.parse(entry.key)[3]): entry for entry in entries}

    def _key(self, subscription: Subscription, segment: int) -> str:
        topic = subscription.topic
        return keys.CURSORS.key(topic.name, topic.record.incarnation, subscription.name, segment)

    async def _write(self, subscription: Subscription, page: Sequence[tuple[_Change, Put]]) -> bool:
        compares = [Compare(put.key, one.wanted.revision) for one, put in page]
        there = Compare(key_of(subscription.topic, subscription.name), subscription.held.revision)
        reach("checkpoint.write")
        revision = await self._coordination.commit([there, *compares], [put for _, put in page])
        if revision is None:
            return False
        reach("checkpoint.written")
        for one, _ in page:
            one.cursor.saved(one.wanted.stored(revision), one.newest)
        return True


def _tenure(record: SubscriptionRecord) -> tuple[str, int, int, str | None]:
    """Returns the part of a record that names its subscription, its dispatcher, and the epoch."""
    return record.state, record.created_us, record.epoch, record.dispatcher


def pages_of(writes: Sequence[T], size_of: Callable[[T], int]) -> list[list[T]]:
    """Returns the writes in transactions of at most PAGE cursors and PAGE_BYTES, or of one cursor."""
    pages: list[list[T]] = []
    size = 0
    for one in writes:
        size += size_of(one)
        if not pages or len(pages[-1]) >= PAGE or size > PAGE_BYTES:
            pages.append([])
            size = size_of(one)
        pages[-1].append(one)
    return pages


RECORD_USE_S = 1_800.0  # between two records of a use
WATCHED_S = 7_200.0  # for which the leader watches for uses: more than RECORD_USE_S, with all that may delay one
REREAD_S = 1.0  # between two reads of cursors that could not be read


def use_interval_s(expires_after_s: float) -> float:
    """Returns the seconds from one record of a use to the next one, if there was a use since."""
    return min(expires_after_s / 4, RECORD_USE_S)


class OpenSubscriptions:
    """The table of open subscriptions, by topic and name."""

    def __init__(
        self, view: ClusterView, assignment: Assignment, cursors: CursorStore, readables: ReadableSegments
    ) -> None:
        self._catalog = view.catalog
        self._membership = view.membership
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

    def check_lease(self) -> None:
        """Raises NotReady if this broker has lost its lease, so that another one may dispatch by now. One that stops
        in order keeps its lease until all are answered; one that stops since its lease has ended does not have it."""
        if not self._membership.valid():
            raise NotReady("this broker's lease has expired")

    def changing(self, topic: Topic, name: str) -> AbstractAsyncContextManager[None]:
        """Returns the lock for creating, opening, handing over and removing a subscription."""
        lock = self._changing.get((topic, name))
        if lock is None:
            lock = self._changing[topic, name] = asyncio.Lock()
        return lock

    async def open(self, topic: Topic, name: str) -> Subscription:
        """Returns the subscription, which is taken over if it was not open. Raises SubscriptionNotFound,
        TopicBeingDeleted, and NotOwner if another broker has it."""
        found = self._subscriptions.get((topic, name))
        if found is None:
            async with self.changing(topic, name):
                found = await self.acquire(topic, name)
        found.check()
        return found

    async def acquire(self, topic: Topic, name: str) -> Subscription:
        """As `open`, for a caller that holds `changing`; one that was closed is returned too."""
        if found := self._subscriptions.get((topic, name)):
            return found
        held = await self._assignment.acquire(topic, name)
        reach("dispatch.epoch")
        subscription = await self.open_held(topic, name, held)
        if held.record.epoch > held.record.created_us + 1:  # it was dispatched before
            subscription.any_until_s = self._clock.monotonic_s() + held.record.ack_deadline_s
        return subscription

    def forget(self, topic: Topic, name: str | None = None) -> None:
        """Closes a subscription, or all of a topic, that was deleted or is another broker's."""
        for key in [k for k in self._subscriptions if k[0] is topic and name in (None, k[1])]:
            why = f"this broker no longer delivers the messages of subscription {key[1]!r}"
            self._subscriptions.pop(key).close(why)
        if not any(key[0] is topic for key in self._subscriptions):
            self._readables.forget(topic)

    def drop(self, topic: Topic, name: str) -> None:
        """Forgets a subscription that is closed: its record has its state when it is opened again."""
        self._subscriptions.pop((topic, name), None)

    async def open_for_use(self, topic: Topic, name: str) -> Subscription:
        """As `open`. The first use after a long rest is recorded at once (broker/retention/subscription_expiry)."""
        subscription = self._subscriptions.get((topic, name)) or await self.open(topic, name)
        subscription.check()
        expires_s = subscription.record.expires_after_s
        if expires_s is not None:
            now_s = self._clock.monotonic_s()
            if now_s - subscription.recorded_s >= expires_s:
                await self._record_use(subscription, now_s)
                subscription.check()
            subscription.used_s = now_s
        return subscription

    async def _record_use(self, subscription: Subscription, now_s: float) -> None:
        """Raises NotOwner if the subscription is gone, or another broker's."""
        if not await self._cursors.record_use(subscription, self._clock.now_us(), now_s):
            if self.is_here(subscription):
                self.forget(subscription.topic, subscription.name)
            subscription.check()

    async def record_use_if_due(self, subscription: Subscription) -> None:
        """Writes into the record that there was a use, once that is due."""
        expires_s, now_s = subscription.record.expires_after_s, self._clock.monotonic_s()
        if expires_s and subscription.in_flight:  # somebody is at work, perhaps for longer than `expires_after_s`
            subscription.used_s = now_s
        used = expires_s is not None and subscription.used_s > subscription.recorded_s
        if expires_s and used and now_s - subscription.recorded_s >= use_interval_s(expires_s):
            with suppress(NotOwner):
                await self._record_use(subscription, now_s)

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
        await self._catalog.reload_segments(topic)
        self._catalog.check(topic)
        records, hidden = self._catalog.records(topic), self._catalog.unreadable_of(topic)
        cursors = {number: one for number, one in cursors.items() if number in records or number in hidden}
        subscription = Subscription(topic, name, held, cursors, records, unreadable)
        subscription.leases = taken.leases
        subscription.queue = PullQueue(lambda: subscription.sharers(self._clock.monotonic_s()))
        self._subscriptions[topic, name] = subscription
        return subscription

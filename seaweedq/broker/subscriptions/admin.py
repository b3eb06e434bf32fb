"""Creation, listing, deletion and seeks of subscriptions; at the broker that dispatches one, or would.

Creation writes: 1. the record, `creating`, which names this broker; 2. the cursors, one for each segment; 3. the
record, `active`. Deletion writes: 1. the record, `deleting`; 2. the cursors are removed; 3. the record is removed.
Behind 3 of a creation, 1 of a deletion, a change and a seek, the store has it (broker/admin_changes). Each write
compares the result of the one before, so of two brokers only one makes them all. What gives a subscription its topic of
dead letters (3 of a creation, or a change) also compares the records of both topics, whose schemas were checked. A
record that is not active does not count as a subscription; while its broker lives and works on it no other broker
touches it. What a dead broker has left, or this one after a lost answer, the next creation or deletion removes first,
as a deletion that was cut off: a cursor that is left of a segment that the next creator does not know would be one too
many.

A seek goes on at other offsets, in a new epoch. The offsets are looked for first, while everything goes on; the epoch
begins at the dispatcher (its module has the order of writes). A seek has a name, which the client chooses, or the
broker that takes the request before it hands it on: the record has the last ones, so that a repetition whose answer was
lost changes nothing.
"""

import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeAlias

from msgspec.structs import replace

from seaweedq.broker.admin_changes import AdminChanges
from seaweedq.broker.read.positions import TopicPositions
from seaweedq.broker.read.readable_segments import ReadableSegments
from seaweedq.broker.subscriptions.assignment import Assignment, changed_meanwhile, key_of, topic_compare
from seaweedq.broker.subscriptions.dispatcher import Dispatcher, SeekTarget
from seaweedq.broker.subscriptions.subscription import SeekResult, Subscription
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.checks import reach
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Coordination, Delete, Put, entries, read_all
from seaweedq.coordination.packed_forms import PLAN_MAX_BYTES, SegmentSeek, pack_plan
from seaweedq.coordination.records import CursorRecord, SubscriptionRecord
from seaweedq.coordination.versioned import Unreadable, Versioned
from seaweedq.errors import InvalidRequest, NoDeadLetters, OffsetOutOfRange, SubscriptionNotFound, TooManySegments

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PAGE = 60
DIGEST = 16  # characters
NONE: Mapping[Topic, Compare] = {}


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """The offset to go on at, by segment."""

    offsets: Mapping[int, int]


SeekPlace: TypeAlias = str | dict[str, str] | AtOffsets


class Starts:
    """Finds where to begin, in all segments of now. Segments that are created later begin at 0, so no message is missed
    or delivered twice if a segment is replaced meanwhile."""

    def __init__(self, readables: ReadableSegments, positions: TopicPositions, catalog: Catalog) -> None:
        self._readables = readables
        self._positions = positions
        self._catalog = catalog

    async def find(self, topic: Topic, start: str | dict[str, str]) -> list[SegmentSeek]:
        """Returns where `earliest`, `latest` or a time is. Raises NeedsNewerBroker if that offset is not known of a
        segment."""
        if start != "earliest":
            self._readables.check_whole(topic)
        ends = await self._ends(topic)
        if isinstance(start, dict):
            timestamp_us = (datetime.fromisoformat(start["timestamp"]) - EPOCH) // timedelta(microseconds=1)
            offsets = await self._readables.find(topic, ends, timestamp_us)
        elif start == "latest":
            offsets = ends
        else:
            begin = self._readables.start_offsets(topic)
            offsets = {number: begin.get(number, 0) for number in ends}
        return [SegmentSeek(number, ends[number], offsets[number]) for number in sorted(offsets)]

    async def at(self, topic: Topic, offsets: Mapping[int, int]) -> tuple[list[SegmentSeek], list[int]]:
        """Returns all segments with these offsets, and the numbers of those whose start is above theirs, at which they
        begin; of a segment that retention has removed that is the end. Raises SegmentNotFound, and OffsetOutOfRange
        beyond an end."""
        ends = await self._ends(topic)
        unknown = offsets.keys() - ends.keys()
        removed = {number: (await self._catalog.tombstone(topic, number)).end_offset for number in sorted(unknown)}
        for number, offset in offsets.items():
            end = removed[number] if number in removed else ends[number]
            if offset > end:
                detail = f"offset {offset} is beyond the end of segment {number}, which ends at offset {end}"
                raise OffsetOutOfRange(detail, segment=number, offset=offset, end_offset=end)
        begin = {**self._readables.start_offsets(topic), **removed}
        moved = sorted(number for number, offset in offsets.items() if offset < begin.get(number, 0))
        to = {number: max(offset, begin.get(number, 0)) for number, offset in offsets.items()}
        return [SegmentSeek(number, ends[number], to.get(number)) for number in sorted(ends)], moved

    async def _ends(self, topic: Topic) -> dict[int, int]:
        return {number: position.end for number, position in (await self._positions.positions(topic)).items()}


class ListedSubscription(NamedTuple):
    """The name of a subscription, and whether its record can be read."""

    topic: str
    incarnation: int
    name: str
    is_readable: bool


class SubscriptionAdmin:
    """Applies changes of subscriptions to coordination and the dispatcher. A change that another broker was faster with
    raises NotOwner: the caller tries again, perhaps at that broker."""

    def __init__(
        self,
        coordination: Coordination,
        assignment: Assignment,
        dispatcher: Dispatcher,
        starts: Starts,
        changes: AdminChanges,
    ) -> None:
        self._coordination = coordination
        self._assignment = assignment
        self._dispatcher = dispatcher
        self._starts = starts
        self._changes = changes

    async def find(self, topic: Topic, name: str) -> SubscriptionRecord | None:
        """Returns the record of an active subscription, or None."""
        there = await self._assignment.read(topic, name)
        return there.record if there and there.record.state == "active" else None

    async def names(self, topic: Topic) -> tuple[list[str], list[str]]:
        """Returns the names of the topic's subscriptions, and of those whose records cannot be read, sorted."""
        entries, _ = await read_all(self._coordination, keys.SUBSCRIPTIONS.prefix(topic.name, topic.record.incarnation))
        found = {str(keys.SUBSCRIPTIONS.parse(entry.key)[2]): keys.SUBSCRIPTIONS.read(entry) for entry in entries}
        active = [n for n, one in found.items() if isinstance(one, Versioned) and one.record.state == "active"]
        return active, [name for name, one in found.items() if isinstance(one, Unreadable)]

    async def every(self, after: tuple[str, int, str] | None) -> AsyncIterator[ListedSubscription]:
        """Yields the subscriptions of all topics behind one, as topic, incarnation and name, in the order of their
        keys. Those of topics that are gone may be among them."""
        behind = keys.SUBSCRIPTIONS.key(*after) if after else ""
        async for entry in entries(self._coordination, keys.SUBSCRIPTIONS.prefix(), behind):
            if not keys.SUBSCRIPTIONS.matches(entry.key):
                continue  # a later version has more below this prefix
            found = keys.SUBSCRIPTIONS.read(entry)
            if isinstance(found, Unreadable) or found.record.state == "active":
                topic, incarnation, name = keys.SUBSCRIPTIONS.parse(entry.key)
                yield ListedSubscription(topic, incarnation, name, isinstance(found, Versioned))

    async def create(
        self, topic: Topic, name: str, record: SubscriptionRecord, checked: Mapping[Topic, Compare] = NONE
    ) -> bool:
        """Creates a subscription, with cursors where `record.start` says, if the records by which its dead letters were
        `checked` are unchanged. Returns False if it exists already. Raises NotOwner, and StoreUnavailable; it may be
        there then."""
        there = await self._assignment.read(topic, name)
        if there and there.record.state == "active":
            await self._ensure(topic, name, there)
            return False
        unchanged = topic_compare(topic)
        starts = {one.segment: one.to or 0 for one in await self._starts.find(topic, record.start)}
        async with self._dispatcher.changing(topic, name):
            there = await self._assignment.read(topic, name)
            if there and there.record.state == "active":
                await self._ensure(topic, name, there)
                return False
            if there:
                doomed = there.replace(state="deleting")
                await self._finish(topic, name, await self._assignment.claim(topic, name, doomed, there))
            creating = Versioned.new(record).replace(state="creating")
            held = await self._assignment.claim(topic, name, creating, rewinds=unchanged)
            made = await self._make(topic, name, held, starts, checked)
        await self._ensure(topic, name, made)
        return True

    async def _ensure(self, topic: Topic, name: str, held: Versioned[SubscriptionRecord]) -> None:
        await self._changes.put_subscription(topic.name, topic.held, name, held)

    async def _make(
        self,
        topic: Topic,
        name: str,
        held: Versioned[SubscriptionRecord],
        starts: dict[int, int],
        checked: Mapping[Topic, Compare],
    ) -> Versioned[SubscriptionRecord]:
        unchanged = [Compare(key_of(topic, name), held.revision)]
        cursors = [
            Put(
                keys.CURSORS.key(topic.name, topic.record.incarnation, name, segment),
                keys.CURSORS.encode(Versioned.new(CursorRecord(held.record.epoch, start, delivered_to=start))),
            )
            for segment, start in starts.items()
        ]
        for start in range(0, len(cursors), PAGE):
            reach("subscribe.cursors")
            if not await self._coordination.commit(unchanged, cursors[start : start + PAGE]):
                raise changed_meanwhile(topic, name)
        reach("subscribe.record")
        made = await self._write_checked(topic, name, held.replace(state="active"), unchanged, checked)
        # Perhaps an earlier one of this name is open, whose deletion had an unknown outcome.
        self._dispatcher.forget(topic, name)
        return made

    async def _write_checked(
        self,
        topic: Topic,
        name: str,
        wanted: Versioned[SubscriptionRecord],
        unchanged: Sequence[Compare],
        checked: Mapping[Topic, Compare],
    ) -> Versioned[SubscriptionRecord]:
        """Writes the record if those by which its dead letters were `checked` are unchanged."""
        rewinds = [put for one in checked for put in await self._assignment.rewind(one, name)]
        return await self._assignment.write(topic, name, wanted, [*unchanged, *checked.values()], rewinds)

    async def change(
        self, topic: Topic, name: str, changes: Mapping[str, Any], checked: Mapping[Topic, Compare] = NONE
    ) -> None:
        """Changes settings of a subscription that this broker dispatches, under the condition of `create`. Raises
        SubscriptionNotFound, NotOwner, NoDeadLetters, and StoreUnavailable; they may be changed then. If the outcome is
        unknown, the next checkpoint reads the record again."""
        subscription = await self._dispatcher.open(topic, name)
        async with self._dispatcher.changing(topic, name), subscription.saving:
            subscription.check()
            if subscription.in_doubt:
                await self._dispatcher.confirm(subscription)
            there = subscription.held
            if there.record.dead_letter_topic is not None:  # else it is a repetition
                _check_dying(subscription, changes)
            wanted = there.with_record(self._dispatcher.used(replace(there.record, **changes)))
            is_concerned = not changes.keys().isdisjoint({"max_attempts", "dead_letter_topic"})
            if is_concerned and wanted.record.max_attempts > 0 and wanted.record.dead_letter_topic is None:
                # Another change came since the caller read the record: messages that die would have no topic.
                raise changed_meanwhile(topic, name)
            if wanted.record != there.record:
                unchanged = [Compare(key_of(topic, name), there.revision)]
                with subscription.changing_to(wanted.record):
                    subscription.held = await self._write_checked(topic, name, wanted, unchanged, checked)
            held = subscription.held
        subscription.queue.event()
        self._dispatcher.dying.wake()
        await self._ensure(topic, name, held)

    async def delete(self, topic: Topic, name: str) -> None:
        """Deletes a subscription with its cursors. Raises SubscriptionNotFound, NotOwner, StoreUnavailable."""
        async with self._dispatcher.changing(topic, name):
            there = await self._assignment.read(topic, name)
            if there is None:
                raise SubscriptionNotFound(
                    f"topic {topic.name!r} has no subscription {name!r}", topic=topic.name, subscription=name
                )
            held = await self._assignment.claim(topic, name, there.replace(state="deleting"), there)
            reach("unsubscribe.cursors")
            self._dispatcher.forget(topic, name)
            await self._finish(topic, name, held)

    async def expire(self, topic: Topic, name: str, there: Versioned[SubscriptionRecord], as_leader: Compare) -> None:
        """Deletes a subscription that has not changed, of any dispatcher. Raises NotOwner, StoreUnavailable."""
        async with self._dispatcher.changing(topic, name):
            reach("expire.record")
            held = await self._assignment.seize(topic, name, there.replace(state="deleting"), as_leader)
            reach("expire.cursors")
            self._dispatcher.forget(topic, name)
            await self._finish(topic, name, held)

    async def _finish(self, topic: Topic, name: str, held: Versioned[SubscriptionRecord]) -> None:
        """Removes the cursors, and then the record, of a subscription that is `deleting`, once the store has that."""
        await self._changes.put(held.revision, [Put(key_of(topic, name), keys.SUBSCRIPTIONS.encode(held))])
        entries, _ = await read_all(self._coordination, keys.CURSORS.prefix(topic.name, topic.record.incarnation, name))
        unchanged = [Compare(key_of(topic, name), held.revision)]
        pages = [entries[start : start + PAGE] for start in range(0, len(entries), PAGE)]
        writes: list[list[Delete]] = [[Delete(entry.key) for entry in page] for page in pages]
        for doomed in [*writes, [Delete(key_of(topic, name))]]:
            if not await self._coordination.commit(unchanged, doomed):
                raise changed_meanwhile(topic, name)
            reach("unsubscribe.record")


def _check_dying(subscription: Subscription, changes: Mapping[str, Any]) -> None:
    """Raises NoDeadLetters if a change takes the topic away that dying messages go to."""
    if changes.get("dead_letter_topic", "") is None and (count := subscription.dying):
        raise NoDeadLetters(
            f"dead_letter_topic cannot be removed: {count} messages of subscription "
            f"{subscription.name!r} have not been written to that topic yet; name another topic, "
            "or wait until the messages are written",
            topic=subscription.topic.name,
            subscription=subscription.name,
        )


class Seeking:
    """Seeks subscriptions that this broker dispatches. All of it raises NotOwner, NeedsNewerBroker, Unavailable."""

    def __init__(self, dispatcher: Dispatcher, starts: Starts, changes: AdminChanges) -> None:
        self._dispatcher = dispatcher
        self._starts = starts
        self._changes = changes

    async def seek(self, topic: Topic, name: str, place: SeekPlace, key: str) -> SeekResult:
        """Goes on elsewhere, as the seek `key`. Raises SegmentNotFound, OffsetOutOfRange, InvalidRequest if the seek of
        this name went to another place, and NotReady."""
        found = await self._seek(topic, name, place, key)
        held = (await self._dispatcher.open(topic, name)).held
        await self._changes.put_subscription(topic.name, topic.held, name, held)
        self._dispatcher.check_lease()
        return found

    async def _seek(self, topic: Topic, name: str, place: SeekPlace, key: str) -> SeekResult:
        if known := _known(await self._dispatcher.open(topic, name), key, place):
            return known
        unchanged = topic_compare(topic)
        plan: Sequence[SegmentSeek]
        moved: Sequence[int]
        if isinstance(place, AtOffsets):
            plan, moved = await self._starts.at(topic, place.offsets)
        else:
            plan, moved = await self._starts.find(topic, place), ()
        packed = pack_plan(plan)
        if len(packed) > PLAN_MAX_BYTES:
            raise TooManySegments(
                f"topic {topic.name!r} has {len(plan)} segments, too many for one seek: the seek would need "
                f"{len(packed)} bytes in coordination, and the limit is {PLAN_MAX_BYTES} bytes"
            )
        before, after = await self._dispatcher.seek(topic, name, key, SeekTarget(packed, _digest(place), unchanged))
        if known := _known(before, key, place):  # a repetition was faster
            return known
        segments = [(one.segment, before.stands_at(one.segment, one.end), one.to) for one in plan if one.to is not None]
        after.last_seek = SeekResult(key, segments, moved)
        return after.last_seek


def _digest(place: SeekPlace) -> str:
    at = sorted(place.offsets.items()) if isinstance(place, AtOffsets) else place
    return hashlib.sha256(repr(at).encode()).hexdigest()[:DIGEST]


def _known(subscription: Subscription, key: str, place: SeekPlace) -> SeekResult | None:
    """Returns the outcome of a seek of this name, None if there was none. Raises InvalidRequest if that one went
    to another place."""
    known, seek = subscription.result_of_seek(key), subscription.record.seek
    if known and seek and seek.asked.get(key, digest := _digest(place)) != digest:
        detail = (
            f"id is {key!r}, but an earlier seek with this id moved the subscription to another "
            "position; use a new id for each seek"
        )
        raise InvalidRequest(detail, field="id", value=key)
    return known

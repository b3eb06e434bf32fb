"""Creation, listing and deletion of subscriptions; at the broker that dispatches one, or would.

Creation writes: 1. the record, `creating`, which names this broker; 2. the cursors, one for each segment; 3. the
record, `active`. Deletion writes: 1. the record, `deleting`; 2. the cursors are removed; 3. the record is removed. Each
write compares the result of the one before, so of two brokers only one does all of it. A record that is not active does
not count as a subscription; while its broker lives and works on it no other broker touches it. What a dead broker has
left, or this one after a lost answer, the next creation or deletion removes first, as a deletion that was cut off: a
cursor that is left of a segment that the next creator does not know would be one too many.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from seaweedq.broker.subscriptions.administration.starts import Starts
from seaweedq.broker.subscriptions.cursors.assignment import Assignment, changed_meanwhile, key_of
from seaweedq.broker.subscriptions.cursors.subscription import Subscription
from seaweedq.broker.subscriptions.dispatch.dispatcher import Dispatcher
from seaweedq.broker.topics.catalog import Topic
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Coordination, Delete, Put
from seaweedq.coordination.records.subscriptions import CursorRecord, SubscriptionRecord
from seaweedq.coordination.records.versioned import Versioned
from seaweedq.coordination.transactions import entries, read_all
from seaweedq.coordination.unreadable import Unreadable
from seaweedq.errors import NoDeadLetters, SubscriptionNotFound
from seaweedq.failpoints import reach

PAGE = 60


class Listed(NamedTuple):
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
    ) -> None:
        self._coordination = coordination
        self._assignment = assignment
        self._dispatcher = dispatcher
        self._starts = starts

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

    async def every(self, after: tuple[str, int, str] | None) -> AsyncIterator[Listed]:
        """Yields the subscriptions of all topics behind one, as topic, incarnation and name, in the order of their
        keys. Those of topics that are gone may be among them."""
        behind = keys.SUBSCRIPTIONS.key(*after) if after else ""
        async for entry in entries(self._coordination, keys.SUBSCRIPTIONS.prefix(), behind):
            if not keys.SUBSCRIPTIONS.matches(entry.key):
                continue  # a later version has more below this prefix
            found = keys.SUBSCRIPTIONS.read(entry)
            if isinstance(found, Unreadable) or found.record.state == "active":
                topic, incarnation, name = keys.SUBSCRIPTIONS.parse(entry.key)
                yield Listed(topic, incarnation, name, isinstance(found, Versioned))

    async def create(self, topic: Topic, name: str, record: SubscriptionRecord) -> bool:
        """Creates a subscription, with cursors where `record.start` says. Returns False where it exists already. Raises
        NotOwner."""
        if await self.find(topic, name):
            return False
        starts = {one.segment: one.to or 0 for one in await self._starts.find(topic, record.start)}
        async with self._dispatcher.changing(topic, name):
            there = await self._assignment.read(topic, name)
            if there and there.record.state == "active":
                return False
            if there:
                doomed = there.replace(state="deleting")
                await self._finish(topic, name, await self._assignment.claim(topic, name, doomed, there))
            creating = Versioned.new(record).replace(state="creating")
            held = await self._assignment.claim(topic, name, creating, rewinds=True)
            await self._make(topic, name, held, starts)
        return True

    async def _make(self, topic: Topic, name: str, held: Versioned[SubscriptionRecord], starts: dict[int, int]) -> None:
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
        await self._assignment.write(topic, name, held.replace(state="active"), unchanged)
        self._dispatcher.forget(
            topic, name
        )  # perhaps an earlier one of this name, whose deletion had an unknown outcome

    async def change(self, topic: Topic, name: str, changes: Mapping[str, Any]) -> None:
        """Changes settings of a subscription that this broker dispatches. Raises SubscriptionNotFound, NotOwner,
        NoDeadLetters. Where the outcome is unknown, the next checkpoint reads the record again."""
        subscription = await self._dispatcher.open(topic, name)
        async with self._dispatcher.changing(topic, name), subscription.saving:
            subscription.check()
            if subscription.in_doubt:
                await self._dispatcher.confirm(subscription)
            there = subscription.held
            if there.record.dead_letter_topic is not None:  # else it is a repetition
                _check_dying(subscription, changes)
            wanted = there.with_record(self._dispatcher.used(replace(there.record, **changes)).in_its_form())
            if _lacks_letters(wanted.record, changes):  # another change came since the caller looked
                raise changed_meanwhile(topic, name)
            if wanted.record != there.record:
                unchanged = [Compare(key_of(topic, name), there.revision)]
                with subscription.changing_to(wanted.record):
                    subscription.held = await self._assignment.write(topic, name, wanted, unchanged)
        subscription.room.event()
        self._dispatcher.dying.wake()

    async def delete(self, topic: Topic, name: str) -> None:
        """Deletes a subscription with its cursors. Raises SubscriptionNotFound, NotOwner."""
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
        """Deletes a subscription that has not changed, whoever dispatches it. Raises NotOwner."""
        async with self._dispatcher.changing(topic, name):
            reach("expire.record")
            held = await self._assignment.seize(topic, name, there.replace(state="deleting"), as_leader)
            reach("expire.cursors")
            self._dispatcher.forget(topic, name)
            await self._finish(topic, name, held)

    async def _finish(self, topic: Topic, name: str, held: Versioned[SubscriptionRecord]) -> None:
        """Removes the cursors, and then the record, of a subscription that is `deleting`."""
        entries, _ = await read_all(self._coordination, keys.CURSORS.prefix(topic.name, topic.record.incarnation, name))
        unchanged = [Compare(key_of(topic, name), held.revision)]
        pages = [entries[start : start + PAGE] for start in range(0, len(entries), PAGE)]
        writes: list[list[Delete]] = [[Delete(entry.key) for entry in page] for page in pages]
        for doomed in [*writes, [Delete(key_of(topic, name))]]:
            if not await self._coordination.commit(unchanged, doomed):
                raise changed_meanwhile(topic, name)
            reach("unsubscribe.record")


def _lacks_letters(record: SubscriptionRecord, changes: Mapping[str, Any]) -> bool:
    """Tells whether a change lets messages die that have no topic to go to."""
    is_concerned = not changes.keys().isdisjoint({"max_attempts", "dead_letter_topic"})
    return is_concerned and record.max_attempts > 0 and record.dead_letter_topic is None


def _check_dying(subscription: Subscription, changes: Mapping[str, Any]) -> None:
    """Raises NoDeadLetters where a change takes the topic away that dying messages go to."""
    if changes.get("dead_letter_topic", "") is None and (count := subscription.dying):
        raise NoDeadLetters(
            f"{count} messages of subscription {subscription.name!r} are dying and need a dead_letter_topic; name "
            "another one, or wait until they are there",
            topic=subscription.topic.name,
            subscription=subscription.name,
        )

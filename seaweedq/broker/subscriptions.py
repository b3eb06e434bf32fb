"""Creating, listing and deleting subscriptions, and their lag.

Create: 1. cursors, one a segment; 2. the subscription's record, which makes it. A crash in between leaves cursors of
nothing, which the next creation of that name overwrites. Delete: the record first, then the cursors: a cursor without
its subscription means nothing. Neither may meet the other, nor an opening, half way: the cursors of one would be those
of another.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from seaweedq.broker.catalog import Topic
from seaweedq.broker.dispatch import Dispatcher
from seaweedq.broker.failpoints import reach
from seaweedq.broker.open_segment import OpenSegment
from seaweedq.broker.read import Reader
from seaweedq.broker.subscription import Subscription
from seaweedq.clock import Clock
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Coordination, Delete, Put
from seaweedq.coordination.records import CursorRecord, SubscriptionRecord
from seaweedq.coordination.transactions import read_all
from seaweedq.errors import SubscriptionNotFound

PAGE = 60
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Lag:
    """What a subscription has still to ack of one segment; `size_bytes` is about what it takes in memory or files."""

    segment: int
    acked_to: int
    end_offset: int
    messages: int
    size_bytes: int
    seconds: float


class SubscriptionAdmin:
    """Applies changes of subscriptions to coordination and the dispatcher."""

    def __init__(
        self,
        coordination: Coordination,
        dispatcher: Dispatcher,
        reader: Reader,
        clock: Clock,
        open_segments: Callable[[Topic], Awaitable[Sequence[OpenSegment]]],
    ) -> None:
        self._coordination = coordination
        self._dispatcher = dispatcher
        self._reader = reader
        self._clock = clock
        self._open_segments = open_segments

    async def find(self, topic: Topic, name: str) -> SubscriptionRecord | None:
        """The record, or None."""
        there = await self._coordination.get(self._key(topic, name))
        return keys.SUBSCRIPTIONS.decode(there.value) if there else None

    async def names(self, topic: Topic) -> list[str]:
        """The topic's subscriptions, sorted."""
        entries, _ = await read_all(self._coordination, keys.SUBSCRIPTIONS.prefix(topic.name, topic.record.incarnation))
        return [str(keys.SUBSCRIPTIONS.parse(entry.key)[2]) for entry in entries]

    async def create(self, topic: Topic, name: str, record: SubscriptionRecord) -> bool:
        """Create it with its cursors where `record.start` says. False: it is there already."""
        key = self._key(topic, name)
        if await self._coordination.get(key):
            return False
        starts = {s.id: await self._start(s, record.start) for s in await self._open_segments(topic)}
        cursors = [
            Put(
                keys.CURSORS.key(topic.name, topic.record.incarnation, name, segment),
                keys.CURSORS.encode(CursorRecord(record.epoch, start)),
            )
            for segment, start in starts.items()
        ]
        async with self._dispatcher.changing:
            return await self._create(topic, name, cursors, Put(key, keys.SUBSCRIPTIONS.encode(record)))

    async def _create(self, topic: Topic, name: str, cursors: Sequence[Put], record: Put) -> bool:
        absent = [Compare(record.key, 0)]
        for start in range(0, len(cursors), PAGE):
            reach("subscribe.cursors")
            if not await self._coordination.commit(absent, cursors[start : start + PAGE]):
                return False
        reach("subscribe.record")
        if not await self._coordination.commit(absent, [record]):
            return False
        self._dispatcher.forget(topic, name)  # one of the same name, whose deletion was in doubt
        return True

    async def delete(self, topic: Topic, name: str) -> None:
        """Delete it with its cursors. Raises SubscriptionNotFound."""
        async with self._dispatcher.changing:
            await self._delete(topic, name)

    async def _delete(self, topic: Topic, name: str) -> None:
        there = await self._coordination.get(self._key(topic, name))
        if there is None:
            raise SubscriptionNotFound(
                f"topic {topic.name!r} has no subscription {name!r}", topic=topic.name, subscription=name
            )
        await self._coordination.commit([], [Delete(there.key)])
        reach("unsubscribe.cursors")
        self._dispatcher.forget(topic, name)
        entries, _ = await read_all(self._coordination, keys.CURSORS.prefix(topic.name, topic.record.incarnation, name))
        for start in range(0, len(entries), PAGE):
            await self._coordination.commit([], [Delete(entry.key) for entry in entries[start : start + PAGE]])

    async def lag(self, topic: Topic, subscription: Subscription) -> list[Lag]:
        """For each segment, what is not acked yet."""
        return [await self._lag(segment, subscription) for segment in await self._open_segments(topic)]

    async def _lag(self, segment: OpenSegment, subscription: Subscription) -> Lag:
        delivery = subscription.cursor(segment.id).delivery
        acked_to, end = delivery.acked_to, segment.end
        messages = max(0, end - acked_to - delivery.acked.size)
        if messages == 0:
            return Lag(segment.id, acked_to, end, 0, 0, 0.0)
        pieces = await self._reader.read(segment, acked_to, 1, 1)
        oldest_us = pieces[0][1].column(0)[0].cast(pa.int64()).as_py()
        size = await self._reader.size_since(segment, acked_to)
        return Lag(segment.id, acked_to, end, messages, size, max(0.0, (self._clock.now_us() - oldest_us) / 1e6))

    async def _start(self, segment: OpenSegment, start: str | dict[str, str]) -> int:
        if start == "earliest":
            return 0
        if start == "latest":
            return segment.end
        assert isinstance(start, dict)
        timestamp_us = (datetime.fromisoformat(start["timestamp"]) - EPOCH) // timedelta(microseconds=1)
        return await self._reader.find(segment, timestamp_us)

    def _key(self, topic: Topic, name: str) -> str:
        return keys.SUBSCRIPTIONS.key(topic.name, topic.record.incarnation, name)

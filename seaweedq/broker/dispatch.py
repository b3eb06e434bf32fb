"""The dispatcher: hands a subscription's messages out, takes acks, keeps cursors durable.

Opening a subscription raises its epoch in coordination, so that acks of a dispatcher before this one, and its
checkpoints, count no more. An ack is a frame in the journal; a checkpoint compares the epoch, comes before the release
of those frames, and is written every `checkpoint_s` for what has changed. A crash in between leaves the frames, and
recovery works them in.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from seaweedq.broker.catalog import Catalog, Topic
from seaweedq.broker.commit import GroupCommit
from seaweedq.broker.delivery import Judged
from seaweedq.broker.failpoints import reach
from seaweedq.broker.open_segment import OpenSegment
from seaweedq.broker.read import Pieces, Reader
from seaweedq.broker.runs import Run, runs_of
from seaweedq.broker.subscription import Acks, SegmentCursor, Subscription
from seaweedq.clock import Clock
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Coordination, Put
from seaweedq.coordination.records import CursorRecord, SubscriptionRecord
from seaweedq.coordination.transactions import read_all
from seaweedq.errors import SubscriptionNotFound
from seaweedq.segments.frames import Frame, FrameKind
from seaweedq.segments.layout import TIMESTAMP

PULL_BYTES = 8 * 1024 * 1024
PAGE = 60
ANYBODY = ""  # pulls without a consumer count as one


@dataclass(frozen=True, slots=True)
class Delivered:
    """Messages of one segment that a pull gives: rows, and how often each offset was delivered where that is not
    once."""

    segment: OpenSegment
    pieces: Pieces
    attempts: dict[int, int]


class Dispatcher:
    """The open subscriptions of this broker's topics."""

    def __init__(
        self,
        catalog: Catalog,
        coordination: Coordination,
        reader: Reader,
        commit: GroupCommit,
        clock: Clock,
        open_segments: Callable[[Topic], Awaitable[Sequence[OpenSegment]]],
    ) -> None:
        self._catalog = catalog
        self._coordination = coordination
        self._reader = reader
        self._commit = commit
        self._clock = clock
        self._open_segments = open_segments
        self.closing = False  # pulls do not wait any more
        self._subscriptions: dict[tuple[Topic, str], Subscription] = {}
        self.changing = asyncio.Lock()  # held by whoever makes, opens or removes a subscription

    @property
    def pin(self) -> int | None:
        """The oldest commit that must stay because of acks without a checkpoint."""
        return min((s.pin for s in self._subscriptions.values() if s.pin is not None), default=None)

    async def open(self, topic: Topic, name: str) -> Subscription:
        """The subscription; its epoch rises where it was not open. Raises SubscriptionNotFound, TopicBeingDeleted."""
        if found := self._subscriptions.get((topic, name)):
            return found
        async with self.changing:
            return self._subscriptions.get((topic, name)) or await self._take_over(topic, name)

    def forget(self, topic: Topic, name: str | None = None) -> None:
        """Close a subscription, or all of a topic: deleted."""
        for key in [k for k in self._subscriptions if k[0] is topic and name in (None, k[1])]:
            del self._subscriptions[key]
        topic.signal.wake()

    async def pull(
        self, topic: Topic, name: str, consumer: str | None, max_messages: int, wait_s: float
    ) -> list[Delivered]:
        """Lease up to `max_messages`; waits up to `wait_s` for the first one."""
        end_s = self._clock.monotonic_s() + wait_s
        while True:
            seen = topic.signal.count
            subscription = await self.open(topic, name)
            async with subscription.delivering:
                found = await self._lease(topic, subscription, consumer or ANYBODY, max_messages)
            now_s = self._clock.monotonic_s()
            if found or self.closing or now_s >= end_s:
                return found
            deadline_s = min([end_s, *(d for c in subscription.cursors.values() if (d := c.delivery.next_deadline()))])
            if topic.signal.count == seen:  # else something came to a segment that had been looked at already
                await topic.signal.wait(max(0.001, deadline_s - now_s))

    async def ack(
        self, topic: Topic, name: str, offsets: dict[int, list[int]], consumer: str | None
    ) -> dict[int, Judged]:
        """Ack offsets by segment; returns when what could be acked is durable. Raises JournalUnavailable, NotReady."""
        subscription = await self.open(topic, name)
        now_s = self._clock.monotonic_s()
        judged: dict[int, Judged] = {}
        durable: list[asyncio.Future[None]] = []
        for segment, wanted in offsets.items():
            cursor = subscription.cursors.get(segment)
            if cursor is None:
                judged[segment] = Judged(unknown=wanted)
                continue
            cursor.delivery.expire(now_s)
            judged[segment] = result = cursor.delivery.judge(wanted, consumer)
            if result.runs:
                durable.append(self._begin_ack(subscription, segment, cursor, result.runs))
        await asyncio.gather(*map(asyncio.shield, durable))
        return judged

    def _begin_ack(
        self, subscription: Subscription, segment: int, cursor: SegmentCursor, runs: Sequence[Run]
    ) -> asyncio.Future[None]:
        """Journal the runs; they count, and pin their commit, in the step in which the journal has them."""
        cursor.delivery.begin_ack(runs)

        def count(commit: int) -> None:
            cursor.delivery.end_ack(runs, durable=True)
            cursor.pin_at(commit)

        def give_back(done: asyncio.Future[None]) -> None:
            if done.cancelled() or done.exception():
                cursor.delivery.end_ack(runs, durable=False)
            subscription.topic.signal.wake()  # it may be another consumer's turn now, or the window have room

        done = self._commit.add_frame(self._frame(subscription, segment, runs), count)
        done.add_done_callback(give_back)
        return done

    async def checkpoint(self) -> None:
        """Write the cursors that have changed, and let go of the commits that held their acks."""
        for (topic, name), subscription in list(self._subscriptions.items()):
            changed = [
                (s, c, r, c.newest)
                for s, c in subscription.cursors.items()
                if (r := c.changed(subscription.record.epoch))
            ]
            for start in range(0, len(changed), PAGE):
                if not await self._write(topic, name, subscription, changed[start : start + PAGE]):
                    self.forget(topic, name)
                    break

    async def _write(
        self,
        topic: Topic,
        name: str,
        subscription: Subscription,
        changed: Sequence[tuple[int, SegmentCursor, CursorRecord, int]],
    ) -> bool:
        """Write some cursors, each with the newest commit that its record holds. False: of another epoch now."""
        compare = Compare(keys.SUBSCRIPTIONS.key(topic.name, topic.record.incarnation, name), subscription.revision)
        prefix = (topic.name, topic.record.incarnation, name)
        writes = [
            Put(keys.CURSORS.key(*prefix, segment), keys.CURSORS.encode(record)) for segment, _, record, _ in changed
        ]
        reach("checkpoint.write")
        revision = await self._coordination.commit([compare], writes)
        if revision is None:
            return False
        reach("checkpoint.written")
        for _, cursor, record, newest in changed:
            cursor.saved(record, newest)
        return True

    async def _lease(self, topic: Topic, subscription: Subscription, consumer: str, wanted: int) -> list[Delivered]:
        """Go round the segments, each time beginning with another one, until there is enough."""
        now_s = self._clock.monotonic_s()
        deadline_s = now_s + subscription.record.ack_deadline_s
        found: list[Delivered] = []
        left_bytes = PULL_BYTES
        for segment in subscription.rotate(await self._open_segments(topic)):
            delivery = subscription.cursor(segment.id).delivery
            delivery.expire(now_s)
            while wanted > 0 and left_bytes > 0 and (run := delivery.available(consumer, segment.end, wanted)):
                pieces = await self._reader.read(segment, run[0], run[1] - run[0], left_bytes)
                now = delivery.available(consumer, segment.end, wanted)
                if now is None or now[0] != run[0]:
                    continue  # leases ended, or an ack failed, during the read: what became due goes first
                read = (run[0], run[0] + sum(rows.num_rows for _, rows in pieces))
                delivery.lease(read, consumer, deadline_s)
                pieces = self._without_expired(delivery.pass_over, pieces)
                count = sum(rows.num_rows for _, rows in pieces)
                if count:
                    attempts = {o: n for o in range(*read) if (n := delivery.attempts.get(o))}
                    found.append(Delivered(segment, pieces, attempts))
                wanted -= count
                left_bytes -= sum(rows.nbytes for _, rows in pieces)
        return found

    def _without_expired(self, pass_over: Callable[[int, int], None], pieces: Pieces) -> Pieces:
        """Leave out messages whose time is over; nobody gets them, so they count as acked."""
        kept: Pieces = []
        for first, rows in pieces:
            fresh = self.unexpired(first, rows)
            kept += fresh
            low = first
            for start, part in [*fresh, (first + rows.num_rows, rows)]:
                pass_over(low, start)
                low = start + part.num_rows
        return kept

    def unexpired(self, first: int, rows: pa.RecordBatch) -> Pieces:
        """The pieces of `rows` (offsets from `first`) whose `_expires` is not over."""
        at = rows.schema.get_field_index("_expires")
        if at < 0:
            return [(first, rows)]
        over = pc.less_equal(rows.column(at), pa.scalar(self._clock.now_us(), TIMESTAMP)).fill_null(False)
        alive = pc.indices_nonzero(pc.invert(over)).to_pylist()
        return [(first + low, rows.slice(low, high - low)) for low, high in runs_of(alive)]

    def _frame(self, subscription: Subscription, segment: int, runs: Iterable[Run]) -> Frame:
        topic = subscription.topic
        acks = Acks(subscription.name, topic.record.incarnation, subscription.record.epoch, tuple(runs))
        payload = msgspec.msgpack.encode(acks)
        return Frame(FrameKind.ACKS, topic.name, segment, 0, 0, 0, 0, (), self._clock.now_us(), payload)

    async def _take_over(self, topic: Topic, name: str) -> Subscription:
        incarnation = topic.record.incarnation
        key = keys.SUBSCRIPTIONS.key(topic.name, incarnation, name)
        while True:
            there = await self._coordination.get(key)
            if there is None:
                raise SubscriptionNotFound(
                    f"topic {topic.name!r} has no subscription {name!r}", topic=topic.name, subscription=name
                )
            known = keys.SUBSCRIPTIONS.decode(there.value)
            record: SubscriptionRecord = msgspec.structs.replace(known, epoch=known.epoch + 1)
            revision = await self._coordination.commit(
                [Compare(key, there.revision)], [Put(key, keys.SUBSCRIPTIONS.encode(record))]
            )
            if revision:
                break
        reach("dispatch.epoch")
        cursors = await self._read_cursors(topic, name)
        self._catalog.check(topic)
        self._subscriptions[topic, name] = subscription = Subscription(topic, name, record, revision, cursors)
        return subscription

    async def _read_cursors(self, topic: Topic, name: str) -> dict[int, SegmentCursor]:
        entries, _ = await read_all(self._coordination, keys.CURSORS.prefix(topic.name, topic.record.incarnation, name))
        return {int(keys.CURSORS.parse(e.key)[3]): SegmentCursor(keys.CURSORS.decode(e.value)) for e in entries}

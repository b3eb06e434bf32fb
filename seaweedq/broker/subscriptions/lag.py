"""The lag of a subscription: unacked messages, in all and by segment, their states, and why they are not delivered.

It costs no request a file: sizes come with the store's listing, one request for a thousand files, and are kept; the age
of the oldest message costs the read of its row, which the next pull needs too. Metrics show a `LagSummary`, which
needs no request.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import Literal, TypeAlias

import pyarrow as pa

from seaweedq.broker.read.positions import TopicPositions
from seaweedq.broker.read.readable_segments import ReadableSegments
from seaweedq.broker.subscriptions.dispatcher import Dispatcher
from seaweedq.broker.subscriptions.subscription import Subscription
from seaweedq.broker.subscriptions.window import ACKING, DELAYED, DYING, HELD
from seaweedq.broker.topics.catalog import Topic
from seaweedq.clock import Clock
from seaweedq.concurrency.deadline import Deadline
from seaweedq.concurrency.futures import gather_bounded
from seaweedq.coordination.records import SubscriptionRecord
from seaweedq.errors import BelowRetention, NotOwner

Stall: TypeAlias = Literal["window", "max_in_flight", "paused"]
LAGS = 16  # segments whose lag is measured concurrently
LAG_S, PAUSE_S = 5.0, 0.1


@dataclass(frozen=True, slots=True)
class Backlog:
    """The unacked messages of a segment: `messages` of them between `acked_to` and `end`. Of these `in_flight` are
    leased, `delayed` ones come again later, the dead letters of `dying` ones are being published, and `waiting` ones
    are for the next pull; the acks of the others are on their way. `is_full`: all of the window is delivered."""

    segment: int
    acked_to: int
    end: int
    messages: int
    in_flight: int = 0
    delayed: int = 0
    dying: int = 0
    waiting: int = 0
    is_full: bool = False

    def stalled(self, record: SubscriptionRecord, in_flight: int) -> Stall | None:
        """Returns why no pull gets the waiting messages; `in_flight` counts the subscription's."""
        if not self.waiting:
            return None
        if record.paused:
            return "paused"
        if in_flight >= record.max_in_flight:
            return "max_in_flight"
        return "window" if self.is_full else None


def backlog_of(subscription: Subscription, segment: int, end: int) -> Backlog:
    """Returns the unacked messages of a segment that is not done and ends at `end`."""
    found = subscription.cursors.get(segment)
    if found is None:
        return Backlog(segment, 0, end, end, waiting=end)
    acked_to = found.delivery.window.acked_to
    end = max(end, acked_to)
    messages = _unacked(subscription, segment, end)
    counts = found.delivery.window.counts()
    taken = counts[HELD], counts[DELAYED], counts[DYING]
    waiting = max(0, messages - sum(taken) - counts[ACKING])
    return Backlog(segment, acked_to, end, messages, *taken, waiting, found.delivery.is_full(end))


def _unacked(subscription: Subscription, segment: int, end: int) -> int:
    """Returns how many messages are not acked of a segment that is not done and ends at `end`."""
    found = subscription.cursors.get(segment)
    return max(0, end - found.delivery.window.acked_to - found.delivery.window.acked_count) if found else end


def stalled(segments: Iterable[Stall | None]) -> Stall | None:
    """Returns why a subscription is stalled, by its segments; for several reasons the one that concerns most
    messages."""
    found = set(segments)
    reasons: tuple[Stall, ...] = ("paused", "max_in_flight", "window")
    return next((reason for reason in reasons if reason in found), None)


@dataclass(frozen=True, slots=True)
class LagCounts:
    """The unacked messages of a segment or subscription; `size_bytes` is about their size in memory or files,
    `seconds` the age of the oldest one. `in_flight` ones are leased, `delayed` ones come again later, the dead letters
    of `dying` ones are being published, `waiting` ones are for the next pull; `stalled` is why no pull gets them.
    `skipped`: retention took so many before they were acked."""

    messages: int
    size_bytes: int
    seconds: float
    in_flight: int
    delayed: int
    dying: int
    waiting: int
    stalled: Stall | None
    skipped: int


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag in one segment."""

    segment: int
    acked_to: int
    end_offset: int
    counted: LagCounts


def total(lags: Sequence[Lag], subscription: Subscription) -> LagCounts:
    """Returns the sum of lags, and the age of the oldest message of all. Skipped messages count of segments that are
    done, too."""
    all_ = [lag.counted for lag in lags]
    return LagCounts(
        messages=sum(one.messages for one in all_),
        size_bytes=sum(one.size_bytes for one in all_),
        seconds=max((one.seconds for one in all_), default=0.0),
        in_flight=sum(one.in_flight for one in all_),
        delayed=sum(one.delayed for one in all_),
        dying=sum(one.dying for one in all_),
        waiting=sum(one.waiting for one in all_),
        stalled=stalled(one.stalled for one in all_),
        skipped=subscription.skipped.total(),
    )


@dataclass(frozen=True, slots=True)
class LagSummary:
    """How far a subscription of this dispatcher is behind, as far as ends, sizes and times are known here; the oldest
    message is at least `seconds` old, and rarely much older. `held_up_s` is for how long
    successors have waited for the same message."""

    topic: str
    name: str
    messages: int
    size_bytes: int
    seconds: float
    in_flight: int
    delayed: int
    dying: int
    waiting: int
    stalled: Stall | None
    skipped: int
    consumers: int
    idle_consumers: int
    waiting_pulls: int
    held_up_s: float


class LagMeter:
    """Measures the lag of the subscriptions that this broker dispatches."""

    def __init__(
        self, dispatcher: Dispatcher, readables: ReadableSegments, positions: TopicPositions, clock: Clock
    ) -> None:
        self._dispatcher = dispatcher
        self._readables = readables
        self._positions = positions
        self._clock = clock

    async def measure(self, topic: Topic, subscription: Subscription) -> list[Lag]:
        """Returns the lag in each segment that is not done, also in those that wait for their predecessors, but not in
        those whose record or cursor cannot be read. Raises Unavailable."""
        # NotOwner: a segment is just changing its owner, or is being replaced; BelowRetention: its start has just risen
        deadline = Deadline(self._clock, LAG_S)
        errors = (NotOwner, BelowRetention)
        return await deadline.retry(lambda: self._measure(topic, subscription), errors, topic.signal, PAUSE_S)

    def furthest_behind(self, limit: int) -> list[LagSummary]:
        """Returns so many of the subscriptions that are open here, those with the most unacked messages. Sends no
        request."""
        opened = ((self._messages_behind(one), one) for one in self._dispatcher.subscriptions())
        furthest = nlargest(limit, opened, key=lambda one: (one[0], one[1].topic.name, one[1].name))
        return [self._behind(subscription) for _, subscription in furthest]

    def behind(self) -> int:
        """Returns the unacked messages of all subscriptions that are open here, as far as this broker knows. Sends no
        request."""
        return sum(map(self._messages_behind, self._dispatcher.subscriptions()))

    def _messages_behind(self, subscription: Subscription) -> int:
        return sum(_unacked(subscription, number, end) for number, end in self._ends(subscription))

    def _behind(self, subscription: Subscription) -> LagSummary:
        backlogs = [backlog_of(subscription, number, end) for number, end in self._ends(subscription)]
        weights = [
            self._readables.weigh(subscription.topic, one.segment, one.acked_to) for one in backlogs if one.messages
        ]
        now_us = self._clock.now_us()
        oldest_us = min((came_us for _, came_us in weights if came_us is not None), default=now_us)
        weight = sum(size for size, _ in weights), max(0.0, (now_us - oldest_us) / 1e6)
        return _behind(subscription, backlogs, weight, self._clock.monotonic_s())

    def _ends(self, subscription: Subscription) -> list[tuple[int, int]]:
        left_out = subscription.frontier.done | subscription.frontier.hidden
        ends = self._readables.known_ends(subscription.topic)
        return [(number, end) for number, end in ends.items() if number not in left_out]

    async def _measure(self, topic: Topic, subscription: Subscription) -> list[Lag]:
        positions = await self._positions.positions(topic)
        for number, below in self._readables.start_offsets(topic).items():
            subscription.retire(number, below)
        subscription.advance(self._readables.records(topic))
        done, now_us = subscription.frontier.done, self._clock.now_us()
        done = done | subscription.frontier.hidden
        left = [
            backlog_of(subscription, number, p.end) for number, p in sorted(positions.items()) if number not in done
        ]
        in_flight = subscription.in_flight + subscription.dying
        segments = await self._readables.every(topic, [one.segment for one in left if one.messages])

        async def lag(one: Backlog) -> Lag:
            size, age_s = 0, 0.0
            if segment := segments.get(one.segment):
                pieces = await segment.read(one.acked_to, 1, 1)
                oldest_us = pieces[0][1].column(0)[0].cast(pa.int64()).as_py()
                size, age_s = await segment.size_since(one.acked_to), max(0.0, (now_us - oldest_us) / 1e6)
            counted = LagCounts(
                messages=one.messages,
                size_bytes=size,
                seconds=age_s,
                in_flight=one.in_flight,
                delayed=one.delayed,
                dying=one.dying,
                waiting=one.waiting,
                stalled=one.stalled(subscription.record, in_flight),
                skipped=subscription.skipped[one.segment],
            )
            return Lag(one.segment, one.acked_to, one.end, counted)

        return await gather_bounded(LAGS, lag, left)


def _behind(
    subscription: Subscription, backlogs: Sequence[Backlog], weight: tuple[int, float], now_s: float
) -> LagSummary:
    in_flight = subscription.in_flight
    return LagSummary(
        subscription.topic.name,
        subscription.name,
        messages=sum(one.messages for one in backlogs),
        size_bytes=weight[0],
        seconds=weight[1],
        in_flight=in_flight,
        delayed=sum(one.delayed for one in backlogs),
        dying=sum(one.dying for one in backlogs),
        waiting=sum(one.waiting for one in backlogs),
        stalled=stalled(one.stalled(subscription.record, in_flight + subscription.dying) for one in backlogs),
        skipped=subscription.skipped.total(),
        consumers=subscription.consumers(now_s),
        idle_consumers=subscription.idle_consumers(now_s),
        waiting_pulls=subscription.waiting_pulls(now_s),
        held_up_s=subscription.hold_ups.longest_s(now_s),
    )

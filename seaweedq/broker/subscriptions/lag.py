"""The lag of a subscription: what is not acked yet, in all and by segment.

It costs no request a file: sizes come with the store's listing, one request for a thousand files, and are kept; the age
of the oldest message costs the read of its row, which the next pull needs too. What metrics show (`Behind`) is known
without any request.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nlargest

import pyarrow as pa

from seaweedq.broker.read.remote_reader import ReadableSegments
from seaweedq.broker.read.segment_reader import Readable
from seaweedq.broker.read.topic_positions import TopicPositions
from seaweedq.broker.subscriptions.dispatcher import Dispatcher
from seaweedq.broker.subscriptions.subscription import Backlog, Subscription
from seaweedq.broker.topics.catalog import Topic
from seaweedq.clock import Clock
from seaweedq.concurrency.deadline import Deadline
from seaweedq.concurrency.gather import gather_bounded
from seaweedq.errors import BelowRetention, NotOwner

LAGS = 16  # segments whose lag is measured concurrently
LAG_S, PAUSE_S = 5.0, 0.1


@dataclass(frozen=True, slots=True)
class Lag:
    """The unacked messages of one segment; `size_bytes` is about what they take in memory or files, `seconds` the age
    of the oldest one. `in_flight` of them are leased. `skipped`: retention took so many before they were acked."""

    segment: int
    acked_to: int
    end_offset: int
    messages: int
    size_bytes: int
    seconds: float
    in_flight: int
    skipped: int


@dataclass(frozen=True, slots=True)
class TotalLag:
    """The lag over all segments."""

    messages: int
    size_bytes: int
    seconds: float
    in_flight: int
    skipped: int

    @staticmethod
    def of(lags: Sequence[Lag], subscription: Subscription) -> "TotalLag":
        """Returns the sum of lags, and the age of the oldest message of all. Skipped messages count of segments that
        are done, too."""
        return TotalLag(
            messages=sum(lag.messages for lag in lags),
            size_bytes=sum(lag.size_bytes for lag in lags),
            seconds=max((lag.seconds for lag in lags), default=0.0),
            in_flight=sum(lag.in_flight for lag in lags),
            skipped=subscription.skipped.total(),
        )


@dataclass(frozen=True, slots=True)
class Behind:
    """How far a subscription of this dispatcher is behind, as far as ends are known here."""

    topic: str
    name: str
    messages: int
    in_flight: int
    skipped: int
    consumers: int
    idle_consumers: int


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

    def furthest_behind(self, limit: int) -> list[Behind]:
        """Returns so many of the subscriptions that are open here, those with the most unacked messages. Sends no
        request."""
        opened = ((self._backlog(one), one) for one in self._dispatcher.subscriptions())
        furthest = nlargest(limit, opened, key=lambda one: (one[0], one[1].topic.name, one[1].name))
        now_s = self._clock.monotonic_s()
        return [_behind(subscription, messages, now_s) for messages, subscription in furthest]

    def _backlog(self, subscription: Subscription) -> int:
        left_out = subscription.frontier.done | subscription.frontier.hidden
        ends = self._readables.known_ends(subscription.topic)
        return sum(subscription.backlog(n, end).messages for n, end in ends.items() if n not in left_out)

    async def _measure(self, topic: Topic, subscription: Subscription) -> list[Lag]:
        positions = await self._positions.positions(topic)
        for number, below in self._readables.start_offsets(topic).items():
            subscription.retire(number, below)
        subscription.advance(self._readables.records(topic))
        done, now_us = subscription.frontier.done, self._clock.now_us()
        done = done | subscription.frontier.hidden
        left = [subscription.backlog(number, p.end) for number, p in sorted(positions.items()) if number not in done]
        segments = await self._readables.every(topic, [one.segment for one in left if one.messages])

        async def lag(one: Backlog) -> Lag:
            size, age_s = 0, 0.0
            if segment := segments.get(one.segment):
                size, age_s = await _weigh(segment, one.acked_to, now_us)
            skipped = subscription.skipped[one.segment]
            return Lag(one.segment, one.acked_to, one.end, one.messages, size, age_s, one.in_flight, skipped)

        return await gather_bounded(LAGS, lag, left)


def _behind(subscription: Subscription, messages: int, now_s: float) -> Behind:
    return Behind(
        subscription.topic.name,
        subscription.name,
        messages,
        subscription.in_flight,
        subscription.skipped.total(),
        subscription.consumers(now_s),
        subscription.idle_consumers(now_s),
    )


async def _weigh(segment: Readable, offset: int, now_us: int) -> tuple[int, float]:
    """Returns about how many bytes the rows from `offset` on take, and the age of the first one in seconds."""
    pieces = await segment.read(offset, 1, 1)
    oldest_us = pieces[0][1].column(0)[0].cast(pa.int64()).as_py()
    return await segment.size_since(offset), max(0.0, (now_us - oldest_us) / 1e6)

"""Pulls: one round of the segments that a subscription may read, or rounds until there is something, or the wait ends.

An empty answer says that there was nothing: it comes after the owners of all those segments were asked, and none of a
subscription that was closed meanwhile does.
"""

from seaweedq.broker.context import ClusterView
from seaweedq.broker.read.readable_segments import ReadableSegments
from seaweedq.broker.subscriptions.leases import ANYBODY, Position
from seaweedq.broker.subscriptions.open_subscriptions import OpenSubscriptions
from seaweedq.broker.subscriptions.pull_queue import Waiter
from seaweedq.broker.subscriptions.pull_rounds import Leasing, Pull, PullResult, RoundResult, next_turn
from seaweedq.broker.subscriptions.subscription import Subscription
from seaweedq.broker.topics.catalog import Topic
from seaweedq.concurrency.deadline import Deadline
from seaweedq.errors import NotReady, Unavailable
from seaweedq.segments.trace_headers import note_delivery

PAUSE_S = 0.2  # before a segment that could not be read is tried again


class Pulling:
    """The pulls of the subscriptions that are open here. One insists for `timeout_s` on segments that cannot be
    read."""

    def __init__(
        self,
        view: ClusterView,
        opened: OpenSubscriptions,
        readables: ReadableSegments,
        timeout_s: float,
    ) -> None:
        self._catalog = view.catalog
        self._clock = view.clock
        self._opened = opened
        self._leasing = Leasing(readables, view.clock)
        self._readables = readables
        self._timeout_s = timeout_s
        self._traces = view.traces
        self._closing = False  # pulls do not wait any more
        self.delivered = 0  # messages, each as often as it was delivered

    def close(self) -> None:
        """Lets no pull wait any more."""
        self._closing = True
        for subscription in self._opened.all():
            subscription.queue.wake_all()
            subscription.leases.streams.wake_all()

    async def pull_now(self, topic: Topic, name: str, wanted: Pull) -> PullResult:
        """Leases up to `max_messages` of those that are known to exist. Raises LeaseEnded."""
        return (await self.round(topic, name, wanted)).found

    async def pull(self, topic: Topic, name: str, wanted: Pull) -> PullResult:
        """Leases up to `max_messages`, and waits up to `wait_s` for the first one. An empty answer means that there was
        none: the owners of all segments that the subscription may read were asked. Raises LeaseEnded, Unavailable if
        some did not answer, NeedsNewerBroker if the records or cursors of some cannot be read."""
        poll = Deadline(self._clock, wanted.wait_s)
        deadline = Deadline(self._clock, max(wanted.wait_s, self._timeout_s))
        found, is_first = None, True
        while found is None:
            subscription = await self._opened.open(topic, name)
            if wanted.position and not is_first:  # a round has found that it is held back
                await self._until_free(subscription, wanted.position, poll)
            is_first = False
            consumer = subscription.leases.consumer(wanted.consumer or ANYBODY)
            waits_as = wanted.position.connection if wanted.position else wanted.lease
            with subscription.waiting(consumer, waits_as) as waiter:
                found = await self._wait(subscription, wanted, (poll, deadline), waiter)
                waiter.fed = found is not None and bool(found.messages)
            if subscription.closed and not waiter.fed:
                found = None  # the ends for which owners were asked may have been forgotten with it
        return found

    async def _wait(
        self, subscription: Subscription, wanted: Pull, until: tuple[Deadline, Deadline], waiter: Waiter
    ) -> PullResult | None:
        """As `pull`. Returns None if the subscription was closed, and is open here again, with another room; or
        if a stream is held back, which must not keep the turn of others."""
        topic, name, (poll, deadline) = subscription.topic, subscription.name, until
        asked: set[int] = set()
        unsure: set[int] = set()
        async for attempt in deadline.attempts(waiter):
            result = await self.round(topic, name, wanted)
            if result.found.messages:
                return result.found
            if self._closing and not poll.is_over:  # there may be messages yet, at another broker
                raise NotReady("the broker is stopping; pull again")
            if (subscription.closed or result.held_back) and not poll.is_over:
                return None
            asked &= result.stale  # what was here, or missing, meanwhile is known anew
            unsure = result.missing | (result.stale - asked)
            if unsure:
                if attempt.has_changed and not poll.is_over:
                    continue
                refreshing = self._readables.refresh(topic, unsure)
                asked |= await (refreshing if poll.is_over else waiter.beside(refreshing)) or set()
                unsure = result.missing | (result.stale - asked)
                if attempt.has_changed:
                    continue
            if poll.is_over and not unsure:
                result.check_hidden()
                return result.found
            if unsure and not poll.is_over:
                subscription.queue.arm(PAUSE_S)  # the first one that waits looks, for all
            attempt.pause_s = PAUSE_S if poll.is_over else poll.left_s if result.rows_left else 0.0
        if unsure:
            numbers = sorted(unsure)[:10]
            raise Unavailable(
                f"segments {numbers} of topic {topic.name!r} could not be read within {deadline.time_s:g} s; try again",
                segments=numbers,
            )
        return await self.pull_now(topic, name, wanted)  # the last refresh reported new messages

    async def _until_free(self, subscription: Subscription, position: Position, poll: Deadline) -> None:
        """Waits while a stream is held back: it holds too much. It stands in no queue, in which it would take turns
        for nothing. Each change that may free it wakes it (`Streams.wake_all`, `free`), and so does the next deadline.
        Raises NotOwner, LeaseEnded, NotReady."""
        streams = subscription.leases.streams
        while not poll.is_over and not self._closing:
            subscription.check()
            now_s = self._clock.monotonic_s()
            subscription.expire(list(subscription.cursors), now_s)
            if streams.has_left(position.connection) or next_turn(subscription, position, now_s) is not None:
                return
            left_s = [deadline_s - now_s for deadline_s in subscription.deadlines()]
            await streams.get(position.stream).freed.wait(max(0.001, min([poll.left_s, *left_s])))

    async def round(self, topic: Topic, name: str, wanted: Pull) -> RoundResult:
        """Looks once at all segments that the subscription may read."""
        subscription = await self._opened.open_for_use(topic, name)
        async with subscription.delivering:
            subscription.check()
            begun_us = self._clock.now_us() if self._traces is not None else 0
            shares = subscription.shares.changes
            await self._advance(topic, subscription)
            result = await self._leasing.round(subscription, wanted)
            while not result.found.messages and subscription.has_ended(self._catalog.records(topic)):
                await self._advance(topic, subscription)  # all messages that were left had expired
                if not result.rows_left:
                    break
                result = await self._leasing.round(subscription, wanted, result.rows_left)
            if subscription.shares.changes != shares:
                subscription.queue.event()
            if self._traces is not None and result.found.messages:
                rows = [one.rows for one in result.found.messages]
                note_delivery(self._traces, topic.name, rows, begun_us, subscription=name)
            self.delivered += sum(len(one.offsets) for one in result.found.messages)
            if result.found.name is not None:
                subscription.queue.rearm(result.found.name)
            subscription.arm(self._clock.monotonic_s())
            return result

    async def _advance(self, topic: Topic, subscription: Subscription) -> None:
        """Takes in changes of the topic's segments, and cursors that can be read by now."""
        if subscription.unreadable:
            await self._opened.reread(subscription)
        is_hidden = subscription.is_hidden(self._catalog.unreadable_of(topic))
        if not is_hidden or not subscription.advance(self._catalog.records(topic)):
            await self._catalog.reload_segments(topic)
            subscription.reset_frontier(self._catalog.records(topic), self._catalog.unreadable_of(topic))

"""The answers of consumers: acks, nacks, and extensions of leases, at the dispatcher.

Only acks become durable: each is a frame in the journal, and counts once the journal has it. Nacks and extensions
change soft state alone, at once. A message that was given up is acked by its dispatcher, once its dead letter is
durable (dead_lettering).

For `ack_deadline_s` after it took a subscription over, a dispatcher takes acks by ids of any message of the window:
those whom the dispatcher before gave them to are at work.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from seaweedq.broker.log.group_commit import GroupCommit
from seaweedq.broker.log.intervals import Offsets, distinct, runs_of
from seaweedq.broker.read.readable_segments import CALL_S, PAUSE_S, ReadableSegments
from seaweedq.broker.subscriptions.cursor import SegmentCursor
from seaweedq.broker.subscriptions.delivery import AckResult
from seaweedq.broker.subscriptions.leases import UNKNOWN, Asker, Lease, Position, of_another
from seaweedq.broker.subscriptions.open_subscriptions import OpenSubscriptions
from seaweedq.broker.subscriptions.subscription import Acks, Subscription
from seaweedq.broker.subscriptions.window import Array
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.clock import Clock
from seaweedq.concurrency.deadline import Deadline
from seaweedq.concurrency.futures import Signal
from seaweedq.errors import LeaseEnded, NoDeadLetters, Unavailable
from seaweedq.segments.frames import Frame, FrameKind


@dataclass(frozen=True, slots=True)
class Selection:
    """The messages that a client answers: offsets by segment, all of a lease, or those offsets that the lease holds;
    with `consumer` only those that this consumer had last."""

    ids: Mapping[int, Sequence[int] | Offsets] | None = None
    lease: str | None = None
    consumer: str | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """The terms of a nack: the messages come again after `delay_s`, None is the backoff; or, with `reject`, never: they
    become dead letters. `reason` goes with those that do. Unless they were `attempted` they come again at once, and
    the delivery does not count."""

    delay_s: float | None = None
    reject: bool = False
    reason: str = ""
    attempted: bool = True


@dataclass(slots=True)
class AckOutcome:
    """The result: how many messages were answered, how many of those late, and which are unknown, by segment."""

    known: int = 0
    late: int = 0
    unknown: dict[int, list[int]] = field(default_factory=dict)


class AckHandler:
    """Takes the answers to messages that subscriptions of this broker have leased. It wakes `dying` when some may have
    died."""

    def __init__(
        self,
        catalog: Catalog,
        opened: OpenSubscriptions,
        readables: ReadableSegments,
        commit: GroupCommit,
        clock: Clock,
        dying: Signal,
    ) -> None:
        self._catalog = catalog
        self._opened = opened
        self._readables = readables
        self._commit = commit
        self._clock = clock
        self._dying = dying

    async def ack(self, topic: Topic, name: str, selection: Selection) -> AckOutcome:
        """Acks messages, and returns when they are durable. Raises LeaseEnded, JournalUnavailable, NotReady,
        NeedsNewerBroker, and Unavailable while it is not known whether a segment has an id."""
        subscription = await self._opened.open_for_use(topic, name)
        if selection.ids is None:
            return await self._ack_lease(subscription, self._lease(subscription, selection))
        subscription.check_readable(selection.ids)
        now_s = self._clock.monotonic_s()
        asker = _asker(subscription, selection)
        ends: dict[int, int] = {}
        if now_s < subscription.any_until_s:
            asker = Asker(anything=True)
            ends = await self._ends(subscription, selection.ids)
            subscription.check()
        judged: dict[int, AckResult] = {}
        durable: list[asyncio.Future[int]] = []
        for segment, wanted in selection.ids.items():
            cursor = subscription.cursors.get(segment)
            if cursor is None:
                known = self._catalog.records(subscription.topic).get(segment)
                judged[segment] = subscription.judge_done(known, segment, wanted)
                continue
            cursor.delivery.expire(now_s)
            judged[segment] = result = cursor.delivery.judge(wanted, asker, ends.get(segment, 0))
            if len(result.taken):
                durable.append(self._begin_ack(subscription, segment, cursor, result)[0])
        await self._wait(durable)
        unknown = {segment: result.unknown for segment, result in judged.items() if result.unknown}
        return AckOutcome(sum(one.known for one in judged.values()), sum(one.late for one in judged.values()), unknown)

    async def _ack_lease(self, subscription: Subscription, lease: Lease) -> AckOutcome:
        """Acks all of a lease, messages that it has and that it had last. Those acked before count again. Raises
        LeaseEnded if it has acked nothing, and cannot any more."""
        subscription.check_readable(lease.segments)
        now_s = self._clock.monotonic_s()
        late = again = 0
        durable: list[asyncio.Future[int]] = []
        asker = Asker(lease.consumer, lease.number)
        for segment in sorted(lease.segments):
            if cursor := subscription.cursors.get(segment):
                cursor.delivery.expire(now_s)
                result = cursor.delivery.judge_lease(asker)
                late += result.late
                if len(result.taken):
                    commit, leases = self._begin_ack(subscription, segment, cursor, result)
                    durable.append(commit)
                    if cursor.delivery.leases.has_given_again:
                        again += int((leases != lease.number).sum())
        if not durable and not lease.acked:
            raise _ended(lease.name)
        await self._wait(durable)
        lease.acked += again  # messages under another name of its consumer by now count for that one as well
        return AckOutcome(lease.acked, late)

    async def ack_dead_letters(self, subscription: Subscription, segment: int, dying: Offsets, epoch: int) -> None:
        """Acks messages whose dead letters are durable, as far as they are still dying in this epoch. The caller holds
        `dead_lettering`. Raises NotOwner if this broker does not dispatch them any more; JournalUnavailable, NotReady:
        they go on dying."""
        subscription.check()
        cursor = subscription.cursors.get(segment)
        if cursor is None or subscription.record.epoch != epoch:
            return
        if len(left := cursor.delivery.dead_letters.still_dying(dying)):
            await self._wait([self._begin_ack(subscription, segment, cursor, AckResult(left))[0]])

    async def nack(self, topic: Topic, name: str, selection: Selection, refusal: Refusal | None = None) -> AckOutcome:
        """Ends leases at once: the messages are delivered again, by default after the backoff, or become dead letters.
        A lease of which nothing is held counts its earlier nacks. Raises LeaseEnded, LeaseOfAnother,
        NoDeadLetters, NeedsNewerBroker, NotReady."""
        subscription, refusal = await self._opened.open_for_use(topic, name), refusal or Refusal()
        if refusal.reject and not subscription.has_dead_letters:
            raise NoDeadLetters(
                f"subscription {subscription.name!r} of topic {subscription.topic.name!r} has no "
                "dead_letter_topic for rejected messages; set dead_letter_topic, or nack without "
                "reject",
                topic=subscription.topic.name,
                subscription=subscription.name,
            )
        now_s, answered = self._clock.monotonic_s(), AckOutcome()
        for cursor, held in self._held(subscription, selection, answered):
            subscription.leases.count_nacked(Counter(cursor.delivery.window.values("lease", held).tolist()))
            if not refusal.attempted:
                cursor.delivery.give_back(held)
            elif refusal.reject:
                cursor.delivery.reject(held, now_s, refusal.reason)
            else:
                cursor.delivery.nack(held, now_s, refusal.delay_s, refusal.reason)
        self._dying.wake()
        if answered.known:
            subscription.queue.event()
            subscription.leases.streams.wake_all()
        elif selection.ids is None:
            lease = self._lease(subscription, selection)
            if not lease.nacked:
                raise _ended(lease.name)
            answered.known = lease.nacked
        self._opened.check_lease()
        return answered

    async def leave(self, topic: Topic, name: str, position: Position) -> None:
        """Has a connection of a stream get nothing any more. If it `frees`, all leases of its stream end at once, and
        their messages are delivered again without a delay."""
        self.end_connection(await self._opened.open(topic, name), position)

    def end_connection(self, subscription: Subscription, position: Position) -> None:
        """As `leave`, in an open subscription."""
        now_s = self._clock.monotonic_s()
        subscription.leases.streams.leave(position, now_s)
        if position.frees:
            subscription.expire(list(subscription.cursors), now_s)
            for delivery, offsets, _ in subscription.held_by_stream(position.stream).values():
                delivery.nack(offsets, now_s, 0.0)
            subscription.queue.event()
            subscription.shares.leave(subscription.leases.known_consumer(position.consumer))
        subscription.queue.rearm(position.connection)  # a pull of it may wait
        subscription.leases.streams.wake_all()

    async def extend(
        self, topic: Topic, name: str, selection: Selection, ack_deadline_s: float | None = None
    ) -> AckOutcome:
        """Lets leases end so many seconds from now, None: as many as the subscription gives. Raises LeaseEnded,
        NeedsNewerBroker, NotReady."""
        subscription = await self._opened.open_for_use(topic, name)
        ack_deadline_s = subscription.record.ack_deadline_s if ack_deadline_s is None else ack_deadline_s
        due_s, answered = self._clock.monotonic_s() + ack_deadline_s, AckOutcome()
        for cursor, held in self._held(subscription, selection, answered):
            cursor.delivery.leases.extend(held, due_s)
        if selection.ids is None and not answered.known:
            raise _ended(selection.lease)
        if answered.known:
            subscription.queue.event()  # waiting pulls may have to wake up earlier
        self._opened.check_lease()
        return answered

    def _held(
        self, subscription: Subscription, selection: Selection, answered: AckOutcome
    ) -> Iterator[tuple[SegmentCursor, Offsets]]:
        """Yields the held messages of a selection, and counts them. All are judged before the first one changes."""
        now_s = self._clock.monotonic_s()
        if selection.ids is None:
            lease = self._lease(subscription, selection)
            subscription.check_readable(lease.segments)
            subscription.expire(lease.segments, now_s)
            held = subscription.held_by(lease)
        else:
            subscription.check_readable(selection.ids)
            subscription.expire(selection.ids, now_s)
            held = _held_among(subscription, selection.ids, _asker(subscription, selection), answered)
        answered.known = sum(map(len, held.values()))
        return iter([(subscription.cursors[segment], offsets) for segment, offsets in held.items()])

    def _lease(self, subscription: Subscription, selection: Selection) -> Lease:
        lease = subscription.leases.find(selection.lease) if selection.lease else None
        if lease is None:
            raise _ended(selection.lease)
        if selection.consumer is not None and lease.consumer != subscription.leases.known_consumer(selection.consumer):
            raise of_another(lease.name, selection.consumer)
        return lease

    def _begin_ack(
        self, subscription: Subscription, segment: int, cursor: SegmentCursor, result: AckResult
    ) -> tuple[asyncio.Future[int], Array]:
        """Journals acks. They count, and pin their commit, once the journal has them, and before it can be released
        (broker/log/group_commit). Returns their commit, and the lease of each message whose ack was not on its way."""
        topic, taken = subscription.topic, result.taken
        leases = cursor.delivery.begin_ack(taken)
        is_one = len(leases) > 0 and (leases == leases[0]).all()  # to look is faster than to count
        counts = {int(leases[0]): len(leases)} if is_one else Counter[int](leases.tolist())

        def end(commit: asyncio.Future[int]) -> None:
            is_durable = not commit.cancelled() and commit.exception() is None
            cursor.delivery.end_ack(taken, is_durable)
            if is_durable:
                cursor.pin_at(commit.result())
                subscription.leases.count_acked(counts)
            if result.late or not is_durable:  # messages that came back may have held back any stream
                subscription.leases.streams.wake_all()
            if not is_durable or self._may_feed(subscription, segment, cursor):
                subscription.queue.event()

        acks = Acks(subscription.name, topic.record.incarnation, subscription.record.epoch, tuple(runs_of(taken)))
        payload = msgspec.msgpack.encode(acks)
        frame = Frame(FrameKind.ACKS, topic.name, segment, 0, 0, 0, 0, (), self._clock.now_us(), payload)
        commit = self._commit.append_frame(frame)
        commit.add_done_callback(end)
        return commit, leases

    def _may_feed(self, subscription: Subscription, segment: int, cursor: SegmentCursor) -> bool:
        """Tells whether an ack may make messages available: of its segment, of others if too many were in flight, or
        of successors. A later message is an event of its own, and mostly all messages were delivered."""
        if subscription.full:
            return True
        topic = subscription.topic
        opened = topic.opened.get(segment)
        if opened is not None and opened.closed is None:
            is_drained = cursor.delivery.is_drained(opened.end)
        else:
            end = self._readables.known_end(topic, segment)
            is_drained = end is not None and cursor.delivery.is_drained(end)
        return not is_drained or subscription.has_ended(self._catalog.records(topic))

    async def _wait(self, durable: list[asyncio.Future[int]]) -> None:
        if durable:
            await asyncio.gather(*map(asyncio.shield, durable))
            self._commit.check_lease()
        else:
            self._opened.check_lease()

    async def _ends(self, subscription: Subscription, ids: Mapping[int, Sequence[int] | Offsets]) -> dict[int, int]:
        """Returns the ends of the segments that are open to a subscription, which get a cursor if they have none. The
        owner of a segment is asked if an id is not below the end that is known here; a segment that moves, or whose
        broker is dead, is waited for. Raises Unavailable."""
        topic = subscription.topic
        async for attempt in Deadline(self._clock, CALL_S).attempts(topic.moved, PAUSE_S):
            subscription.check()
            numbers = tuple(number for number in ids if number in subscription.frontier.open)
            ends = await self._known_ends(topic, numbers, ids)
            if unsure := set(numbers) - ends.keys():
                asked = await self._readables.refresh(topic, unsure)
                ends = await self._known_ends(topic, numbers, ids, asked)
            if not (left := sorted(set(numbers) - ends.keys())[:10]):
                break
            if attempt.is_last():
                raise Unavailable(f"the ends of segments {left} are not known yet; try again", segments=left)
        for number in ends:
            if number in subscription.frontier.open:
                subscription.cursor(number)
        return ends

    async def _known_ends(
        self,
        topic: Topic,
        numbers: Collection[int],
        ids: Mapping[int, Sequence[int] | Offsets],
        asked: Collection[int] = (),
    ) -> dict[int, int]:
        segments, _ = await self._readables.available(topic, numbers)
        return {
            one.id: one.end
            for one in segments
            if one.certain or one.id in asked or max(ids[one.id], default=-1) < one.end
        }


def _ended(lease: str | None) -> LeaseEnded:
    return LeaseEnded(
        f"lease {lease!r} has ended, or another broker granted it; the lease's unacked messages are delivered again",
        lease=lease,
    )


def _asker(subscription: Subscription, selection: Selection) -> Asker:
    """Returns the numbers of a selection's consumer and lease. A lease that is not known, or is another consumer's,
    holds nothing."""
    leases = subscription.leases
    consumer = None if selection.consumer is None else leases.known_consumer(selection.consumer)
    if selection.lease is None:
        return Asker(consumer)
    lease = leases.find(selection.lease)
    if lease is None or consumer not in (None, lease.consumer):
        return Asker(consumer, UNKNOWN)
    return Asker(lease.consumer, lease.number)


def _held_among(
    subscription: Subscription, ids: Mapping[int, Sequence[int] | Offsets], asker: Asker, answered: AckOutcome
) -> dict[int, Offsets]:
    held: dict[int, Offsets] = {}
    for segment, wanted in ids.items():
        offsets = distinct(wanted)
        if cursor := subscription.cursors.get(segment):
            held[segment] = cursor.delivery.leases.held_among(offsets, asker)
        others = np.setdiff1d(offsets, held[segment]) if segment in held else offsets
        if len(others):
            answered.unknown[segment] = others.tolist()
    return {segment: offsets for segment, offsets in held.items() if len(offsets)}

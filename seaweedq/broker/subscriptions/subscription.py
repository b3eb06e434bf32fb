"""A subscription at its dispatcher: the delivery of each segment, and the state of its cursors.

An ack is a frame in the journal. Coordination gets a checkpoint of the cursors now and then, and the frames may go only
after that: `pin` is the oldest commit with acks that the last checkpoint does not have.

A segment holds up others once it is sealed, and something of it was delivered: in `ordered` and `keyed` its successors
wait until all of it is acked. One message that is never acked holds up all of them, and nothing else shows it: the
consumers get nothing, and the lag only rises. The sweeps notice it (`HoldUps`), and remember it softly.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from seaweedq.broker.log.intervals import Offsets, Run, distinct
from seaweedq.broker.read.readable_segments import Readable
from seaweedq.broker.subscriptions.cursor import SegmentCursor
from seaweedq.broker.subscriptions.delivery import AckResult, SegmentDelivery
from seaweedq.broker.subscriptions.frontier import Frontier
from seaweedq.broker.subscriptions.leases import Lease, Leases
from seaweedq.broker.subscriptions.policy import Rules
from seaweedq.broker.subscriptions.pull_queue import ALL, PullQueue, RemotePulls, Waiter
from seaweedq.broker.subscriptions.shares import SegmentShares
from seaweedq.broker.subscriptions.window import DYING, HELD, NOBODY, Array
from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.topics.segment_index import Records
from seaweedq.coordination.records import CursorRecord, SegmentRecord, SubscriptionRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import NeedsNewerBroker, NotOwner

HELD_UP_S = 60.0  # with the same first unacked message, before the log warns of it; at least three deadlines
logger = logging.getLogger(__name__)
REARM_S = 4.0  # of waiting pulls: ends at other brokers are followed only as long as some pull asks


# By segment: the messages that a stream holds, and the lease of each.
StreamHolds = dict[int, tuple[SegmentDelivery, Offsets, Array]]


class HoldUps:
    """Since when each segment of a subscription that holds up others has had the same first unacked message."""

    def __init__(self) -> None:
        self._since: dict[int, tuple[int, float]] = {}
        self._warned: set[tuple[int, int]] = set()

    def update(self, acked_to: Mapping[int, int], now_s: float, patience_s: float) -> list[tuple[int, int]]:
        """Takes in the first unacked offsets of the segments that hold up others now. Returns those, as segment and
        offset, that have been the same for `patience_s` and were not returned before."""
        known, self._since = self._since, {}
        for segment, offset in acked_to.items():
            before = known.get(segment)
            self._since[segment] = before if before and before[0] == offset else (offset, now_s)
        long = {(segment, at) for segment, (at, since_s) in self._since.items() if now_s - since_s >= patience_s}
        new = sorted(long - self._warned)
        self._warned = long
        return new

    def longest_s(self, now_s: float) -> float:
        """Returns the longest time for which a first unacked message has been the same, 0 without any (seconds)."""
        return max((now_s - since_s for _, since_s in self._since.values()), default=0.0)


def warn(topic: str, subscription: str, found: list[tuple[int, int]]) -> None:
    """Logs that successors wait for these messages."""
    for segment, offset in found[:10]:
        logger.warning(
            "subscription %s of topic %s has waited for an ack of message %d-%d for more than a minute; until that "
            "ack, the subscription cannot deliver messages of the segments that replaced the message's segment; ack "
            "the message, or set max_attempts so that the message becomes a dead letter",
            subscription,
            topic,
            segment,
            offset,
        )


class Acks(msgspec.Struct, frozen=True, array_like=True):
    """The payload of an ack frame: acked runs of one segment. It counts only for the subscription's `epoch`."""

    subscription: str
    incarnation: int
    epoch: int
    runs: tuple[Run, ...]


class DispatchTerm:
    """The time for which a broker dispatches a subscription, over seeks."""


@dataclass(frozen=True, slots=True)
class SeekResult:
    """The outcome of the seek `key`: for each segment that it moved the offset before and behind it, and which of them
    were `moved` up, since retention had taken the wanted messages. Without segments: another dispatcher has answered
    it."""

    key: str
    segments: Sequence[tuple[int, int, int]] = ()
    moved: Sequence[int] = ()


class Subscription:
    """One subscription of one topic, open at its dispatcher. Leases are given under `delivering`, cursors are written
    under `saving`, dead letters are on their way under `dead_lettering`; once `closed` is set nothing is leased or
    acked any more. `cursors` are those of segments that are not done.

    `unreadable` are the segments whose cursors in coordination cannot be read: they are not delivered, and nothing is
    written in the place of those cursors. One that became so meanwhile keeps its state here, and pins its acks.
    """

    def __init__(
        self,
        topic: Topic,
        name: str,
        held: Versioned[SubscriptionRecord],
        cursors: dict[int, SegmentCursor],
        records: Records = MappingProxyType({}),
        unreadable: Iterable[int] = (),
    ) -> None:
        self.topic = topic
        self.name = name
        self.held = held
        self.term = DispatchTerm()
        self.cursors = cursors
        self.leases = Leases()
        self.shares = SegmentShares()
        self.remote_pulls = RemotePulls()
        self.queue = PullQueue(lambda: None)
        self.unreadable = set(unreadable)
        self.frontier = Frontier(records, self.acked_to, hidden=self.unreadable, in_order=self._in_order)
        for number in self.frontier.done & cursors.keys():
            del cursors[number]  # coordination has it as it was read
        self.delivering = asyncio.Lock()
        self.saving = asyncio.Lock()
        self.dead_lettering = asyncio.Lock()
        self.closed: NotOwner | None = None
        self.in_doubt = False  # the outcome of a change of its record is unknown, until that is read again
        self.blocked: NeedsNewerBroker | None = None  # its record cannot be read any more
        self.reread_s = 0.0  # monotonic: when cursors that cannot be read are due to be read again
        self.any_until_s = 0.0  # monotonic: acks by ids of messages that the dispatcher before delivered are taken
        self.used_s = self.recorded_s = float("-inf")  # monotonic: the last use, and the last one that the record says
        self.full = False  # the last round gave nothing, since too many messages were in flight
        self.has_dead_letters = held.record.dead_letter_topic is not None  # messages may be rejected
        self.last_seek: SeekResult | None = None
        self.skipped: Counter[int] = Counter()  # by segment: messages that retention took before they were acked
        self.risen = -1  # of the topic's risen starts, those that it has followed
        self.hold_ups = HoldUps()
        self._turn = 0
        self._warned = False  # of consumers that get nothing

    @property
    def pin(self) -> int | None:
        """The oldest commit that must stay because of acks."""
        return min((c.pin for c in self.cursors.values() if c.pin is not None), default=None)

    @property
    def _in_order(self) -> bool:
        return self.record.mode != "shared"

    @property
    def held(self) -> Versioned[SubscriptionRecord]:
        """Its record as this broker took it, with its revision; `record` is without."""
        return self._held

    @held.setter
    def held(self, held: Versioned[SubscriptionRecord]) -> None:
        self._held, self.record = held, held.record

    def close(self, why: str) -> None:
        """Leases and acks nothing any more. Pulls that wait are told."""
        self.closed = NotOwner(why)
        self.queue.wake_all()
        self.leases.streams.wake_all()

    def check(self) -> None:
        """Raises the error that closed the subscription, or blocks it."""
        if error := self.closed or self.blocked:
            raise error

    def check_readable(self, segments: Iterable[int]) -> None:
        """Raises NeedsNewerBroker if the record or the cursor of one of these segments cannot be read."""
        if hidden := sorted((self.frontier.hidden | self.unreadable).intersection(segments)):
            raise NeedsNewerBroker(
                f"this broker cannot read the coordination records of segments {hidden[:10]}, or the subscription's "
                "cursors for these segments; start a newer version of the broker",
                topic=self.topic.name,
                subscription=self.name,
                segments=hidden[:10],
            )

    def cursor(self, segment: int) -> SegmentCursor:
        """Returns the cursor of a segment; a new one begins at the segment's start."""
        found = self.cursors.get(segment)
        if found is None:
            new = Versioned.new(CursorRecord(self.record.epoch, 0))
            found = self.cursors[segment] = SegmentCursor(new, rules_of(self.record), self.leases)
        return found

    def acked_to(self, segment: int) -> int:
        """Returns the offset below which everything is acked, in a segment that is not done."""
        found = self.cursors.get(segment)
        return found.delivery.window.acked_to if found else 0

    def stands_at(self, segment: int, end: int) -> int:
        """Returns the offset below which everything is acked, in any segment that ends at `end`."""
        return end if segment in self.frontier.done else self.acked_to(segment)

    def result_of_seek(self, key: str) -> SeekResult | None:
        """Returns the outcome of a seek of this name, None if there was none."""
        if self.record.seek is None or key not in self.record.seek.ids:
            return None
        return self.last_seek if self.last_seek and self.last_seek.key == key else SeekResult(key)

    def retire(self, segment: int, below: int) -> None:
        """Moves a cursor up over removed messages, unless the segment is done, or its cursor cannot be
        read."""
        fixed = segment in self.frontier.done or segment in self.frontier.hidden | self.unreadable
        if segment in self.topic.removed and segment not in self.cursors:
            return  # its cursor went with it
        if not fixed and below > self.acked_to(segment):
            self.skipped[segment] += self.cursor(segment).delivery.window.retire(below)
            self.leases.streams.wake_all()  # perhaps one held that

    def forget(self, removed: Collection[int]) -> None:
        """Forgets the cursors of segments that retention has removed."""
        for number in self.cursors.keys() & removed:
            del self.cursors[number]

    def judge_done(self, known: Versioned[SegmentRecord] | None, segment: int, offsets: Iterable[int]) -> AckResult:
        """Judges an ack in a segment that has no cursor here and has this record and revision: in a done segment
        everything is acked, in another one nothing was delivered."""
        end = known.record.end_offset if known and segment in self.frontier.done else 0
        wanted = distinct(offsets)
        unknown = wanted[wanted >= (end or 0)].tolist()
        return AckResult(known=len(wanted) - len(unknown), unknown=unknown)

    def advance(self, records: Records) -> bool:
        """Takes in new acks and seals. Returns False if not all records are known: then the caller reads them, and
        calls `reset_frontier`."""
        return self.frontier.advance(records, self.acked_to)

    def has_ended(self, records: Records) -> bool:
        """Whether `advance` would change anything."""
        return self.frontier.has_ended(records, self.acked_to)

    def is_hidden(self, unreadable: Collection[int]) -> bool:
        """Tells whether the frontier leaves out just the unreadable ones of now: these segments, and own cursors."""
        if not (unreadable or self.unreadable or self.frontier.hidden):
            return True
        return self.frontier.hidden == {*unreadable, *self.unreadable} - self.frontier.done

    def reset_frontier(self, records: Records, unreadable: Iterable[int] = ()) -> None:
        """Makes a frontier from all records that exist; those of `unreadable` segments cannot be read."""
        self.frontier = Frontier(
            records, self.acked_to, self.frontier.done, {*unreadable, *self.unreadable}, self._in_order
        )

    def forget_done(self) -> None:
        """Forgets the cursors of done segments, as far as a checkpoint has them."""
        for number in [number for number in self.cursors if number in self.frontier.done]:
            if self.cursors[number].changed(self.record.epoch) is None:
                del self.cursors[number]

    @property
    def outstanding(self) -> int:
        """Returns how many messages are leased, or given up and not acked yet."""
        count = 0
        for cursor in self.cursors.values():
            delivery = cursor.delivery
            count += delivery.window.count(HELD)
            if delivery.dead_letters:
                count += delivery.window.count(DYING)
        return count

    @property
    def in_flight(self) -> int:
        """Returns how many messages are leased."""
        return sum(cursor.delivery.window.count(HELD) for cursor in self.cursors.values())

    @property
    def dying(self) -> int:
        """Returns how many messages are given up, and not acked yet."""
        return sum(
            cursor.delivery.window.count(DYING) for cursor in self.cursors.values() if cursor.delivery.dead_letters
        )

    def due_dead_letters(self, now_s: float) -> dict[int, Offsets]:
        """Returns the messages that are dying, and whose dead letters are to be published now, by segment."""
        due: dict[int, Offsets] = {}
        for number, cursor in self.cursors.items():
            cursor.delivery.expire(now_s)
            if cursor.delivery.dead_letters and len(offsets := cursor.delivery.dead_letters.due(now_s)):
                due[number] = offsets
        return due

    def expire(self, segments: Iterable[int], now_s: float) -> None:
        """Ends the leases of these segments whose time is over."""
        for number in segments:
            if cursor := self.cursors.get(number):
                cursor.delivery.expire(now_s)

    def held_by(self, lease: Lease) -> dict[int, Offsets]:
        """Returns the offsets that a lease still holds, by segment."""
        cursors = {number: cursor for number in lease.segments if (cursor := self.cursors.get(number))}
        held = {number: cursor.delivery.leases.held_by(lease.number) for number, cursor in cursors.items()}
        return {number: offsets for number, offsets in held.items() if len(offsets)}

    def held_by_stream(self, stream: str) -> StreamHolds:
        """Returns the offsets that a stream holds, by segment."""
        leases = self.leases.streams.get(stream)
        found: StreamHolds = {}
        if not leases.serials:
            return found
        for segment, cursor in self.cursors.items():
            if cursor.delivery.window.is_idle:
                continue
            offsets, numbers = cursor.delivery.leases.held()
            mine = leases.mine(numbers)
            if mine.any():
                found[segment] = cursor.delivery, offsets[mine], numbers[mine]
        return found

    def give_again(self, consumer: int) -> None:
        """Lets a consumer that has come back get the messages that it holds again, before anything else."""
        again = [
            cursor.delivery.give_again(consumer)
            for cursor in self.cursors.values()
            if not cursor.delivery.window.is_idle
        ]
        if any(again):
            self.queue.event()
            self.leases.streams.wake_all()

    def sweep(self, now_s: float, records: Records = MappingProxyType({})) -> None:
        """Forgets the leases that ended long ago, and warns of hold-ups that nobody would see."""
        held, consumers = set[int](), set[int]()
        holding_up = dict[int, int]()
        for number, cursor in self.cursors.items():
            if cursor.delivery.window.is_idle:
                continue
            cursor.delivery.expire(now_s)
            held |= cursor.delivery.leases.holders()
            consumers |= cursor.delivery.window.numbers("consumer")
            known = records.get(number)
            if (
                self._in_order and number in self.frontier.open and known and known.record.successors
            ):  # they wait for it
                holding_up[number] = cursor.delivery.window.acked_to
        self.leases.sweep(held, consumers | self.shares.active(now_s), now_s, self.record.ack_deadline_s)
        self._warn_of_idle(self.idle_consumers(now_s))
        patience_s = max(HELD_UP_S, 3 * self.record.ack_deadline_s)
        warn(self.topic.name, self.name, self.hold_ups.update(holding_up, now_s, patience_s))

    def _warn_of_idle(self, idle: int) -> None:
        """Logs once that some consumers get nothing, until all get something again."""
        if idle and not self._warned:
            logger.warning(
                "subscription %s of topic %s has %d more consumers than segments, so the extra consumers "
                "receive nothing: in mode ordered, only one consumer at a time receives messages of "
                "a segment; use mode keyed or shared, or give the topic more segments",
                self.name,
                self.topic.name,
                idle,
            )
        self._warned = idle > 0

    def share_of(self, consumer: int, now_s: float) -> Collection[int]:
        """Returns the open segments that a consumer gets messages of, now that it pulls. Leases that are over by then
        have ended."""
        if self.record.mode != "ordered":
            self.shares.pulls(consumer, now_s)
            return self.frontier.open
        return self.shares.share_of(consumer, self.frontier.open, self._holders(), now_s)

    def _holders(self) -> dict[int, int]:
        """Returns the consumers of the open segments that have leased or delayed messages."""
        holders: dict[int, int] = {}
        for number in self.frontier.open:
            cursor = self.cursors.get(number)
            if cursor and (holder := cursor.delivery.leases.consumer()) != NOBODY:
                holders[number] = holder
        return holders

    def consumers(self, now_s: float) -> int:
        """Returns how many consumers there are: they wait, here or at another broker, pulled lately, or hold
        messages."""
        here = self.shares.active(now_s).union(
            *(cursor.delivery.leases.consumers() for cursor in self.cursors.values())
        )
        return len(here) + sum(
            self.leases.known_consumer(name) not in here for name in self.remote_pulls.consumers(now_s)
        )

    def waiting_pulls(self, now_s: float) -> int:
        """Returns how many pulls wait for messages, here or at another broker; those that other brokers have handed on
        wait here."""
        return len(self.queue) + self.remote_pulls.pulls(now_s)

    def idle_consumers(self, now_s: float) -> int:
        """Returns how many consumers get nothing, since there are more of them than open segments."""
        if self.record.mode != "ordered" or not self.shares.active(now_s):
            return 0
        return max(0, self.consumers(now_s) - max(1, len(self.frontier.open)))

    @contextmanager
    def changing_to(self, record: SubscriptionRecord) -> Iterator[None]:
        """Lets nothing die while a change is written that takes away the topic for dead letters; if its outcome is
        unknown, until the record is read again: messages that died meanwhile would have no topic."""
        self.has_dead_letters = record.dead_letter_topic is not None
        if not self.has_dead_letters:
            self._follow(rules_of(record))
        try:
            yield
        except NotOwner:
            self.set_rules()
            raise
        except BaseException:
            self.in_doubt = True
            if self.has_dead_letters:
                self.set_rules()
            raise
        self.set_rules()

    def set_rules(self) -> None:
        """Has all segments follow the settings that the record has by now. Messages that were delivered too often by
        now die."""
        self.has_dead_letters = self.record.dead_letter_topic is not None
        self._follow(rules_of(self.record))

    def _follow(self, rules: Rules) -> None:
        for cursor in self.cursors.values():
            if cursor.delivery.rules != rules:
                cursor.delivery.rules = rules
                cursor.delivery.hold_last(due_s=0)
        self.leases.streams.wake_all()  # messages that held one back may die now

    def deadlines(self) -> list[float]:
        """Returns the times at which leases end (monotonic seconds); at least the next one of each segment."""
        cursors = [self.cursors[number] for number in self.frontier.open if number in self.cursors]
        return [deadline for cursor in cursors if (deadline := cursor.delivery.leases.next_deadline()) is not None]

    def sharers(self, now_s: float) -> Collection[int] | None:
        """Returns the consumers that have a share of the segments in `ordered`; None if all may get any message."""
        if self.record.mode != "ordered":
            return None
        self.expire(self.frontier.open, now_s)
        shares = self.shares.shares(self.frontier.open, self._holders(), now_s)
        return dict.fromkeys(shares.values())

    @contextmanager
    def waiting(self, consumer: int, name: str | None) -> Iterator[Waiter]:
        """Gives a pull that waits its place in the queue, under the name of its lease or connection."""
        lane = consumer if self.record.mode == "ordered" else ALL
        with self.shares.waiting(consumer), self.queue.join(self.topic.signal, lane, name) as waiter:
            yield waiter

    def arm(self, now_s: float) -> None:
        """Has waiting pulls look when the next lease or delay ends, or segments of another consumer may become
        free."""
        if not len(self.queue):
            return
        turn_s = self.shares.next_change_s() if self.record.mode == "ordered" else None
        times_s = [now_s + REARM_S, *self.deadlines(), *([] if turn_s is None else [turn_s])]
        self.queue.arm(max(0.001, min(times_s) - now_s))

    def rotate(self, segments: Sequence[Readable]) -> list[Readable]:
        """Returns the segments, beginning with another one each time, so that none starves."""
        self._turn = (self._turn + 1) % max(1, len(segments))
        return [*segments[self._turn :], *segments[: self._turn]]


def rules_of(record: SubscriptionRecord) -> Rules:
    """Returns the rules of delivery that the configuration of a subscription has."""
    return Rules(record.mode, record.backoff_s, record.max_attempts, record.filter is not None)

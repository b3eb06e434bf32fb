"""The dispatcher of subscriptions: delivers messages, takes acks, and hands a subscription over to another broker.

An ack is a frame in the journal. A checkpoint (cursor_store) comes before the release of those frames, and is
written every `checkpoint_s` for what has changed. A crash in between leaves the frames, which recovery replays.

Order of a handover: 0. dead letters on their way become durable, and are acked; 1. no more leases and acks, waiting
requests are redirected; 2. the acks under way become durable; 3. a checkpoint of everything, leases too, so that no
message is delivered twice; 4. the record names no dispatcher; 5. this broker forgets it. A crash before 4 is the death
of a dispatcher whose journal holds nothing of this subscription; a crash after 4 has no effect.

Order of a seek, which begins a new epoch: 1. to 3. as above, but leases end: all acks of the old epoch are in cursors,
so those of segments that stay are kept; 4. the record says the epoch and the plan; from here on the seek has happened;
5. the cursors of the epoch are written, and then the record without the plan; 6. the subscription is opened anew. A
crash behind 4 leaves 5 to the next dispatcher, before it opens the subscription.

A living dispatcher hands subscriptions over when it is about to leave, and when another broker is the preferred one.
The second is only about balance, so it waits until the brokers have been the same for a while. A handover that fails is
tried again; a broker that leaves gives up those that take too long, and others take them over after its death.
"""

import asyncio
import logging
from typing import NamedTuple

from msgspec.structs import replace

from seaweedq.broker.context import ClusterView
from seaweedq.broker.log.group_commit import GroupCommit
from seaweedq.broker.log.intervals import Offsets
from seaweedq.broker.read.readable_segments import ReadableSegments
from seaweedq.broker.subscriptions.acking import AckHandler, AckOutcome, Refusal, Selection
from seaweedq.broker.subscriptions.assignment import Assignment
from seaweedq.broker.subscriptions.cursor_store import CursorStore
from seaweedq.broker.subscriptions.delivery import DeadLetterBatch
from seaweedq.broker.subscriptions.leases import Position
from seaweedq.broker.subscriptions.open_subscriptions import OpenSubscriptions
from seaweedq.broker.subscriptions.pulling import Leasing, Pulling
from seaweedq.broker.subscriptions.subscription import Subscription
from seaweedq.broker.topics.catalog import Topic
from seaweedq.clock import Clock
from seaweedq.concurrency.gather import gather_bounded
from seaweedq.concurrency.signal import Signal
from seaweedq.coordination.membership import Membership
from seaweedq.coordination.records import SeekRecord, SubscriptionRecord
from seaweedq.errors import NeedsNewerBroker, NotOwner, SeaweedqError, Unavailable
from seaweedq.failpoints import reach

SEEK_NAMES = 16  # of the last seeks that are remembered
TICK_S = 0.5  # between two looks for subscriptions that other brokers are preferred for
SETTLED_S = 2.0  # for so long a broker is preferred before it gets one
GIVERS = 8  # handovers at a time
logger = logging.getLogger(__name__)


class SeekTarget(NamedTuple):
    """Where a seek goes: its plan (coordination/packed_forms), and a digest of what was asked for."""

    plan: str
    digest: str


class Dispatcher:
    """The subscriptions that this broker dispatches. A pull insists for `timeout_s` on segments that cannot be read."""

    def __init__(
        self,
        view: ClusterView,
        assignment: Assignment,
        cursors: CursorStore,
        readables: ReadableSegments,
        commit: GroupCommit,
        timeout_s: float,
    ) -> None:
        self._catalog = view.catalog
        self._assignment = assignment
        self._cursors = cursors
        self._commit = commit
        self._clock = view.clock
        self._opened = OpenSubscriptions(view, assignment, cursors, readables)
        self._acks = AckHandler(view.catalog, readables, commit, view.clock)
        leasing = Leasing(view.catalog, readables, cursors, view.clock)
        self._pulling = Pulling(view, self._opened, leasing, readables, timeout_s)
        self.dying = Signal()  # something may have died
        self.open, self.changing, self.forget = self._opened.open, self._opened.changing, self._opened.forget
        self.names, self.subscriptions, self.has = self._opened.names, self._opened.all, self._opened.has
        self.pull_now, self.pull, self.close = self._pulling.pull_now, self._pulling.pull, self._pulling.close

    @property
    def pin(self) -> int | None:
        """The oldest commit that must stay because of acks that no checkpoint has."""
        return min((s.pin for s in self.subscriptions() if s.pin is not None), default=None)

    def used(self, record: SubscriptionRecord) -> SubscriptionRecord:
        """Returns a record with the time of a use, as it is changed now."""
        return replace(record, used_us=self._clock.now_us() if record.expires_after_s else 0)

    async def hand_over(self, topic: Topic, name: str) -> None:
        """Hands a subscription over. Raises Unavailable: then this broker still dispatches it, or has forgotten it."""
        async with self.changing(topic, name):
            subscription = self._opened.find(topic, name)
            if subscription is None:
                return
            why = f"subscription {name!r} is being handed to another broker"
            saved = await self._write_all(subscription, why, self._clock.monotonic_s())
            try:
                if saved:
                    await self._assignment.release(topic, name, subscription.held)
            finally:
                self.forget(topic, name)

    async def seek(self, topic: Topic, name: str, key: str, sought: SeekTarget) -> tuple[Subscription, Subscription]:
        """Begins a new epoch as a plan says, unless the seek of this name has. Returns the subscription as it was,
        which is closed, and as it is. Raises NotOwner where it was changed meanwhile: then try again."""
        async with self.changing(topic, name):
            before = await self._opened.take(topic, name)
            before.check()
            if before.sought_as(key):
                return before, before
            before.check_readable(before.frontier.hidden | before.unreadable)
            if not await self._write_all(before, f"subscription {name!r} is just being sought; try again"):
                self.forget(topic, name)
                raise NotOwner(f"subscription {name!r} is no longer dispatched by this broker")
            new = before.held.with_record(self.used(_sought(before.record, key, sought)))
            try:
                reach("seek.begin")
                held = await self._assignment.claim(topic, name, new, before.held, rewinds=True)
                reach("seek.begun")
            finally:
                self._opened.drop(topic, name)  # where the outcome is unknown, the record tells it
            after = await self._opened.open_held(topic, name, held)
            after.term = before.term
            after.leases.remember(before.leases, self._clock.monotonic_s() + after.record.ack_deadline_s)
            return before, after

    async def _write_all(self, subscription: Subscription, why: str, handover_s: float | None = None) -> bool:
        """Closes a subscription, and writes a checkpoint of everything. Returns False where another broker dispatches
        by now. Where it fails the subscription is open again."""
        async with subscription.dead_lettering:
            subscription.close(why)
        try:
            async with subscription.delivering:
                await self._commit.wait_until_idle()
                return await self._cursors.save(subscription, handover_s, is_last=True)
        except BaseException:
            subscription.closed = None
            raise

    async def ack(self, topic: Topic, name: str, selection: Selection) -> AckOutcome:
        """Acks messages, and returns when they are durable. Raises LeaseEnded, JournalUnavailable, NotReady,
        NeedsNewerBroker."""
        return await self._acks.ack(await self._opened.open_for_use(topic, name), selection)

    async def nack(self, topic: Topic, name: str, selection: Selection, refusal: Refusal | None = None) -> AckOutcome:
        """Ends leases: the messages are delivered again, by default after the backoff, or become dead letters. Raises
        LeaseEnded, NoDeadLetters, NeedsNewerBroker."""
        answered = self._acks.nack(await self._opened.open_for_use(topic, name), selection, refusal or Refusal())
        self.dying.wake()
        return answered

    async def ack_dead_letters(self, subscription: Subscription, segment: int, dying: Offsets, epoch: int) -> None:
        """Acks messages whose dead letters are durable, as far as they are still dying in this epoch. The caller holds
        `dead_lettering`. Raises NotOwner if this broker does not dispatch them any more, JournalUnavailable,
        NotReady."""
        subscription.check()
        cursor = subscription.cursors.get(segment)
        if cursor is None or subscription.record.epoch != epoch:
            return
        if len(left := cursor.delivery.dead_letters.still(dying)):
            await self._acks.ack_dead_letters(subscription, segment, cursor, left)

    async def record_dead_letters(self, subscription: Subscription, segment: int, sent: DeadLetterBatch) -> None:
        """Has the cursor of a segment say which dead letters may be published from now on. The caller holds
        `dead_lettering`. Raises NotOwner if this broker does not dispatch them any more, Unavailable if that cannot be
        written."""
        saved = await self._cursors.save(subscription)
        if not saved and self._opened.is_here(subscription):
            self.forget(subscription.topic, subscription.name)
        subscription.check()
        cursor = subscription.cursors.get(segment)
        if cursor is None or not cursor.says(sent):
            raise Unavailable(f"the cursor of segment {segment} cannot be written now, so its dead letters wait")

    async def extend(
        self, topic: Topic, name: str, selection: Selection, ack_deadline_s: float | None = None
    ) -> AckOutcome:
        """Lets leases end so many seconds from now, by default as many as a new lease has. Raises LeaseEnded,
        NeedsNewerBroker."""
        return self._acks.extend(await self._opened.open_for_use(topic, name), selection, ack_deadline_s)

    async def leave(self, topic: Topic, name: str, position: Position, free: bool) -> None:
        """Has a connection of a stream get nothing any more, and with `free` its stream holds nothing then."""
        subscription = await self.open(topic, name)
        subscription.leases.streams.leave(position.connection, self._clock.monotonic_s())
        if free:
            self._acks.free(subscription, position.stream)
            subscription.shares.leave(subscription.leases.known_consumer(position.consumer))
        subscription.queue.rearm(position.connection)  # a pull of it may wait
        subscription.leases.streams.wake_all()

    async def confirm(self, subscription: Subscription) -> None:
        """Reads the record of a subscription again, after a change of unknown outcome. The caller holds `saving`.
        Raises NotOwner where another broker dispatches now."""
        if not await self._cursors.is_held(subscription):
            self.forget(subscription.topic, subscription.name)
            subscription.check()

    async def checkpoint(self) -> None:
        """Writes the cursors that have changed, and releases the commits that held their acks. Raises Unavailable: then
        those of others wait for the next one."""
        for subscription in list(self.subscriptions()):
            try:
                await self._checkpoint(subscription)
                if subscription.blocked:  # what came meanwhile woke nobody who could have had it
                    subscription.blocked = None
                    subscription.queue.wake_all()
                    subscription.leases.streams.wake_all()
                    self.dying.wake()
            except NeedsNewerBroker as error:
                subscription.blocked = error  # what it has acked pins the journal until it can be written
            except Unavailable:
                raise
            except Exception:  # a defect must not keep the cursors of all others out of coordination
                logger.exception("cannot write the cursors of %s of %s", subscription.name, subscription.topic.name)

    async def _checkpoint(self, subscription: Subscription) -> None:
        await self._opened.reread(subscription)
        await self._opened.note_if_due(subscription)
        self._move_up(subscription)
        subscription.sweep(self._clock.monotonic_s(), self._catalog.records(subscription.topic))
        if not await self._cursors.save(subscription) and self._opened.is_here(subscription):
            self.forget(subscription.topic, subscription.name)

    def _move_up(self, subscription: Subscription) -> None:
        """Has a subscription follow retention, also where nobody uses it: what it skips is counted long before the
        record of an emptied segment goes."""
        topic = subscription.topic
        if subscription.risen != topic.risen:
            subscription.risen = topic.risen
            for number, below in self._catalog.start_offsets(topic).items():
                subscription.retire(number, below)


def _sought(record: SubscriptionRecord, key: str, sought: SeekTarget) -> SubscriptionRecord:
    """Returns the record in the epoch that a seek begins."""
    before = record.seek or SeekRecord(record.epoch)
    names = (*before.ids, key)[-SEEK_NAMES:]
    asked = {name: digest for name, digest in {**before.asked, key: sought.digest}.items() if name in names}
    epoch = record.epoch + 1
    return replace(record, epoch=epoch, seek=SeekRecord(epoch, names, sought.plan, asked))


class Handoff:
    """Hands the open subscriptions of one dispatcher over."""

    def __init__(self, dispatcher: Dispatcher, assignment: Assignment, membership: Membership, clock: Clock) -> None:
        self._dispatcher = dispatcher
        self._assignment = assignment
        self._membership = membership
        self._clock = clock
        self._since_s: dict[tuple[Topic, str], tuple[str, float]] = {}

    async def run(self) -> None:
        """Hands over what another broker is preferred for, for ever."""
        while True:
            await asyncio.sleep(TICK_S)
            await gather_bounded(GIVERS, self._hand_over, self._due())

    async def leave(self) -> None:
        """Takes nothing over any more, and hands everything over."""
        self._assignment.leave()
        await gather_bounded(GIVERS, self._hand_over, self._dispatcher.names())

    def _due(self) -> list[tuple[Topic, str]]:
        """Returns the subscriptions that another broker has been preferred for long enough."""
        now_s, mine = self._clock.monotonic_s(), self._membership.broker
        preferred = {key: self._assignment.preferred(*key) for key in self._dispatcher.names()}
        known = self._since_s
        self._since_s = {
            key: known[key] if key in known and known[key][0] == broker else (broker, now_s)
            for key, broker in preferred.items()
            if broker != mine
        }
        return [key for key, (_, since_s) in self._since_s.items() if now_s - since_s >= SETTLED_S]

    async def _hand_over(self, subscription: tuple[Topic, str]) -> None:
        topic, name = subscription
        try:
            await self._dispatcher.hand_over(topic, name)
            logger.info("subscription %s of %s was handed to another broker", name, topic.name)
        except NeedsNewerBroker:
            pass  # the record that cannot be read has a log line of its own, and this is tried twice a second
        except SeaweedqError as error:
            logger.warning("subscription %s of %s could not be handed to another broker: %s", name, topic.name, error)
        except Exception:  # a defect must end neither the others under way nor the task
            logger.exception("subscription %s of %s could not be handed to another broker", name, topic.name)

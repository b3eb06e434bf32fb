"""The dispatcher of subscriptions: delivers messages, takes acks, and hands a subscription over to another broker.

An ack is a frame in the journal. A checkpoint (open_subscriptions) comes before the release of those frames, and is
written every `checkpoint_s` for cursors that have changed. A crash in between leaves the frames, which recovery
replays.

Order of a handover: 0. dead letters on their way become durable, and are acked; 1. no more leases and acks, waiting
requests are redirected; 2. the acks under way become durable; 3. a checkpoint of everything, leases too, so that no
message is delivered twice; 4. the record names no dispatcher; 5. this broker forgets it. A crash before 4 is the death
of a dispatcher whose journal holds nothing of this subscription; a crash after 4 has no effect.

Order of a seek, which begins a new epoch: 1. to 3. as above, but leases end: all acks of the old epoch are in cursors,
so those of segments that stay are kept; 4. the record says the epoch and the plan; from here on the seek has happened;
5. the cursors of the epoch are written, and then the record without the plan; 6. the subscription is opened anew. A
crash behind 4 leaves 5 to the next dispatcher, before it opens the subscription.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from seaweedq.broker.context import ClusterView
from seaweedq.broker.log.group_commit import GroupCommit
from seaweedq.broker.read.readable_segments import ReadableSegments
from seaweedq.broker.subscriptions.acking import AckHandler
from seaweedq.broker.subscriptions.assignment import Assignment
from seaweedq.broker.subscriptions.delivery import DeadLetterBatch
from seaweedq.broker.subscriptions.open_subscriptions import CursorStore, OpenSubscriptions
from seaweedq.broker.subscriptions.pulling import Pulling
from seaweedq.broker.subscriptions.subscription import Subscription
from seaweedq.broker.topics.catalog import Topic
from seaweedq.checks import reach
from seaweedq.concurrency.futures import Signal
from seaweedq.coordination.interface import Compare
from seaweedq.coordination.records import SeekRecord, SubscriptionRecord
from seaweedq.errors import NeedsNewerBroker, NotOwner, Unavailable

SEEK_NAMES = 16  # of the last seeks that are remembered
logger = logging.getLogger(__name__)


class SeekTarget(NamedTuple):
    """The target of a seek: its plan (coordination/packed_forms), a digest of the place in the request, and the topic's
    comparison from before the plan was made."""

    plan: str
    digest: str
    unchanged: Compare


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
        self._pulling = Pulling(view, self._opened, readables, timeout_s)
        self.dying = Signal()  # something may have died
        self._acks = acks = AckHandler(view.catalog, self._opened, readables, commit, view.clock, self.dying)
        self.open, self.changing, self.forget = self._opened.open, self._opened.changing, self._opened.forget
        self.names, self.subscriptions, self.has = self._opened.names, self._opened.all, self._opened.has
        self.pull_now, self.pull, self.close = self._pulling.pull_now, self._pulling.pull, self._pulling.close
        self.ack, self.nack, self.extend, self.leave = acks.ack, acks.nack, acks.extend, acks.leave
        self.check_lease, self.ack_dead_letters = self._opened.check_lease, acks.ack_dead_letters

    @property
    def delivered(self) -> int:
        """Returns how many messages this broker has delivered; one that is delivered again counts again."""
        return self._pulling.delivered

    @property
    def pin(self) -> int | None:
        """The oldest commit that must stay because of acks that no checkpoint has."""
        return min((s.pin for s in self.subscriptions() if s.pin is not None), default=None)

    def end_streams(self, is_alive: Callable[[str], bool]) -> None:
        """Ends the connections of streams whose brokers have died."""
        for subscription in self.subscriptions():
            for position in subscription.leases.streams.without_broker(is_alive):
                self._acks.end_connection(subscription, position)

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

    async def seek(self, topic: Topic, name: str, key: str, target: SeekTarget) -> tuple[Subscription, Subscription]:
        """Begins a new epoch as a plan says, unless the seek of this name has. Returns the subscription as it was,
        which is closed, and as it is. Raises NotOwner if it was changed meanwhile: then try again."""
        async with self.changing(topic, name):
            before = await self._opened.acquire(topic, name)
            before.check()
            if before.result_of_seek(key):
                return before, before
            before.check_readable(before.frontier.hidden | before.unreadable)
            if not await self._write_all(before, f"a seek is currently moving subscription {name!r}; try again"):
                self.forget(topic, name)
                raise NotOwner(f"this broker no longer delivers the messages of subscription {name!r}")
            new = before.held.with_record(self.used(_with_seek(before.record, key, target)))
            try:
                reach("seek.begin")
                held = await self._assignment.claim(topic, name, new, before.held, target.unchanged)
                reach("seek.begun")
            finally:
                self._opened.drop(topic, name)  # if the outcome is unknown, the record tells it
            after = await self._opened.open_held(topic, name, held)
            after.term = before.term
            after.leases.remember(before.leases, self._clock.monotonic_s() + after.record.ack_deadline_s)
            return before, after

    async def _write_all(self, subscription: Subscription, why: str, handover_s: float | None = None) -> bool:
        """Closes a subscription, and writes a checkpoint of everything. Returns False if another broker dispatches
        by now. If it fails the subscription is open again, unless it was forgotten meanwhile."""
        async with subscription.dead_lettering:
            subscription.close(why)
        try:
            async with subscription.delivering:
                await self._commit.wait_until_idle()
                return await self._cursors.save(subscription, handover_s, is_last=True)
        except BaseException:
            if self._opened.is_here(subscription):
                subscription.closed = None
            raise

    async def record_dead_letters(self, subscription: Subscription, segment: int, sent: DeadLetterBatch) -> None:
        """Has the cursor of a segment say which dead letters may be published from now on. The caller holds
        `dead_lettering`. Raises NotOwner if this broker does not dispatch them any more, Unavailable if that cannot be
        written."""
        saved = await self._cursors.save(subscription)
        if not saved and self._opened.is_here(subscription):
            self.forget(subscription.topic, subscription.name)
        subscription.check()
        cursor = subscription.cursors.get(segment)
        if cursor is None or not cursor.has_batch(sent):
            raise Unavailable(
                f"the dead letters of segment {segment} cannot be published yet, because the "
                "segment's cursor cannot be written at the moment"
            )

    async def confirm(self, subscription: Subscription) -> None:
        """Reads the record of a subscription again, after a change of unknown outcome. The caller holds `saving`.
        Raises NotOwner if another broker dispatches now."""
        if not await self._cursors.is_held(subscription):
            self.forget(subscription.topic, subscription.name)
            subscription.check()

    async def checkpoint(self) -> None:
        """Writes the cursors that have changed, and releases the commits that held their acks. Raises Unavailable: then
        those of others wait for the next one."""
        for subscription in list(self.subscriptions()):
            try:
                await self._checkpoint(subscription)
                if subscription.blocked:  # messages that came meanwhile woke no pull that could have had them
                    subscription.blocked = None
                    subscription.queue.wake_all()
                    subscription.leases.streams.wake_all()
                    self.dying.wake()
            except NeedsNewerBroker as error:
                subscription.blocked = error  # its acks pin the journal until they can be written
            except Unavailable:
                raise
            except Exception:  # a defect must not keep the cursors of all others out of coordination
                logger.exception(
                    "cannot write the cursors of subscription %s of topic %s",
                    subscription.name,
                    subscription.topic.name,
                )

    async def _checkpoint(self, subscription: Subscription) -> None:
        await self._opened.reread(subscription)
        await self._opened.record_use_if_due(subscription)
        topic = subscription.topic
        if subscription.risen != topic.risen:
            # It follows retention, also if nobody uses it: the messages that it skips are counted long before the
            # record of an emptied segment goes.
            subscription.risen = topic.risen
            for number, below in self._catalog.start_offsets(topic).items():
                subscription.retire(number, below)
        subscription.sweep(self._clock.monotonic_s(), self._catalog.records(topic))
        if not await self._cursors.save(subscription) and self._opened.is_here(subscription):
            self.forget(subscription.topic, subscription.name)


def _with_seek(record: SubscriptionRecord, key: str, target: SeekTarget) -> SubscriptionRecord:
    """Returns the record in the epoch that a seek begins."""
    before = record.seek or SeekRecord(record.epoch)
    names = (*before.ids, key)[-SEEK_NAMES:]
    asked = {name: digest for name, digest in {**before.asked, key: target.digest}.items() if name in names}
    epoch = record.epoch + 1
    return replace(record, epoch=epoch, seek=SeekRecord(epoch, names, target.plan, asked))

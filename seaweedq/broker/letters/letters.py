"""Dead letters: publishes what subscriptions of this broker have given up, and then acks it.

Order of writes for some messages of one segment: 1. their payloads are copied (broker/letters/payload_copies); 2. the
letters are published, by the same path as a client's messages, under an identity that makes a repeat known; 3. the
messages are acked, which is a frame in the journal as any ack. A crash before 2 leaves dying messages, which the next
dispatcher knows from the checkpoint, or which are delivered once more; one between 2 and 3 doubles the letters, once;
one after 3 leaves nothing to do.

Only who dispatches acks: after the publish it is asked again (Dispatcher.bury). `burying` is held from 1 to 3, and a
handover waits for it. A dispatcher that was fenced in between cannot ack: its journal takes nothing.

What is refused waits, longer each time, and is delivered to nobody meanwhile. Memory: AT_ONCE times one batch.
"""

import asyncio
import logging
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa

from seaweedq.broker.letters.payload_copies import PayloadCopies
from seaweedq.broker.letters.rows import Letter, Origin, letter_rows, references_of
from seaweedq.broker.letters.target import LetterTopics
from seaweedq.broker.log.intervals import Offsets
from seaweedq.broker.publish.publisher import Producer, Publisher
from seaweedq.broker.read.remote_reader import ReadableSegments
from seaweedq.broker.subscriptions.cursors.subscription import Subscription, Tenure
from seaweedq.broker.subscriptions.dispatch.dispatcher import Dispatcher
from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.topics.cluster_view import ClusterView
from seaweedq.concurrency.gather import gather_bounded
from seaweedq.errors import BelowRetention, SeaweedqError, SequenceOutOfOrder
from seaweedq.failpoints import reach
from seaweedq.segments.producers import LETTERS

TICK_S, LEAST_S = 1.0, 0.02  # between two looks for what died
AT_ONCE = 4  # batches of this broker
MOST, BATCH_BYTES = 100, 1024 * 1024  # messages of a batch, and about their bytes, but at least one
COPIES = 4  # payloads at a time
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 5.0
logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Sender:
    """The state of a subscription's letters: the identity under which they go to a topic's incarnation, the next
    sequence, and the batch that has it already, since nobody knows whether it was taken."""

    producer: str = ""
    sequence: int = 0
    target: Topic | None = None
    tried: tuple[int, tuple[int, ...]] | None = None  # segment and offsets
    failures: int = 0
    begun: int = 0  # the turn of its last batch

    def identity(self, target: Topic, segment: int, offsets: Offsets, new: str) -> Producer:
        """Returns the identity of a batch: that of the last one, if it is the same batch once more."""
        batch = segment, tuple(offsets.tolist())
        if self.target is not target or (self.tried is not None and self.tried != batch):
            self.producer, self.sequence, self.target = new, 0, target
        self.tried = batch
        return Producer(self.producer, self.sequence)

    def taken(self) -> None:
        """Notes that the batch is durable."""
        assert self.tried is not None
        self.sequence, self.tried, self.failures = self.sequence + len(self.tried[1]), None, 0

    def pause_s(self) -> float:
        """Notes a failure. Returns the seconds until the next try."""
        self.failures += 1
        return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * float(2 ** min(self.failures - 1, 10)))


@dataclass(slots=True)
class _Batch:
    """Messages of one segment that die together."""

    segment: int
    offsets: Offsets
    rows: pa.RecordBatch
    letters: list[Letter] = field(default_factory=list)


class DeadLetters:
    """Publishes the dead letters of the subscriptions that this broker dispatches. `published` counts them."""

    def __init__(
        self,
        view: ClusterView,
        dispatcher: Dispatcher,
        readables: ReadableSegments,
        topics: LetterTopics,
        publisher: Publisher,
        copies: PayloadCopies,
    ) -> None:
        self.published = 0
        self.topics = topics
        self._broker = view.membership.broker
        self._clock = view.clock
        self._dispatcher = dispatcher
        self._readables = readables
        self._publisher = publisher
        self._copies = copies
        self._senders: WeakKeyDictionary[Tenure, _Sender] = WeakKeyDictionary()
        self._tasks: dict[Subscription, asyncio.Task[None]] = {}
        self._turn = self._identities = 0

    async def run(self) -> None:
        """Publishes what dies, for ever."""
        try:
            while True:
                self._begin()
                await asyncio.sleep(LEAST_S)  # one look for all that dies together
                if not self._has_due():
                    await self._dispatcher.dying.wait(TICK_S)
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _has_due(self) -> bool:
        return len(self._tasks) < AT_ONCE and bool(self._due())

    def _due(self) -> list[Subscription]:
        """Returns the subscriptions with messages whose letters are due, those first that have waited longest."""
        now_s = self._clock.monotonic_s()
        some = [one for one in self._dispatcher.subscriptions() if one.record.dead_letter_topic is not None]
        due = [one for one in some if one not in self._tasks and one.closed is None and one.due_letters(now_s)]
        return sorted(due, key=lambda one: self._sender(one).begun)

    def _begin(self) -> None:
        for subscription in self._due()[: max(0, AT_ONCE - len(self._tasks))]:
            self._turn += 1
            self._sender(subscription).begun = self._turn
            task = asyncio.create_task(self._send(subscription), name=f"dead letters of {subscription.name}")
            self._tasks[subscription] = task
            task.add_done_callback(lambda _, ended=subscription: self._ended(ended))  # type: ignore[misc]

    def _ended(self, subscription: Subscription) -> None:
        del self._tasks[subscription]
        self._dispatcher.dying.wake()  # there may be more

    def _sender(self, subscription: Subscription) -> _Sender:
        return self._senders.setdefault(subscription.tenure, _Sender())

    async def _send(self, subscription: Subscription) -> None:
        """Sends one batch. What fails waits."""
        try:
            async with subscription.burying:
                await self._bury(subscription)
        except SeaweedqError as error:
            self._wait(subscription, error)
        except Exception as error:  # a defect must not end the task that sends all others' letters
            logger.exception("dead letters of %s of %s failed", subscription.name, subscription.topic.name)
            self._wait(subscription, error)

    def _wait(self, subscription: Subscription, error: Exception) -> None:
        if subscription.closed:
            return
        sender, now_s = self._sender(subscription), self._clock.monotonic_s()
        if isinstance(error, SequenceOutOfOrder):
            sender.target = None  # under another identity
        pause_s = sender.pause_s()
        for cursor in subscription.cursors.values():
            if cursor.delivery.deaths:
                cursor.delivery.deaths.postpone(cursor.delivery.deaths.due(now_s), now_s + pause_s)
        logger.warning(
            "dead letters of %s of %s could not be published to %s, again in %g s: %s",
            subscription.name,
            subscription.topic.name,
            subscription.record.dead_letter_topic,
            pause_s,
            error,
        )

    async def _bury(self, subscription: Subscription) -> None:
        subscription.check()
        name, epoch = subscription.record.dead_letter_topic, subscription.record.epoch
        if name is None:
            return
        target = await self.topics.ensure_as_creator(subscription.topic, subscription.record, name)
        batch = await self._read(subscription)
        if batch is None:
            return
        rows = await self._rows(subscription, batch, target)
        sender = self._sender(subscription)
        producer = sender.identity(target, batch.segment, batch.offsets, self._new_identity())
        reach("letter.publish")
        await self._publisher.batch(target, rows, producer)
        sender.taken()
        self.published += rows.num_rows
        reach("letter.published")
        await self._dispatcher.bury(subscription, batch.segment, batch.offsets, epoch)
        reach("letter.acked")

    def _new_identity(self) -> str:
        self._identities += 1
        return f"{LETTERS}{self._broker}.{self._identities}"

    async def _read(self, subscription: Subscription) -> _Batch | None:
        """Reads messages that die, of one segment; those that may have been published first. What retention has taken
        is gone."""
        due = subscription.due_letters(self._clock.monotonic_s())
        if not due:
            return None
        tried = self._sender(subscription).tried
        segment = tried[0] if tried and tried[0] in due else min(due)
        wanted = due[segment]
        wanted = wanted[wanted < wanted[0] + MOST]
        if tried and segment == tried[0] and np.isin(again := np.array(tried[1]), due[segment]).all():
            wanted = again
        readable = (await self._readables.every(subscription.topic, [segment]))[segment]
        low, high = int(wanted[0]), int(wanted[-1]) + 1
        try:
            pieces = await readable.read(low, high - low, BATCH_BYTES)
        except BelowRetention as error:
            start = int(error.fields["start_offset"])
            subscription.retire(segment, start)
            if segment in subscription.cursors and subscription.acked_to(segment) < start:
                raise  # the cursor cannot be read, and stays: later
            return None
        cursor = subscription.cursors.get(segment)
        if cursor is None:
            return None
        deaths = cursor.delivery.deaths
        wanted = deaths.still(wanted)
        first, rows = pieces[0]
        here = wanted[(wanted >= first) & (wanted < first + rows.num_rows)]
        attempts = cursor.delivery.attempts_of(here).tolist()
        letters = [
            Letter(deaths.why(offset), count, f"{segment}-{offset}")
            for offset, count in zip(here.tolist(), attempts, strict=True)
        ]
        return _Batch(segment, here, rows.take(pa.array(here - first)), letters) if letters else None

    async def _rows(self, subscription: Subscription, batch: _Batch, target: Topic) -> pa.RecordBatch:
        topic, references = subscription.topic, references_of(batch.rows)

        async def copy(at: int) -> None:
            if reference := references[at]:
                message = f"{subscription.name}/{batch.letters[at].id}"
                references[at] = await self._copies.copy(topic, reference, target, message)

        await gather_bounded(COPIES, copy, range(len(references)))
        origin = Origin(topic.name, subscription.name, self._clock.now_us())
        return letter_rows(batch.rows, batch.letters, origin, target.layout, references)

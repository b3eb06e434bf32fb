"""Dead letters: publishes the messages that subscriptions of this broker have given up, and then acks them.

Order of writes for some messages of one segment: 1. their payloads are copied; 2. a checkpoint of the segment's cursor
says which messages they are, and the identity under which they go out; 3. the letters are published, by the same path
as a client's messages, under that identity, which makes a repeat known; 4. the messages are acked, which is a frame in
the journal as any ack. A crash before 2 leaves dying messages, which the next dispatcher knows from an earlier
checkpoint, or which are delivered once more; behind 2 the next dispatcher finds the batch, and goes on with 3 under the
same identity, so that each letter is there once; behind 4 nothing is left to do.

An identity is of one dispatcher, epoch, subscription and segment, and a segment has one batch at a time. So a batch is
repeated as it was, with no message more and none less, before the next one of its identity: a topic remembers few
requests of a producer, and would refuse a repeat behind later ones. If retention has taken some messages of a batch
meanwhile, that cannot be: the letters of the others are there twice if they were published.

Only the dispatcher writes 2, and acks: after the publish it is asked again (`AckHandler.ack_dead_letters`).
`dead_lettering` is held from 1 to 4, and a handover waits for it. A dispatcher that was fenced in between cannot ack:
its journal takes nothing.

A refused letter waits, longer each time, and its message is delivered to nobody meanwhile. Memory: AT_ONCE times one
batch.

A letter has the message's key, value and time, its headers, and seven headers more, which say why it died, and where it
was. It has no expiry: it stays for its readers. The bound `max_message_bytes` is for clients: these headers
do not count.

Each letter has a copy of its payload, below its own topic. So it stays readable whatever becomes of the source: its
retention takes payloads with their rows, its deletion takes them all. The copy stays as long as the topic for dead
letters does. The store makes it (a link in a folder). Its name follows from the message, so that a second try makes the
same one. A crash before the letter leaves a copy that the next try names.

The topic for dead letters has the format of the source topic. It is created before a subscription that names it, and
again when a message dies after somebody has deleted it: else the message would stay in the subscription for ever. A
crash in between leaves an empty topic.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
from msgspec import UNSET

from seaweedq.access.rights import Action, Caller, Resource, judge
from seaweedq.broker.access.callers import Callers
from seaweedq.broker.context import ClusterView, Context
from seaweedq.broker.log.intervals import Offsets
from seaweedq.broker.publish.publisher import Producer, Publisher, Publishing
from seaweedq.broker.read.readable_segments import Readable, ReadableSegments
from seaweedq.broker.read.reading import Reading
from seaweedq.broker.service import Service, Tasks
from seaweedq.broker.subscriptions.assignment import topic_compare
from seaweedq.broker.subscriptions.delivery import DeadLetterBatch, DeadLetterReason
from seaweedq.broker.subscriptions.dispatcher import Dispatcher
from seaweedq.broker.subscriptions.subscribing import Subscribing
from seaweedq.broker.subscriptions.subscription import DispatchTerm, Subscription
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.topics.schema_versions import SchemaVersions
from seaweedq.broker.topics.topic_admin import TopicAdmin
from seaweedq.broker.uploads import rules
from seaweedq.broker.uploads.payloads import Payloads
from seaweedq.broker.uploads.uploads import Uploading
from seaweedq.checks import reach
from seaweedq.concurrency.futures import gather_bounded
from seaweedq.coordination.interface import Compare
from seaweedq.coordination.records import SubscriptionRecord, TopicConfig
from seaweedq.errors import (
    BelowRetention,
    Forbidden,
    InvalidRequest,
    NotReady,
    SeaweedqError,
    SequenceOutOfOrder,
    Unavailable,
)
from seaweedq.segments.evolution import with_ids
from seaweedq.segments.layout import by_name, unheld
from seaweedq.segments.producers import LETTERS
from seaweedq.segments.rows import Reference, assemble, headers_column, references_column, together
from seaweedq.storage.interface import PayloadStore


class DeadLetterTopics:
    """Finds and creates the topics for dead letters."""

    def __init__(self, catalog: Catalog, admin: TopicAdmin, schemas: SchemaVersions, callers: Callers) -> None:
        self._catalog = catalog
        self._admin = admin
        self._schemas = schemas
        self._callers = callers

    async def check(self, source: Topic, record: SubscriptionRecord) -> dict[Topic, Compare]:
        """Ensures that a subscription's settings can be heeded. Returns both topics, by whose records that was found,
        with comparisons: the subscription may count only while these hold, since a schema may change meanwhile. Raises
        InvalidRequest, and the errors of `ensure` and of `SchemaVersions.finish`."""
        name = record.dead_letter_topic
        if name is not None:
            target = await self.ensure(source, name, record.creator_uid)
            while True:
                for one in (source, target):
                    await self._catalog.refresh(one.name)
                    self._catalog.check(one)
                    await self._schemas.finish(one)
                if all(one.record.pending is UNSET for one in (source, target)):
                    break
            _check_holds(source, target)
            return {one: topic_compare(one) for one in (source, target)}
        if record.max_attempts:
            raise InvalidRequest(
                f"max_attempts is {record.max_attempts}, but dead_letter_topic is null, so there is no topic for "
                f"messages that fail {record.max_attempts} times; set dead_letter_topic, or set max_attempts to 0",
                field="dead_letter_topic",
                value=None,
            )
        return {}

    async def ensure_as_creator(self, source: Topic, record: SubscriptionRecord, name: str) -> Topic:
        """As `ensure`, with the rights that the subscription's creator has now. Raises Forbidden."""
        if record.creator is not None:
            creator = self._callers.principal(record.creator, record.creator_uid)
            if creator is None:  # it has gone, or another one has its name
                raise Forbidden(
                    f"dead letters are published with the rights of the principal {record.creator!r}, "
                    "which is disabled or was deleted (a new principal with the same name does not have "
                    "these rights). To publish the dead letters with your own rights, set the "
                    "subscription's dead_letter_topic again with a PATCH request (its value can stay the same)",
                    action=str(Action.PUBLISH),
                    resource=name,
                )
            _check(creator, Action.PUBLISH, name)
            if self._catalog.get(name) is None:
                _check(creator, Action.CREATE, name)
        return await self.ensure(source, name, record.creator_uid)

    async def ensure(self, source: Topic, name: str, creator: str | None = None) -> Topic:
        """Returns the topic for the dead letters of `source`, which counts to the limits of the principal with the uid
        `creator` if it is created here. Raises InvalidRequest if it has another format, does not hold all rows of
        `source`, or is `source` itself, TooManyTopics, TooManySegments, TopicBeingDeleted, Unavailable."""
        if name == source.name:
            raise InvalidRequest(
                f"dead_letter_topic is {name!r}, the topic of the subscription, so the subscription "
                "would receive its own dead letters again; name another topic",
                field="dead_letter_topic",
                value=name,
            )
        if self._catalog.get(name) is None:
            self._catalog.check_readable(name)
            config = source.record.config
            plain = TopicConfig(format=config.format, schema=with_ids(config.schema), columns=config.columns)
            await self._admin.create(name, plain, creator)
        found = await self._catalog.require(name)
        _check_holds(source, found)
        return found


def _check_holds(source: Topic, target: Topic) -> None:
    """Raises InvalidRequest unless a topic holds all rows of another one, as their schemas are known here."""
    if target.layout.format is not source.layout.format or unheld(source.layout.values, target.layout.values, by_name):
        raise InvalidRequest(
            f"the dead_letter_topic {target.name!r} (format {target.layout.format.value}) cannot store "
            f"the messages of topic {source.name!r} (format {source.layout.format.value}); name a "
            "topic with the same format and schema, a topic whose schema differs only in wider "
            "types and additional fields, or a topic that does not exist",
            field="dead_letter_topic",
            value=target.name,
        )


def _check(creator: Caller, action: Action, name: str) -> None:
    if not judge(creator, action, Resource(name)):
        raise Forbidden(
            f"the principal {creator.principal!r}, which created the subscription, lacks the right "
            f"`{action}` on topic {name!r}",
            action=str(action),
            resource=name,
        )


PREFIX = "dead-letter-"
NAMES = tuple(f"{PREFIX}{name}" for name in ("reason", "detail", "topic", "subscription", "id", "attempts", "time"))
TICK_S, LEAST_S = 1.0, 0.02  # between two searches for dying messages
AT_ONCE = 4  # batches of this broker
MOST, BATCH_BYTES = 100, 1024 * 1024  # messages of a batch, and about their bytes, but at least one
COPIES = 4  # payloads at a time
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 5.0
logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Sender:
    """The state of a subscription's letters: the beginning of the identities of those that begin here, and the next
    sequence of each segment."""

    producer: str
    sequences: Counter[int] = field(default_factory=Counter)
    failures: int = 0
    begun: int = 0  # the turn of its last batch
    segment: int = -1  # of its last batch

    def begin(self, segment: int, offsets: Sequence[int]) -> DeadLetterBatch:
        """Returns the identity of a new batch of a segment."""
        sent = DeadLetterBatch(f"{self.producer}.{segment}", self.sequences[segment], tuple(offsets))
        self.sequences[segment] += len(offsets)
        return sent

    def next_of(self, segments: Collection[int]) -> int:
        """Returns the segment whose turn it is, so that none waits behind one that fails."""
        self.segment = min(segments, key=lambda number: (number <= self.segment, number))
        return self.segment

    def pause_s(self) -> float:
        """Notes a failure. Returns the seconds until the next try."""
        self.failures += 1
        return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * float(2 ** min(self.failures - 1, 10)))


@dataclass(slots=True)
class _Batch:
    """Messages of one segment that die together: their rows, reasons, and how often each was delivered."""

    segment: int
    offsets: Offsets
    rows: pa.RecordBatch
    reasons: list[DeadLetterReason]
    attempts: list[int]


class DeadLetters:
    """Publishes the dead letters of the subscriptions that this broker dispatches. `published` counts them."""

    def __init__(
        self,
        view: ClusterView,
        dispatcher: Dispatcher,
        readables: ReadableSegments,
        topics: DeadLetterTopics,
        publisher: Publisher,
        payloads: Payloads,
        store: PayloadStore,
    ) -> None:
        self.published = 0
        self.topics = topics
        self._broker = view.membership.broker
        self._clock = view.clock
        self._dispatcher = dispatcher
        self._readables = readables
        self._publisher = publisher
        self._payloads = payloads
        self._store = store
        self._senders: WeakKeyDictionary[DispatchTerm, _Sender] = WeakKeyDictionary()
        self._tasks: dict[Subscription, asyncio.Task[None]] = {}
        self._turn = self._identities = 0

    async def run(self) -> None:
        """Publishes dying messages, for ever."""
        try:
            while True:
                self._begin()
                await asyncio.sleep(LEAST_S)  # one look for all that dies together
                if len(self._tasks) >= AT_ONCE or not self._due():
                    await self._dispatcher.dying.wait(TICK_S)
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _due(self) -> list[Subscription]:
        """Returns the subscriptions with messages whose letters are due, those first that have waited longest."""
        now_s = self._clock.monotonic_s()
        some = [one for one in self._dispatcher.subscriptions() if one.record.dead_letter_topic is not None]
        due = [one for one in some if one not in self._tasks and one.closed is None and one.due_dead_letters(now_s)]
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
        found = self._senders.get(subscription.term)
        if found is None:
            self._identities += 1
            found = self._senders[subscription.term] = _Sender(f"{LETTERS}{self._broker}.{self._identities}")
        return found

    async def _send(self, subscription: Subscription) -> None:
        """Sends one batch. One that fails waits."""
        try:
            async with subscription.dead_lettering:
                await self._send_batch(subscription)
        except SeaweedqError as error:
            self._wait(subscription, error)
        except Exception as error:  # a defect must not end the task that sends all others' letters
            logger.exception(
                "the dead letters of subscription %s of topic %s could not be published",
                subscription.name,
                subscription.topic.name,
            )
            self._wait(subscription, error)

    def _wait(self, subscription: Subscription, error: Exception) -> None:
        if subscription.closed:
            return
        sender, now_s = self._sender(subscription), self._clock.monotonic_s()
        pause_s = sender.pause_s()
        for segment, cursor in subscription.cursors.items():
            if isinstance(error, SequenceOutOfOrder) and segment == sender.segment:
                cursor.delivery.dead_letters.sent = None  # under another identity
            if cursor.delivery.dead_letters:
                cursor.delivery.dead_letters.postpone(cursor.delivery.dead_letters.due(now_s), now_s + pause_s)
        logger.warning(
            "the dead letters of subscription %s of topic %s could not be published to topic %s; retrying in %g s: %s",
            subscription.name,
            subscription.topic.name,
            subscription.record.dead_letter_topic,
            pause_s,
            error,
        )

    async def _send_batch(self, subscription: Subscription) -> None:
        subscription.check()
        name, epoch = subscription.record.dead_letter_topic, subscription.record.epoch
        if name is None:
            return
        target = await self.topics.ensure_as_creator(subscription.topic, subscription.record, name)
        batch = await self._read(subscription)
        if batch is None:
            return
        rows = await self._letters(subscription, batch, target)
        sent = await self._record_batch(subscription, batch)
        reach("letter.publish")
        await self._publisher.batch(target, rows, Producer(sent.producer, sent.sequence))
        self._sender(subscription).failures = 0
        self.published += rows.num_rows
        reach("letter.published")
        await self._dispatcher.ack_dead_letters(subscription, batch.segment, batch.offsets, epoch)
        reach("letter.acked")

    async def _record_batch(self, subscription: Subscription, batch: _Batch) -> DeadLetterBatch:
        """Returns the identity of a batch, that which it had before if it is one once more. It is in the cursor's
        record by then."""
        subscription.check()
        cursor, offsets = subscription.cursors.get(batch.segment), batch.offsets.tolist()
        queue = cursor.delivery.dead_letters if cursor else None
        if cursor is None or queue is None or len(queue.still_dying(batch.offsets)) < len(offsets):
            raise NotReady(
                f"the batch contains messages of segment {batch.segment} that no longer need to become dead letters"
            )
        sent = queue.pending_batch()
        if sent is None:
            sent = queue.sent = self._sender(subscription).begin(batch.segment, offsets)
        elif sent.offsets != tuple(offsets):
            raise NotReady(f"an earlier batch of dead letters of segment {batch.segment} is not finished yet")
        if not cursor.has_batch(sent):
            reach("letter.record")
            await self._dispatcher.record_dead_letters(subscription, batch.segment, sent)
        return sent

    async def _read(self, subscription: Subscription) -> _Batch | None:
        """Reads messages that die, of one segment; its batch that may have been published first, and as it was. What
        retention has taken is gone."""
        due = subscription.due_dead_letters(self._clock.monotonic_s())
        if not due:
            return None
        segment = self._sender(subscription).next_of(due)
        sent = subscription.cursors[segment].delivery.dead_letters.pending_batch()
        first = due[segment][due[segment] < due[segment][0] + MOST]
        wanted = np.array(sent.offsets, np.int64) if sent else first
        readable = (await self._readables.every(subscription.topic, [segment]))[segment]
        try:
            read = await _read(readable, wanted, is_whole=sent is not None)
        except BelowRetention as error:
            start = int(error.fields["start_offset"])
            subscription.retire(segment, start)
            if segment in subscription.cursors and subscription.acked_to(segment) < start:
                raise  # the cursor cannot be read, and stays: later
            return None
        cursor = subscription.cursors.get(segment)
        if cursor is None:
            return None
        queue = cursor.delivery.dead_letters
        offsets, rows = read
        here = queue.still_dying(offsets)
        if not len(here):
            return None
        attempts = cursor.delivery.window.values("attempts", here).tolist()
        reasons = [queue.reason_of(offset) for offset in here.tolist()]
        return _Batch(segment, here, rows.filter(pa.array(np.isin(offsets, here))), reasons, attempts)

    async def _letters(self, subscription: Subscription, batch: _Batch, target: Topic) -> pa.RecordBatch:
        """Returns the rows of letters: those of their messages, with headers of their own, and copies of payloads.
        Raises NotReady if the schema of one of the topics has changed since `ensure`: the messages are read again."""
        topic, rows, names = subscription.topic, batch.rows, batch.rows.schema.names
        ids = [f"{batch.segment}-{offset}" for offset in batch.offsets.tolist()]
        references: list[Reference | None] = [None] * rows.num_rows
        if "_reference" in names:
            references = [Reference(**one) if one else None for one in rows.column("_reference").to_pylist()]

        async def copy(at: int) -> None:
            if reference := references[at]:
                references[at] = await self._copy(topic, reference, target, f"{subscription.name}/{ids[at]}")

        await gather_bounded(COPIES, copy, range(len(references)))
        time = datetime.fromtimestamp(self._clock.now_us() / 1e6, UTC).isoformat().replace("+00:00", "Z")
        before = rows.column("_headers").to_pylist() if "_headers" in names else [None] * rows.num_rows
        headers: list[dict[str, str] | None] = []
        for id, (reason, detail), attempts, some in zip(ids, batch.reasons, batch.attempts, before, strict=True):
            values = (reason, detail, topic.name, subscription.name, id, str(attempts), time)
            kept = {
                name: value for name, value in dict(some or ()).items() if name not in NAMES
            }  # not of a death before
            headers.append(kept | dict(zip(NAMES, values, strict=True)))
        return assemble(
            target.layout,
            rows.column("_timestamp"),
            rows.column("_key") if "_key" in names else None,
            headers_column(headers),
            None,
            target.layout.values_of(rows),
            references_column(references) if any(references) else None,
        )

    async def _copy(self, source: Topic, reference: Reference, target: Topic, message: str) -> Reference:
        """Copies a payload. Returns the reference of a letter: the message's own if the store has that payload no more,
        or it is none of the topic's. Raises StoreUnavailable."""
        name = self._payloads.name_of(source, reference.uri)
        if name is None:
            return reference
        copied = rules.object_name(target.name, rules.copied_id(name, target.record.incarnation, message))
        try:
            await self._store.copy(name, copied)
        except FileNotFoundError:
            return reference
        reach("letter.copied")
        return replace(reference, uri=self._store.uri(copied))


async def _read(readable: Readable, wanted: Offsets, is_whole: bool) -> tuple[Offsets, pa.RecordBatch]:
    """Returns the rows of rising offsets: of all of them, or of those that the first piece has. Raises BelowRetention,
    Unavailable."""
    parts: list[pa.RecordBatch] = []
    found: list[Offsets] = []
    left = wanted
    while len(left) and (is_whole or not parts):
        low = int(left[0])
        pieces = await readable.read(low, int(left[-1]) + 1 - low, BATCH_BYTES)
        if not pieces:
            raise Unavailable(
                f"the dead letters of segment {readable.id} cannot be published yet, because the "
                f"segment's message at offset {low} cannot be read at the moment"
            )
        for first, rows in pieces:
            here = left[(left >= first) & (left < first + rows.num_rows)]
            if len(here) and (is_whole or not parts):
                found.append(here)
                parts.append(rows.take(pa.array(here - first)))
                left = left[left > here[-1]]
    return np.concatenate(found), together(parts, readable.layout)


class DeadLettering(Service):
    """Moves the dead `letters` of the subscriptions that this broker dispatches, into `topics`."""

    def __init__(
        self,
        context: Context,
        admin: TopicAdmin,
        schemas: SchemaVersions,
        publishing: Publishing,
        reading: Reading,
        subscribing: Subscribing,
        uploading: Uploading,
    ) -> None:
        self.topics = DeadLetterTopics(context.catalog, admin, schemas, context.callers)
        self.letters = DeadLetters(
            context.view,
            subscribing.dispatcher,
            reading.readables,
            self.topics,
            publishing.publisher,
            uploading.payloads,
            context.store.payloads,
        )

    async def run(self) -> Tasks:
        """Moves dead letters."""
        return {"dead letters": self.letters.run()}

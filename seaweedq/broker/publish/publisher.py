"""Publishing: splits a request by the parts of segments, and says where its messages are.

Slices for own segments are all judged before any is appended, without an await in between; then they go into one group
commit (broker/publish/local_append). Slices for others' segments go to their owners (broker/publish/remote_append).
"""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from seaweedq.broker.context import Context
from seaweedq.broker.log.flusher import Log
from seaweedq.broker.log.group_commit import GroupCommit
from seaweedq.broker.log.open_segment import InFlight
from seaweedq.broker.publish.batch_split import AppendedRows, Batch, Slice, locate, split
from seaweedq.broker.publish.forwarder import Forwarder, ForwardReceiver, Identities
from seaweedq.broker.publish.local_append import LocalAppender, PendingAppend, in_time, judge, unknown
from seaweedq.broker.publish.remote_append import FailedRows, RemoteAppender, Results
from seaweedq.broker.service import Service
from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.topics.ownership import Ownership
from seaweedq.broker.topics.segment_index import Routing
from seaweedq.clock import Clock, Ids
from seaweedq.concurrency.deadline import Deadline, Timeouts
from seaweedq.errors import PartlyTaken, SchemaMismatch, SequenceOutOfOrder, Unavailable
from seaweedq.segments.keyrange import KEY_SPACE, hash_key
from seaweedq.segments.layout import Layout, schema_id_of
from seaweedq.segments.producers import Duplicate, Sequences
from seaweedq.segments.row_hashes import Hashes, hash_rows
from seaweedq.segments.rows import Single, rows_of_singles

INLINE_ROWS = 2_000  # so many are cut, and decoded from Arrow, on the event loop: a thread costs more


@dataclass(frozen=True, slots=True)
class Producer:
    """`Producer-Id` and the sequence number of the request's first message; `only_repeats` as in Sequences."""

    id: str
    sequence: int
    only_repeats: bool = False

    def sequences(self, count: int) -> Sequences:
        """Returns the request's whole range."""
        return Sequences(self.id, self.sequence, self.sequence + count - 1, self.only_repeats)


@dataclass(frozen=True, slots=True)
class PublishResult:
    """The answer to a publish; `duplicate` only if no row was newly appended."""

    count: int
    appended: Sequence[AppendedRows]
    duplicate: bool


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """A request's rows, split by the parts of a topic's segments as they were known then."""

    routing: Routing
    batch: Batch
    slices: Sequence[Slice]
    sequences: Sequences | None


class Publisher:
    """Appends messages, no matter which broker owns their segments."""

    def __init__(
        self,
        ownership: Ownership,
        commit: GroupCommit,
        local: LocalAppender,
        remote: RemoteAppender,
        ids: Ids,
        clock: Clock,
        timeout_s: float,
    ) -> None:
        self._ownership = ownership
        self._commit = commit
        self._timeouts = Timeouts(unknown)
        self._local = local
        self._remote = remote
        self._ids = ids
        self._clock = clock
        self._timeout_s = timeout_s

    def deadline(self) -> Deadline:
        """Returns the deadline of a publish that begins now."""
        return Deadline(self._clock, self._timeout_s)

    async def single(
        self, topic: Topic, message: Single, producer: Producer | None, deadline: Deadline | None = None
    ) -> tuple[int, int, bool]:
        """Appends one message. Returns its segment and offset, and whether it was there already."""
        deadline = deadline or self.deadline()
        routing = topic.routing
        if routing is None:
            routing = await in_time(self._ownership.routing(topic), deadline)
        hashed = self._hash(message, producer) if len(routing.ids) > 1 else 0
        position = bisect_right(routing.starts, hashed) - 1
        number = routing.ids[position]
        segment = routing.opened[position]
        if segment is None:
            segment = await in_time(self._ownership.open(topic, number), deadline)
        sequences = producer.sequences(1) if producer else None
        if segment is not None and not segment.redirected:
            part = routing.starts[position]
            if sequences is None:  # nothing to judge
                if segment.closed:
                    raise segment.closed
                offset = self._commit.append_single(segment, part, message, None)
                self._timeouts.add(offset, deadline)  # nobody else waits for it: cheaper than a timeout and a shield
                return segment.id, await offset, False
            verdict = judge(segment, part, 1, sequences)
            if isinstance(verdict, Duplicate):
                self._commit.check_lease()
                return verdict.segment, verdict.first_offset, True
            is_known = isinstance(verdict, InFlight)
            offset = (
                verdict.offset
                if isinstance(verdict, InFlight)
                else self._commit.append_single(segment, part, message, sequences)
            )
            (outcome,) = await self._local.end([PendingAppend(segment.id, offset, is_known)], deadline)
            return outcome.segment, outcome.first_offset, is_known
        hashed = hashed if len(routing.ids) > 1 else self._hash(message, producer)
        if sequences is None:
            return *await self._remote.single(topic, number, message, hashed, deadline), False
        batch = Batch(rows_of_singles([message], topic.layout), lambda: np.array([hashed], np.int32))
        published = _published(1, await self._remote.append(topic, split(routing, batch), batch, sequences, deadline))
        return published.appended[0].segment, published.appended[0].first, published.duplicate

    async def batch(
        self, topic: Topic, rows: pa.RecordBatch, producer: Producer | None, deadline: Deadline | None = None
    ) -> PublishResult:
        """Appends many messages. Own segments take all of theirs or none. Raises PartlyTaken if others took some."""
        deadline = deadline or self.deadline()
        return await self.append(topic, await in_time(self.prepare(topic, rows, producer), deadline), deadline)

    async def prepare(self, topic: Topic, rows: pa.RecordBatch, producer: Producer | None) -> PreparedBatch:
        """Does most of a publish's work: all that can be done while the one before it becomes durable."""
        if rows.num_rows > INLINE_ROWS and schema_id_of(rows.schema) < topic.layout.schema_id:
            rows = await asyncio.to_thread(_raised, rows, topic.layout)
        batch = Batch(rows, partial(_hashes, rows, producer, self._draw))
        return await self._split(topic, batch, producer.sequences(rows.num_rows) if producer else None)

    async def append(self, topic: Topic, prepared: PreparedBatch, deadline: Deadline | None = None) -> PublishResult:
        """Does the rest of `batch`. It may be called again after a failure, if the request has a producer."""
        deadline = deadline or self.deadline()
        if topic.routing is not prepared.routing:
            prepared = await self._split(topic, prepared.batch, prepared.sequences)
        batch, slices, sequences = prepared.batch, prepared.slices, prepared.sequences
        count = batch.rows.num_rows
        if sequences and sequences.only_repeats:  # each slice is judged alone: an earlier attempt may have stored some
            return _published(count, _known(await self._remote.append(topic, slices, batch, sequences, deadline)))
        if closed := [number for number in dict.fromkeys(s.segment for s in slices) if number not in topic.opened]:
            await in_time(self._ownership.open_all(topic, closed), deadline)
        opened = [(one, topic.opened.get(one.segment)) for one in slices]
        here = [(one, segment) for one, segment in opened if segment and not segment.redirected]
        begun = self._local.begin([(segment, one.part, one.encoded) for one, segment in here], sequences)
        ours = self._end(topic, batch, [one for one, _ in here], begun, deadline)
        if len(here) == len(slices):
            return _published(count, await ours)
        others = [one for one, segment in opened if not segment or segment.redirected]
        results = await asyncio.gather(ours, self._remote.append(topic, others, batch, sequences, deadline))
        return _published(count, [*results[0], *results[1]])

    async def _split(self, topic: Topic, batch: Batch, sequences: Sequences | None) -> PreparedBatch:
        routing = topic.routing or await self._ownership.routing(topic)
        if batch.rows.num_rows <= INLINE_ROWS:
            return PreparedBatch(routing, batch, split(routing, batch), sequences)
        return PreparedBatch(routing, batch, await asyncio.to_thread(split, routing, batch), sequences)

    async def _end(
        self, topic: Topic, batch: Batch, slices: Sequence[Slice], begun: Sequence[PendingAppend], deadline: Deadline
    ) -> Results:
        """Waits for the slices of own segments, and says where they are, or why not."""
        found: Results = []
        try:
            for one, outcome in zip(slices, await self._local.end(begun, deadline), strict=True):
                moved = outcome.segment != one.segment
                found += locate(batch, one, outcome, self._ownership.record(topic, outcome.segment) if moved else None)
        except Exception as error:
            return [FailedRows(one.indexes, error) for one in slices]
        return found

    def _draw(self) -> int:
        return int(self._ids.nonce()[:8], 16) % KEY_SPACE

    def _hash(self, message: Single, producer: Producer | None) -> int:
        if message.key is not None:
            return hash_key(message.key)
        return hash_key(f"{producer.id}:{producer.sequence}") if producer else self._draw()


def _raised(rows: pa.RecordBatch, newest: Layout) -> pa.RecordBatch:
    """Returns rows in the newest version, as owners would raise them on their event loops; those with a value in a
    dropped field stay as they are, for the owners to judge."""
    return rows if newest.dropped_value(rows) is not None else newest.raised(rows)


def _hashes(rows: pa.RecordBatch, producer: Producer | None, draw: Callable[[], int]) -> Hashes:
    at = rows.schema.get_field_index("_key")
    keys = rows.column(at) if at >= 0 else None
    name, first = (producer.id, producer.sequence) if producer else (None, None)
    return hash_rows(keys, rows.num_rows, name, first, draw)


def _known(results: Results) -> Results:
    """Returns results of which each is known. Raises Unavailable if one is not."""
    for result in results:
        if isinstance(result, FailedRows) and isinstance(result.error, Unavailable):
            raise result.error
    return results


def _published(count: int, results: Results) -> PublishResult:
    """Returns the answer to a request whose slices ended so. Raises the error that says most."""
    appended = sorted((r for r in results if isinstance(r, AppendedRows)), key=lambda one: (one.segment, one.first))
    failed = [result.error for result in results if isinstance(result, FailedRows)]
    if not failed:
        return PublishResult(count, appended, all(one.duplicate for one in appended))
    taken = [{"segment": one.segment, "first_offset": one.first, "count": len(one.indexes)} for one in appended]
    for error in failed:
        if isinstance(error, (SequenceOutOfOrder, SchemaMismatch)):
            error.fields["taken"] = taken
            raise error
    for error in failed:
        if not isinstance(error, Unavailable):
            raise error
    if taken:
        missing = sum(len(result.indexes) for result in results if isinstance(result, FailedRows))
        why = next(error for error in failed if isinstance(error, Unavailable))
        detail = f"{missing} of {count} messages were not stored, or their outcome is unknown: {why.detail}"
        raise PartlyTaken(detail, inside=why.inside, taken=taken)
    raise failed[0]


class Publishing(Service):
    """The owners of segments, the `publisher`, and the `receiver` of the rows that other brokers hand on."""

    def __init__(self, context: Context, log: Log) -> None:
        catalog, timeout_s = context.catalog, context.settings.publish_timeout_s
        self.ownership = Ownership(
            catalog,
            context.files,
            context.membership,
            context.budget,
            log.dirty,
            context.entries,
            timeout_s,
        )
        self.identities = Identities(context.broker, catalog.is_open)
        local, self._forwarder = LocalAppender(log.commit), Forwarder(context.peers, timeout_s)
        self._remote = RemoteAppender(
            *(catalog, self.ownership, context.roster, local, self._forwarder, self.identities, context.clock),
            context.coordination,
            context.traces,
        )
        self.publisher = Publisher(
            self.ownership, log.commit, local, self._remote, context.ids, context.clock, timeout_s
        )
        self.receiver = ForwardReceiver(catalog, self.ownership, local, self.publisher.deadline, context.coordination)

    async def stop(self) -> None:
        """Ends what other brokers were asked to append."""
        await self._remote.stop()
        await self._forwarder.stop()
        await self.ownership.stop()

    def forget(self, topic: Topic) -> None:
        """Forgets the identities under which rows of the topic are handed on."""
        self.identities.forget(topic)

"""Appending rows to segments that this broker does not own, or that nobody owns just now: retried against the current
owner until the publish timeout.

Every batch has an identity: the client's producer and sequences, or one of this broker's (broker/publish/forwarder). An
attempt whose answer was lost is repeated under the same identity, at the same owner or at the next one, which may be
this broker. Slices whose segment was sealed meanwhile *bounce*: once the other slices of their batch have ended they
are split again, all together, by the successors' parts, and go on under the same identity, which the successors know
from their predecessor.
"""

import asyncio
import dataclasses
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import compress
from math import inf

import msgspec
import numpy as np

from seaweedq.broker.publish.batch_split import AppendedRows, Batch, Slice, is_whole, locate, split, split_again
from seaweedq.broker.publish.forwarder import Forwarder, Identities
from seaweedq.broker.publish.local_append import LocalAppender, in_time, unknown, untaken
from seaweedq.broker.rpc.client import ask_while
from seaweedq.broker.rpc.messages import ForwardFrame, ForwardHeader, Outcome
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.topics.ownership import Ownership
from seaweedq.clock import Clock
from seaweedq.concurrency.deadline import Deadline
from seaweedq.concurrency.futures import fail, resolve
from seaweedq.coordination.roster import Roster
from seaweedq.coordination.seen_revisions import SeenRevisions
from seaweedq.errors import CoordinationUnavailable, NeedsNewerBroker, NotOwner, Restored, Unavailable
from seaweedq.segments.layout import mask_of
from seaweedq.segments.producers import Sequences
from seaweedq.segments.rows import Single, rows_of_singles
from seaweedq.segments.trace_headers import traceparents
from seaweedq.traces import Traces

PAUSE_S = 0.1
REFRESH_S = 0.5
WaitingSingle = tuple[Single, int, asyncio.Future[tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class FailedRows:
    """Rows of a batch (their indexes) that were not appended, or of which nobody knows."""

    indexes: np.ndarray
    error: Exception


@dataclass(frozen=True, slots=True)
class _BouncedSlice:
    """A slice of a segment that takes nothing any more; whether an earlier attempt may have appended it."""

    rows: Slice
    in_doubt: bool


Results = list[AppendedRows | FailedRows]


class RemoteAppender:
    """Appends rows at the owners of their segments."""

    def __init__(
        self,
        catalog: Catalog,
        ownership: Ownership,
        roster: Roster,
        local: LocalAppender,
        forwarder: Forwarder,
        identities: Identities,
        clock: Clock,
        coordination: SeenRevisions,
        traces: Traces | None,
    ) -> None:
        self._catalog = catalog
        self._ownership = ownership
        self._roster = roster
        self._local = local
        self._forwarder = forwarder
        self._identities = identities
        self._clock = clock
        self._coordination = coordination
        self._traces = traces
        self._gathered: dict[tuple[Topic, int], list[WaitingSingle]] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._refreshed_s: dict[str | None, float] = {}  # when a segment of an owner was looked at last

    async def append(
        self, topic: Topic, slices: Sequence[Slice], batch: Batch, sequences: Sequences | None, deadline: Deadline
    ) -> Results:
        """Appends slices of a batch. Without `sequences` each slice gets an identity of its own."""
        if sequences:
            return await self._append(topic, slices, batch, sequences, deadline)
        results = await asyncio.gather(*(self._append_alone(topic, one, batch, deadline) for one in slices))
        return [result for each in results for result in each]

    def single(
        self, topic: Topic, segment: int, message: Single, hashed: int, deadline: Deadline
    ) -> asyncio.Future[tuple[int, int]]:
        """Appends a message without identity, whose key hashes so, together with all others that wait for an
        identity, until the first one's deadline. Returns its segment and offset."""
        done: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
        waiting = self._gathered.setdefault((topic, segment), [])
        waiting.append((message, hashed, done))
        if len(waiting) == 1:
            task = asyncio.create_task(self._append_gathered(topic, segment, deadline))
            self._tasks[task] = None
            task.add_done_callback(self._tasks.pop)
        return done

    async def stop(self) -> None:
        """Ends the appends of gathered messages; their outcome is unknown."""
        for task in (tasks := [*self._tasks]):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _append_gathered(self, topic: Topic, segment: int, deadline: Deadline) -> None:
        waiting = self._gathered[topic, segment]
        failed: Exception = Unavailable("the broker is stopping")
        results: Results = []
        try:
            async with self._identities.lend(topic, segment, deadline) as identity:
                del self._gathered[topic, segment]  # the next ones gather anew
                hashes = np.array([hashed for _, hashed, _ in waiting], np.int32)
                batch = Batch(rows_of_singles([message for message, _, _ in waiting], topic.layout), lambda: hashes)
                slices = split(await in_time(self._ownership.routing(topic), deadline), batch)
                results = await self._append(topic, slices, batch, identity.sequences(len(waiting)), deadline)
        except Exception as error:
            failed = error
        finally:
            if self._gathered.get((topic, segment)) is waiting:
                del self._gathered[topic, segment]
            for result in results:
                for at, index in enumerate(result.indexes):
                    if isinstance(result, FailedRows):
                        fail(waiting[index][2], result.error)
                    else:
                        resolve(waiting[index][2], (result.segment, result.first + at))
            for _, _, done in waiting:
                fail(done, failed)

    async def _append_alone(self, topic: Topic, rows: Slice, whole: Batch, deadline: Deadline) -> Results:
        """Appends a slice as a batch of its own, with an identity of this broker's. Its results name the indexes of the
        whole."""
        alone = Batch(rows.encoded.rows, lambda: whole.hashes[rows.indexes])
        first = Slice(rows.segment, rows.part, rows.encoded, np.arange(len(rows.indexes)))
        try:
            async with self._identities.lend(topic, rows.segment, deadline) as identity:
                sequences = identity.sequences(len(rows.indexes))
                results = await self._append(topic, [first], alone, sequences, deadline)
        except Unavailable as error:
            return [FailedRows(rows.indexes, error)]
        return [dataclasses.replace(each, indexes=rows.indexes[each.indexes]) for each in results]

    async def _append(
        self, topic: Topic, slices: Sequence[Slice], batch: Batch, sequences: Sequences, deadline: Deadline
    ) -> Results:
        """Appends all slices of a batch. Those that bounce are split again until none does."""
        results: Results = []
        in_doubt = False
        while slices:
            work = (self._append_slice(topic, one, batch, sequences, in_doubt, deadline) for one in slices)
            bounced: list[_BouncedSlice] = []
            for ended in await asyncio.gather(*work):
                if isinstance(ended, _BouncedSlice):
                    bounced.append(ended)
                else:
                    results += ended
            in_doubt = in_doubt or any(one.in_doubt for one in bounced)
            slices = []
            if bounced:
                slices, failed = await self._split_again(topic, batch, [one.rows for one in bounced], deadline)
                results += failed
        return results

    async def _split_again(
        self, topic: Topic, batch: Batch, bounced: Sequence[Slice], deadline: Deadline
    ) -> tuple[list[Slice], list[FailedRows]]:
        """Returns the slices that can be appended, and the rows that only a repeat of the whole request may bring."""

        async def split_once() -> tuple[list[Slice], list[FailedRows]]:
            routing = await self._ownership.routing(topic)
            again = await asyncio.to_thread(split_again, routing, batch, bounced)
            whole = [is_whole(routing, batch, one) for one in again]
            torn = Unavailable("other rows of this request failed for the same key range; retry the whole request")
            failed = [FailedRows(one.indexes, torn) for one, good in zip(again, whole, strict=True) if not good]
            return list(compress(again, whole)), failed

        try:
            return await deadline.retry(split_once, on=Unavailable, pause_s=PAUSE_S)
        except Exception as error:
            return [], [FailedRows(one.indexes, error) for one in bounced]

    async def _append_slice(
        self, topic: Topic, rows: Slice, batch: Batch, sequences: Sequences, in_doubt: bool, deadline: Deadline
    ) -> "Results | _BouncedSlice":
        """Tries until one attempt succeeds, or fails for good, or time is over."""
        failed: Exception
        async for attempt in deadline.attempts(topic.moved, PAUSE_S):
            try:
                self._catalog.check(topic)
                known = self._ownership.record(topic, rows.segment)
                if known is not None and known.state == "sealed":
                    return _BouncedSlice(rows, in_doubt)
                outcome = await self._append_at_owner(topic, rows, sequences, deadline)
                outcome = msgspec.structs.replace(outcome, duplicate=outcome.duplicate and not in_doubt)
                return [*locate(batch, rows, outcome, self._ownership.record(topic, outcome.segment))]
            except (NeedsNewerBroker, Restored) as error:
                return [FailedRows(rows.indexes, error)]
            except Unavailable as error:
                failed = error
                in_doubt = in_doubt or not isinstance(error, NotOwner)
            except Exception as error:
                return [FailedRows(rows.indexes, error)]
            if not attempt.is_last():
                await self._refresh(topic, rows.segment, deadline)
        if in_doubt and isinstance(failed, NotOwner):  # that is true of the last attempt alone
            failed = unknown(deadline)
        return [FailedRows(rows.indexes, failed)]

    async def _append_at_owner(self, topic: Topic, rows: Slice, sequences: Sequences, deadline: Deadline) -> Outcome:
        """Tries once, at the owner that the segment's record names: this broker, or another one. Raises NotOwner if the
        rows were certainly not appended, another Unavailable if nobody knows."""
        if self._ownership.has(topic, rows.segment):
            try:
                opened = await deadline.bound(self._ownership.opened(topic, rows.segment))
            except TimeoutError:
                raise NotOwner(untaken(deadline).detail) from None  # certainly not appended
            return await self._local.append(opened, rows.part, rows.encoded, sequences, deadline)
        owner = self._catalog.segment(topic, rows.segment).record.owner
        url = self._roster.url(owner)
        if url is None:
            self._roster.check_journal(owner)
            detail = (
                f"segment {rows.segment} of topic {topic.name!r} belongs to broker {owner}, which is no longer running"
            )
            raise NotOwner(detail, owner=owner)

        def check_owner() -> None:
            record = self._catalog.segment(topic, rows.segment).record
            if record.owner != owner or not self._roster.alive(owner):
                detail = f"broker {owner} lost the segment, or stopped, before it answered"
                raise Unavailable(f"{detail}; it is unknown whether the rows were stored")

        sent = self._forwarder.send(url, _frame(topic, rows, sequences, self._coordination.seen))
        asking = ask_while(check_owner, sent, deadline)
        if self._traces is not None:
            contexts, about = traceparents(rows.encoded.rows), {"segment": str(rows.segment), "broker": owner}
            asking = self._traces.around(asking, "forward", topic.name, contexts, "CLIENT", **about)
        try:
            return await asking
        except TimeoutError:
            raise Unavailable(
                f"broker {owner} has not answered within publish_timeout_s={deadline.time_s:g}; it is "
                "unknown whether that broker stored the rows"
            ) from None

    async def _refresh(self, topic: Topic, segment: int, deadline: Deadline) -> None:
        """Reads a segment's record again, since the watch may be behind. All publishes that wait for segments of one
        owner look once in REFRESH_S: in a failover they are many."""
        known = self._ownership.record(topic, segment)
        owner = known.owner if known else None
        now_s = self._clock.monotonic_s()
        if now_s - self._refreshed_s.get(owner, -inf) >= REFRESH_S:
            self._refreshed_s = {other: at_s for other, at_s in self._refreshed_s.items() if now_s - at_s < REFRESH_S}
            self._refreshed_s[owner] = now_s
            with suppress(CoordinationUnavailable, TimeoutError):
                await deadline.bound(self._catalog.refresh(topic.name, segment))


def _frame(topic: Topic, rows: Slice, sequences: Sequences, seen: int) -> ForwardFrame:
    header = ForwardHeader(
        topic.name,
        topic.record.incarnation,
        rows.segment,
        rows.part,
        mask_of(rows.encoded.rows),
        sequences.producer,
        sequences.low,
        sequences.high,
        rows.encoded.payload.size,
        seen,
        rows.encoded.schema_id,
        sequences.only_repeats,
    )
    return ForwardFrame(header, rows.encoded.payload)

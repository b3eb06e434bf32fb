"""Appending rows to own segments: judged by the producer table, committed together, answered when durable.

The order that makes this right: rows are judged and given to the group commit in one step, without an await in between
(`begin` is such a step, and so is the middle of `Publisher.single`). So rows that were judged new count as pending
before any other request is judged, and a segment that is open when its rows are judged is still open when they are
given.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from seaweedq.broker.log.group_commit import Append, EncodedRows, GroupCommit
from seaweedq.broker.log.open_segment import InFlight, OpenSegment, Waiter
from seaweedq.broker.rpc.messages import Outcome
from seaweedq.concurrency.deadline import Deadline
from seaweedq.errors import NotOwner, SchemaMismatch, SequenceOutOfOrder, Unavailable
from seaweedq.segments.producers import OF_PRINCIPAL, OURS, Duplicate, Kind, New, OutOfOrder, Sequences

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PendingAppend:
    """Rows whose first offset is known, or will be once they are durable; `duplicate` if they were there already."""

    segment: int
    offset: int | asyncio.Future[int]
    duplicate: bool


def judge(segment: OpenSegment, part: int, count: int, sequences: Sequences | None) -> New | Duplicate | InFlight:
    """Judges rows for the part of the segment's range that begins at `part`. Raises SequenceOutOfOrder, SchemaMismatch
    for new rows of which only repeats count, and the error that closed the segment."""
    segment.check_open()
    if segment.sealed:
        raise NotOwner(
            f"segment {segment.id} of topic {segment.topic!r} was replaced by other segments, and accepts no messages"
        )
    if sequences is None:
        return New()
    verdict = segment.judge(part, sequences, count)
    if isinstance(verdict, New) and sequences.only_repeats:
        raise SchemaMismatch(
            "these messages are not valid, and are not a retry of a request whose messages are already stored"
        )
    if not isinstance(verdict, OutOfOrder):
        return verdict
    producer = sequences.producer
    if not producer.startswith(OURS):  # a client knows it without its principal's uid
        producer = producer.rpartition(OF_PRINCIPAL)[2]
    raise SequenceOutOfOrder(
        f"producer {producer} sent the sequence numbers {sequences.low} to {sequences.high}, "
        f"but its newest sequence number in this segment is {verdict.newest}, and the broker "
        "does not remember this request",
        producer=producer,
        sequence=sequences.low,
        newest=verdict.newest,
    )


class LocalAppender:
    """Appends rows through the group commit; a request waits for its durability until its deadline."""

    def __init__(self, commit: GroupCommit) -> None:
        self._commit = commit

    def begin(
        self, rows: Sequence[tuple[OpenSegment, int, EncodedRows]], sequences: Sequences | None
    ) -> list[PendingAppend]:
        """Judges all rows, each for a part of a segment, and gives the new ones to one commit, in the newest version of
        the schema that this broker knows. Rows of an import or a write keep their version if that has dropped a value
        of theirs: some of the work may be done, and a file has the others. Does not await.

        Raises SequenceOutOfOrder, SchemaMismatch, NotReady for a repeat without a lease, and the error that closed a
        segment, before anything is given.
        """
        keeps = sequences is not None and Kind.from_producer(sequences.producer) in (Kind.IMPORT, Kind.WRITE)
        verdicts = [judge(segment, part, encoded.rows.num_rows, sequences) for segment, part, encoded in rows]
        if any(isinstance(verdict, Duplicate) for verdict in verdicts):
            self._commit.check_lease()
        begun: list[PendingAppend] = []
        appends: list[Append] = []
        for (segment, part, encoded), verdict in zip(rows, verdicts, strict=True):
            if isinstance(verdict, Duplicate):
                begun.append(PendingAppend(verdict.segment, verdict.first_offset, True))
            elif isinstance(verdict, InFlight):
                begun.append(PendingAppend(segment.id, verdict.offset, True))
            else:
                offset: asyncio.Future[int] = asyncio.get_running_loop().create_future()
                encoded = encoded.raised(segment.layout, segment.topic, keeps)
                appends.append(Append(segment, encoded, (Waiter(0, encoded.rows.num_rows, offset, part, sequences),)))
                begun.append(PendingAppend(segment.id, offset, False))
        if appends:
            self._commit.append(appends)
        return begun

    async def end(self, begun: Sequence[PendingAppend], deadline: Deadline) -> list[Outcome]:
        """Waits until all of them are durable. Raises Unavailable."""
        try:
            async with asyncio.timeout(deadline.left_s):
                outcomes: list[Outcome] = []
                for one in begun:  # others may wait for the same future, so it is not cancelled with this request
                    offset = one.offset if isinstance(one.offset, int) else await asyncio.shield(one.offset)
                    outcomes.append(Outcome(one.segment, offset, one.duplicate))
                return outcomes
        except TimeoutError as error:
            raise unknown(deadline) from error

    async def append(
        self, segment: OpenSegment, part: int, rows: EncodedRows, sequences: Sequences, deadline: Deadline
    ) -> Outcome:
        """Appends rows of one part. Raises SequenceOutOfOrder, Unavailable, and the error that closed the segment."""
        (outcome,) = await self.end(self.begin([(segment, part, rows)], sequences), deadline)
        return outcome


def unknown(deadline: Deadline) -> Unavailable:
    """Returns the error for rows that were given to a journal, which nobody can withdraw, and have no answer in
    time."""
    detail = f"not durable within publish_timeout_s={deadline.time_s:g}; it is unknown whether the messages were stored"
    return Unavailable(detail, retry_after_s=1)


def untaken(deadline: Deadline) -> Unavailable:
    """Returns the error for rows that were given to nobody in time."""
    detail = f"could not be stored within publish_timeout_s={deadline.time_s:g}; nothing was stored"
    return Unavailable(detail, retry_after_s=1)


async def in_time(work: Awaitable[T], deadline: Deadline) -> T:
    """Returns the result of `work`, while no row was given to anybody. Raises Unavailable at the deadline."""
    try:
        return await deadline.bound(work)
    except TimeoutError:
        raise untaken(deadline) from None

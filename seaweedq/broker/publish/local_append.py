"""Taking rows into own segments: judged by the producer table, committed together, answered when durable.

Between the judgement and the adding to a commit there is no await: what is judged new is on its way, and a segment that
is open when its rows are judged is still open when they are added.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from seaweedq.broker.log.group_commit import Claim, GroupCommit, Part, Rows
from seaweedq.broker.log.open_segment import OpenSegment, Waiting
from seaweedq.broker.rpc.forward_frames import Outcome
from seaweedq.errors import NotOwner, SequenceOutOfOrder, Unavailable
from seaweedq.futures import fail
from seaweedq.segments.producers import Duplicate, OutOfOrder, Sequences
from seaweedq.segments.rows import Single

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Judged:
    """A share of a request, where the part that it falls into begins, and what is known of it: None is new."""

    part: Part
    low: int
    known: Duplicate | Waiting | None


def judged(segment: OpenSegment, low: int, rows: Rows, sequences: Sequences | None) -> Judged:
    """Rows for the part of the segment's range that begins at `low`. Raises SequenceOutOfOrder, and what closed the
    segment."""
    _check_takes(segment)
    verdict = segment.judge(low, sequences, rows.batch.num_rows) if sequences else None
    if isinstance(verdict, OutOfOrder):
        assert sequences
        raise _out_of_order(sequences, verdict)
    return Judged(Part.of(segment, rows), low, verdict if isinstance(verdict, Duplicate | Waiting) else None)


def _check_takes(segment: OpenSegment) -> None:
    segment.check_open()
    if segment.sealed:
        raise NotOwner(f"segment {segment.id} of {segment.topic!r} is sealed")


class Taker:
    """Takes rows through the group commit; a request waits for its durability for at most `timeout_s`."""

    def __init__(self, commit: GroupCommit, timeout_s: float) -> None:
        self._commit = commit
        self._timeout_s = timeout_s

    def begin(self, parts: Sequence[Judged], sequences: Sequences | None) -> asyncio.Future[None] | None:
        """Add the new ones to one commit, in the step in which they were judged."""
        new = [one for one in parts if one.known is None]
        if not new:
            return None
        durable = self._commit.add([one.part for one in new])
        for one in new if sequences else ():
            assert sequences
            done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            count = one.part.rows.num_rows
            one.part.claims = [Claim(0, count, done, one.low, sequences)]
            one.part.segment.expect(one.low, sequences, count, done)
        return durable

    async def end(self, parts: Sequence[Judged], durable: asyncio.Future[None] | None) -> list[Outcome]:
        """Wait until the new ones are durable, and those that were on their way; look up what is known."""
        if durable:
            await self._durable(durable)
        return [await self._outcome(one) for one in parts]

    async def take(self, segment: OpenSegment, low: int, rows: Rows, sequences: Sequences) -> Outcome:
        """Rows of one part. Raises SequenceOutOfOrder, Unavailable, and what closed the segment."""
        parts = [judged(segment, low, rows, sequences)]
        (outcome,) = await self.end(parts, self.begin(parts, sequences))
        return outcome

    async def single(
        self, segment: OpenSegment, low: int, message: Single, sequences: Sequences | None
    ) -> tuple[int, int, bool]:
        """One message: segment and offset, and whether it was there already."""
        _check_takes(segment)
        if sequences is None:
            return segment.id, await self._own(self._commit.add_single(segment, low, message, None)), False
        verdict = segment.judge(low, sequences, 1)
        if isinstance(verdict, OutOfOrder):
            raise _out_of_order(sequences, verdict)
        if isinstance(verdict, Duplicate):
            return verdict.segment, verdict.first_offset, True
        if isinstance(verdict, Waiting):
            return segment.id, await self._durable(verdict.done), True
        done = self._commit.add_single(segment, low, message, sequences)
        segment.expect(low, sequences, 1, done)
        return segment.id, await self._durable(done), False

    async def _outcome(self, one: Judged) -> Outcome:
        if isinstance(one.known, Duplicate):
            return Outcome(one.known.segment, one.known.first_offset, True)
        if isinstance(one.known, Waiting):
            return Outcome(one.part.segment.id, await self._durable(one.known.done), True)
        return Outcome(one.part.segment.id, one.part.first)

    async def _own(self, done: asyncio.Future[T]) -> T:
        """As `_durable`, of a future for which nobody else waits."""
        timer = asyncio.get_running_loop().call_later(self._timeout_s, self._give_up, done)
        try:
            return await done
        finally:
            timer.cancel()

    async def _durable(self, done: asyncio.Future[T]) -> T:
        """Wait, but not for ever; others may wait for the same future, so it is not cancelled with us."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.shield(done)
        except TimeoutError as error:
            raise self._timed_out() from error

    def _give_up(self, done: asyncio.Future[T]) -> None:
        fail(done, self._timed_out())

    def _timed_out(self) -> Unavailable:
        detail = f"not durable within publish_timeout_s={self._timeout_s:g}; whether it was taken is unknown"
        return Unavailable(detail, retry_after_s=1)


def _out_of_order(sequences: Sequences, verdict: OutOfOrder) -> SequenceOutOfOrder:
    return SequenceOutOfOrder(
        f"producer {sequences.producer} sent {sequences.low} to {sequences.high}; its newest known sequence here is "
        f"{verdict.newest}, and this is none of the last remembered requests",
        producer=sequences.producer,
        sequence=sequences.low,
        newest=verdict.newest,
    )

"""Publishing: cut a request by segment, judge its sequence, commit it, say where its messages are.

All parts of a request are judged before any is taken, with no await in between; then they go into one group commit.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from seaweedq.broker.commit import Claim, GroupCommit, Part
from seaweedq.broker.open_segment import OpenSegment, Sequences, Waiting
from seaweedq.clock import Ids
from seaweedq.errors import SequenceOutOfOrder, Unavailable
from seaweedq.segments.keyhash import cut, hash_key, hash_rows, route
from seaweedq.segments.keyrange import KEY_SPACE
from seaweedq.segments.producers import Duplicate, OutOfOrder
from seaweedq.segments.rows import Single

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Producer:
    """`Producer-Id` and the sequence number of the request's first message."""

    id: str
    sequence: int

    def sequences(self, count: int) -> Sequences:
        """The request's whole range."""
        return Sequences(self.id, self.sequence, self.sequence + count - 1)


@dataclass(frozen=True, slots=True)
class Placed:
    """Rows of the request (their indexes, in order) that got the offsets from `first` in `segment`."""

    segment: int
    first: int
    indexes: np.ndarray


@dataclass(frozen=True, slots=True)
class Published:
    """The answer to a publish; `duplicate` only if no row was newly taken."""

    count: int
    placed: Sequence[Placed]
    duplicate: bool


@dataclass(frozen=True, slots=True)
class _Judged:
    part: Part
    indexes: np.ndarray
    known: Duplicate | Waiting | None


class Publisher:
    """Takes messages for the segments of one topic at a time; `bounds` are the segments' sorted lower ends."""

    def __init__(self, commit: GroupCommit, ids: Ids, timeout_s: float) -> None:
        self._commit = commit
        self._ids = ids
        self._timeout_s = timeout_s

    async def single(
        self, segments: Sequence[OpenSegment], bounds: np.ndarray, message: Single, producer: Producer | None
    ) -> tuple[int, int, bool]:
        """One message: segment, offset, and whether it was there already."""
        segment = segments[self._position(bounds, message, producer)]
        segment.check_open()
        sequences = producer.sequences(1) if producer else None
        done = self._known_single(segment, sequences) if sequences else None
        duplicate = done is not None
        if done is None:
            done = self._commit.add_single(segment, message, sequences)
            if sequences:
                segment.expect(sequences, 1, done)
        return segment.id, await (self._durable(done) if producer else self._own(done)), duplicate

    async def batch(
        self, segments: Sequence[OpenSegment], bounds: np.ndarray, rows: pa.RecordBatch, producer: Producer | None
    ) -> Published:
        """Many messages, all or nothing."""
        drawn = self._draw()
        parts = await asyncio.to_thread(_cut, segments, bounds, rows, producer, drawn)
        for part, _ in parts:
            part.segment.check_open()
        sequences = producer.sequences(rows.num_rows) if producer else None
        judged = [_Judged(part, indexes, _judge(part, sequences) if sequences else None) for part, indexes in parts]
        new = [one.part for one in judged if one.known is None]
        if new:
            durable = self._commit.add(new)
            if sequences:
                for part in new:
                    _claim(part, sequences)
            await self._durable(durable)
        placed = [Placed(one.part.segment.id, await self._first(one), one.indexes) for one in judged]
        return Published(rows.num_rows, placed, duplicate=not new)

    def _draw(self) -> int:
        return int(self._ids.nonce()[:8], 16) % KEY_SPACE

    def _position(self, bounds: np.ndarray, message: Single, producer: Producer | None) -> int:
        if len(bounds) == 1:
            return 0
        if message.key is not None:
            hashed = hash_key(message.key)
        else:
            hashed = hash_key(f"{producer.id}:{producer.sequence}") if producer else self._draw()
        return int(np.searchsorted(bounds, hashed, side="right")) - 1

    def _known_single(self, segment: OpenSegment, sequences: Sequences) -> asyncio.Future[int] | None:
        verdict = segment.judge(sequences, 1)
        if isinstance(verdict, OutOfOrder):
            raise _out_of_order(sequences, verdict)
        if isinstance(verdict, Waiting):
            return verdict.done
        if isinstance(verdict, Duplicate):
            done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            done.set_result(verdict.first_offset)
            return done
        return None

    async def _first(self, one: _Judged) -> int:
        if isinstance(one.known, Duplicate):
            return one.known.first_offset
        if isinstance(one.known, Waiting):
            return await self._durable(one.known.done)
        return one.part.first

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

    def _give_up(self, done: asyncio.Future[Any]) -> None:
        if not done.done():
            done.set_exception(self._timed_out())

    def _timed_out(self) -> Unavailable:
        detail = f"not durable within publish_timeout_s={self._timeout_s:g}; whether it was taken is unknown"
        return Unavailable(detail, retry_after_s=1)


def _cut(
    segments: Sequence[OpenSegment], bounds: np.ndarray, rows: pa.RecordBatch, producer: Producer | None, drawn: int
) -> list[tuple[Part, np.ndarray]]:
    """Hash, route and cut in a worker thread; stable, so that a key's messages keep their order."""
    if len(segments) == 1:
        return [(Part.of(segments[0], rows), np.arange(rows.num_rows))]
    at = rows.schema.get_field_index("_key")
    keys = rows.column(at) if at >= 0 else None
    hashes = hash_rows(
        keys, rows.num_rows, producer.id if producer else None, producer.sequence if producer else None, drawn
    )
    pieces = cut(rows, route(hashes, bounds), len(segments))
    return [(Part.of(segments[position], piece), indexes) for position, piece, indexes in pieces]


def _judge(part: Part, sequences: Sequences) -> Duplicate | Waiting | None:
    verdict = part.segment.judge(sequences, part.rows.num_rows)
    if isinstance(verdict, OutOfOrder):
        raise _out_of_order(sequences, verdict)
    return verdict if isinstance(verdict, Duplicate | Waiting) else None


def _claim(part: Part, sequences: Sequences) -> None:
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    part.claims = [Claim(0, part.rows.num_rows, done, sequences)]
    part.segment.expect(sequences, part.rows.num_rows, done)


def _out_of_order(sequences: Sequences, verdict: OutOfOrder) -> SequenceOutOfOrder:
    return SequenceOutOfOrder(
        f"producer {sequences.producer} sent {sequences.low} to {sequences.high}; its newest known sequence here is "
        f"{verdict.newest}, and this is none of the last remembered requests",
        producer=sequences.producer,
        sequence=sequences.low,
        newest=verdict.newest,
    )

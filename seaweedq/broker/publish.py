"""Publishing: cut a request by segment, say where its messages are.

Parts for own segments are all judged before any is taken, with no await in between; then they go into one group commit
(broker/taking). Parts for others' segments go to their owners (broker/elsewhere).
"""

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from seaweedq.broker.catalog import Routing, Topic
from seaweedq.broker.commit import Rows
from seaweedq.broker.elsewhere import Elsewhere
from seaweedq.broker.open_segment import Sequences
from seaweedq.broker.ownership import Ownership
from seaweedq.broker.parcels import Outcome
from seaweedq.broker.taking import Taker, judged
from seaweedq.clock import Ids
from seaweedq.errors import NotOwner, PartlyTaken, SequenceOutOfOrder, Unavailable
from seaweedq.segments.keyhash import cut, hash_key, hash_rows, route
from seaweedq.segments.keyrange import KEY_SPACE
from seaweedq.segments.rows import Single, rows_of_singles


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
class _Piece:
    """The rows of a request that belong to one segment, and their indexes in the request."""

    segment: int
    rows: Rows
    indexes: np.ndarray


class Publisher:
    """Takes messages at this broker, whoever owns their segments."""

    def __init__(self, ownership: Ownership, taker: Taker, elsewhere: Elsewhere, ids: Ids) -> None:
        self._ownership = ownership
        self._taker = taker
        self._elsewhere = elsewhere
        self._ids = ids

    async def single(self, topic: Topic, message: Single, producer: Producer | None) -> tuple[int, int, bool]:
        """One message: segment, offset, and whether it was there already."""
        routing = topic.routing or await self._ownership.routing(topic)
        position = self._position(routing.bounds, message, producer)
        number = routing.ids[position]
        segment = routing.opened[position] or await self._ownership.open(topic, number)
        sequences = producer.sequences(1) if producer else None
        if segment is not None and not isinstance(segment.closed, NotOwner):
            return number, *await self._taker.single(segment, message, sequences)
        if sequences is None:
            return number, await self._elsewhere.single(topic, number, message), False
        rows = Rows.of(rows_of_singles([message], topic.layout))
        outcome = await self._elsewhere.settle(topic, number, rows, sequences)
        return number, outcome.first_offset, outcome.duplicate

    async def batch(self, topic: Topic, rows: pa.RecordBatch, producer: Producer | None) -> Published:
        """Many messages. Own segments take all of theirs or none. Raises PartlyTaken where others took some."""
        routing = topic.routing or await self._ownership.routing(topic)
        pieces = await asyncio.to_thread(_cut, routing, rows, producer, self._draw())
        sequences = producer.sequences(rows.num_rows) if producer else None
        if closed := [p.segment for p in pieces if p.segment not in topic.opened]:
            await asyncio.gather(*(self._ownership.open(topic, number) for number in closed))
        opened = {p.segment: topic.opened.get(p.segment) for p in pieces}
        here = {n: s for n, s in opened.items() if s and not isinstance(s.closed, NotOwner)}
        parts = [judged(here[p.segment], p.rows, sequences) for p in pieces if p.segment in here]
        own = self._taker.end(parts, self._taker.begin(parts, sequences))
        if len(here) == len(pieces):
            return _published(rows.num_rows, pieces, await own)
        others = [p for p in pieces if p.segment not in here]
        settling = (self._elsewhere.settle(topic, p.segment, p.rows, sequences) for p in others)
        ours, theirs = await asyncio.gather(_caught(own), asyncio.gather(*settling, return_exceptions=True))
        ends: dict[int, Outcome | BaseException] = dict(zip((p.segment for p in others), theirs, strict=True))
        ends |= dict(zip(here, ours if isinstance(ours, list) else [ours] * len(here), strict=True))
        return _published(rows.num_rows, pieces, [ends[p.segment] for p in pieces])

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


async def _caught(work: Awaitable[list[Outcome]]) -> list[Outcome] | Exception:
    try:
        return await work
    except Exception as error:
        return error


def _cut(routing: Routing, rows: pa.RecordBatch, producer: Producer | None, drawn: int) -> list[_Piece]:
    """Hash, route and cut in a worker thread; stable, so that a key's messages keep their order."""
    if len(routing.ids) == 1:
        return [_Piece(routing.ids[0], Rows.of(rows), np.arange(rows.num_rows))]
    at = rows.schema.get_field_index("_key")
    keys = rows.column(at) if at >= 0 else None
    hashes = hash_rows(
        keys, rows.num_rows, producer.id if producer else None, producer.sequence if producer else None, drawn
    )
    pieces = cut(rows, route(hashes, routing.bounds), len(routing.ids))
    return [_Piece(routing.ids[position], Rows.of(piece), indexes) for position, piece, indexes in pieces]


def _published(count: int, pieces: Sequence[_Piece], outcomes: Sequence[Outcome | BaseException]) -> Published:
    """The answer to a request whose pieces ended so. Raises the error that says most."""
    placed = [
        Placed(piece.segment, outcome.first_offset, piece.indexes)
        for piece, outcome in zip(pieces, outcomes, strict=True)
        if isinstance(outcome, Outcome)
    ]
    errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    if not errors:
        return Published(count, placed, all(isinstance(o, Outcome) and o.duplicate for o in outcomes))
    taken = [{"segment": p.segment, "first_offset": p.first, "count": len(p.indexes)} for p in placed]
    for error in errors:
        if isinstance(error, SequenceOutOfOrder):
            error.fields["taken"] = taken
            raise error
    for error in errors:
        if not isinstance(error, Unavailable):
            raise error
    if taken:
        raise PartlyTaken(f"{len(errors)} of {len(pieces)} segments have not taken theirs: {errors[0]}", taken=taken)
    raise errors[0]

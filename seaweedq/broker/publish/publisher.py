"""Publishing: cut a request by the parts of segments, say where its messages are.

Pieces for own segments are all judged before any is taken, with no await in between; then they go into one group commit
(broker/publish/local_append). Pieces for others' segments go to their owners (broker/publish/remote_append).
"""

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from seaweedq.broker.publish.batch_split import Cargo, Piece, Placed, cut_all, places
from seaweedq.broker.publish.local_append import Taker, judged
from seaweedq.broker.publish.remote_append import Elsewhere, Failed
from seaweedq.broker.rpc.forward_frames import Outcome
from seaweedq.broker.topics.bounds import Bounds
from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.topics.ownership import Ownership
from seaweedq.clock import Ids
from seaweedq.errors import PartlyTaken, SequenceOutOfOrder, Unavailable
from seaweedq.segments.keyhash import Hashes, hash_key, hash_rows
from seaweedq.segments.keyrange import KEY_SPACE
from seaweedq.segments.producers import Sequences
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
class Published:
    """The answer to a publish; `duplicate` only if no row was newly taken."""

    count: int
    placed: Sequence[Placed]
    duplicate: bool


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request's rows, cut by the parts of a topic's segments as they were known then."""

    routing: Bounds
    cargo: Cargo
    pieces: Sequence[Piece]
    sequences: Sequences | None


Fates = Sequence[Placed | Failed]


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
        hashed = self._hash(message, producer) if len(routing.ids) > 1 else 0
        position = int(np.searchsorted(routing.lows, hashed, side="right")) - 1
        segment = routing.opened[position] or await self._ownership.open(topic, routing.ids[position])
        sequences = producer.sequences(1) if producer else None
        if segment is not None and not segment.takes_elsewhere:
            return await self._taker.single(segment, int(routing.lows[position]), message, sequences)
        hashed = hashed if len(routing.ids) > 1 else self._hash(message, producer)
        if sequences is None:
            return *await self._elsewhere.single(topic, routing.ids[position], message, hashed), False
        cargo = Cargo(rows_of_singles([message], topic.layout), lambda: np.array([hashed], np.int32))
        published = _published(1, await self._elsewhere.settle(topic, cut_all(routing, cargo), cargo, sequences))
        return published.placed[0].segment, published.placed[0].first, published.duplicate

    async def batch(self, topic: Topic, rows: pa.RecordBatch, producer: Producer | None) -> Published:
        """Many messages. Own segments take all of theirs or none. Raises PartlyTaken where others took some."""
        return await self.take(topic, await self.prepare(topic, rows, producer))

    async def prepare(self, topic: Topic, rows: pa.RecordBatch, producer: Producer | None) -> Prepared:
        """What of a publish can be done while the one before it becomes durable: most of its work."""
        cargo = Cargo(rows, partial(_hashes, rows, producer, self._draw()))
        return await self._cut(topic, cargo, producer.sequences(rows.num_rows) if producer else None)

    async def take(self, topic: Topic, prepared: Prepared) -> Published:
        """As `batch`; may be called again after a failure, where the request has a producer."""
        if topic.routing is not prepared.routing:
            prepared = await self._cut(topic, prepared.cargo, prepared.sequences)
        cargo, pieces, sequences = prepared.cargo, prepared.pieces, prepared.sequences
        count = cargo.rows.num_rows
        if closed := {p.segment for p in pieces} - topic.opened.keys():
            await asyncio.gather(*(self._ownership.open(topic, number) for number in closed))
        opened = [topic.opened.get(piece.segment) for piece in pieces]
        mine = [(p, s) for p, s in zip(pieces, opened, strict=True) if s and not s.takes_elsewhere]
        parts = [judged(segment, piece.part, piece.rows, sequences) for piece, segment in mine]
        durable = self._taker.begin(parts, sequences)
        here = [piece for piece, _ in mine]
        if len(here) == len(pieces):
            return _published(count, self._places(topic, cargo, here, await self._taker.end(parts, durable)))
        others = [p for p, s in zip(pieces, opened, strict=True) if not s or s.takes_elsewhere]
        ours, theirs = await asyncio.gather(
            _caught(self._taker.end(parts, durable)), self._elsewhere.settle(topic, others, cargo, sequences)
        )
        if isinstance(ours, Exception):
            failed: Fates = [Failed(piece, ours) for piece in here]
            return _published(count, [*failed, *theirs])
        return _published(count, [*self._places(topic, cargo, here, ours), *theirs])

    async def _cut(self, topic: Topic, cargo: Cargo, sequences: Sequences | None) -> Prepared:
        routing = topic.routing or await self._ownership.routing(topic)
        return Prepared(routing, cargo, await asyncio.to_thread(cut_all, routing, cargo), sequences)

    def _places(self, topic: Topic, cargo: Cargo, pieces: Sequence[Piece], outcomes: list[Outcome]) -> Fates:
        found: list[Placed] = []
        for piece, outcome in zip(pieces, outcomes, strict=True):
            moved = outcome.segment != piece.segment
            found += places(cargo, piece, outcome, self._ownership.record(topic, outcome.segment) if moved else None)
        return found

    def _draw(self) -> int:
        return int(self._ids.nonce()[:8], 16) % KEY_SPACE

    def _hash(self, message: Single, producer: Producer | None) -> int:
        if message.key is not None:
            return hash_key(message.key)
        return hash_key(f"{producer.id}:{producer.sequence}") if producer else self._draw()


def _hashes(rows: pa.RecordBatch, producer: Producer | None, drawn: int) -> Hashes:
    at = rows.schema.get_field_index("_key")
    keys = rows.column(at) if at >= 0 else None
    name, first = (producer.id, producer.sequence) if producer else (None, None)
    return hash_rows(keys, rows.num_rows, name, first, drawn)


async def _caught(work: Awaitable[list[Outcome]]) -> list[Outcome] | Exception:
    try:
        return await work
    except Exception as error:
        return error


def _published(count: int, fates: Fates) -> Published:
    """The answer to a request whose pieces ended so. Raises the error that says most."""
    placed = sorted((f for f in fates if isinstance(f, Placed)), key=lambda one: (one.segment, one.first))
    failed = [fate.error for fate in fates if isinstance(fate, Failed)]
    if not failed:
        return Published(count, placed, all(p.duplicate for p in placed))
    taken = [{"segment": p.segment, "first_offset": p.first, "count": len(p.indexes)} for p in placed]
    for error in failed:
        if isinstance(error, SequenceOutOfOrder):
            error.fields["taken"] = taken
            raise error
    for error in failed:
        if not isinstance(error, Unavailable):
            raise error
    if taken:
        untaken = sum(len(fate.piece.indexes) for fate in fates if isinstance(fate, Failed))
        why = next(error for error in failed if isinstance(error, Unavailable))
        detail = f"{untaken} of {count} messages were not taken: {why.detail}"
        raise PartlyTaken(detail, inside=why.inside, taken=taken)
    raise failed[0]

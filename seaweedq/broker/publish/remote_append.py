"""Rows for segments of other brokers, or of nobody just now: settled with whoever owns their segment, until the time
for a publish is over.

Every cargo has an identity: the client's producer and sequences, or those of a slot (broker/publish/forwarder). A try
whose answer was lost is repeated under the same identity, at the same owner or at the next one, which may be this
broker. Pieces whose segment was sealed meanwhile *bounce*: once the others of their cargo are settled they are cut
again, all together, by the successors' parts, and go on under the same identity, which the successors know from their
predecessor.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import compress

import msgspec
import numpy as np

from seaweedq.broker.publish.batch_split import Cargo, Piece, Placed, cut_again, cut_all, is_whole, places
from seaweedq.broker.publish.forwarder import Outbound, Slots
from seaweedq.broker.publish.local_append import Taker
from seaweedq.broker.rpc.forward_frames import Header, Outcome, Parcel
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.topics.ownership import Ownership
from seaweedq.clock import Clock
from seaweedq.coordination.roster import Roster
from seaweedq.errors import CoordinationUnavailable, NotOwner, Unavailable
from seaweedq.futures import fail, resolve
from seaweedq.segments.layout import mask_of
from seaweedq.segments.producers import Sequences
from seaweedq.segments.rows import Single, rows_of_singles

PAUSE_S = 0.1
LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class Failed:
    """A piece whose rows were not taken, or of which nobody knows."""

    piece: Piece
    error: Exception


@dataclass(frozen=True, slots=True)
class _Bounced:
    """A piece of a segment that takes nothing any more; whether an earlier try may have been taken."""

    piece: Piece
    in_doubt: bool


Gathered = tuple[Single, int, asyncio.Future[tuple[int, int]]]


class Elsewhere:
    """Publishes at the owners of segments. `timeout_s`: how long a publish may take."""

    def __init__(
        self,
        catalog: Catalog,
        ownership: Ownership,
        roster: Roster,
        taker: Taker,
        outbound: Outbound,
        slots: Slots,
        clock: Clock,
        timeout_s: float,
    ) -> None:
        self._catalog = catalog
        self._ownership = ownership
        self._roster = roster
        self._taker = taker
        self._outbound = outbound
        self._slots = slots
        self._clock = clock
        self._timeout_s = timeout_s
        self._gathered: dict[tuple[Topic, int], list[Gathered]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def settle(
        self, topic: Topic, pieces: Sequence[Piece], cargo: Cargo, sequences: Sequences | None
    ) -> list[Placed | Failed]:
        """Have the owners take the pieces, whoever they are. Without `sequences` each piece gets an identity of its
        own."""
        end_s = self._clock.monotonic_s() + self._timeout_s
        if sequences:
            return await self._settle(topic, pieces, cargo, sequences, end_s)
        settled = await asyncio.gather(*(self._settle_alone(topic, piece, cargo, end_s) for piece in pieces))
        return [fate for fates in settled for fate in fates]

    def single(self, topic: Topic, segment: int, message: Single, hashed: int) -> asyncio.Future[tuple[int, int]]:
        """A message without identity, whose key hashes so: its segment and offset. Those that wait for a slot go
        together."""
        done: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
        waiting = self._gathered.setdefault((topic, segment), [])
        waiting.append((message, hashed, done))
        if len(waiting) == 1:
            task = asyncio.create_task(self._send_gathered(topic, segment))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return done

    async def _send_gathered(self, topic: Topic, segment: int) -> None:
        end_s = self._clock.monotonic_s() + self._timeout_s
        waiting = self._gathered[topic, segment]
        failed: Exception = Unavailable("the broker is stopping")
        fates: list[Placed | Failed] = []
        try:
            async with self._slots.take(topic, segment, self._timeout_s) as slot:
                del self._gathered[topic, segment]  # the next ones gather anew
                hashes = np.array([hashed for _, hashed, _ in waiting], np.int32)
                cargo = Cargo(rows_of_singles([message for message, _, _ in waiting], topic.layout), lambda: hashes)
                pieces = cut_all(await self._ownership.routing(topic), cargo)
                fates = await self._settle(topic, pieces, cargo, slot.sequences(len(waiting)), end_s)
        except Exception as error:
            failed = error
        finally:
            if self._gathered.get((topic, segment)) is waiting:
                del self._gathered[topic, segment]
            for fate in fates:
                _answer(waiting, fate)
            for _, _, done in waiting:
                fail(done, failed)

    async def _settle_alone(self, topic: Topic, piece: Piece, whole: Cargo, end_s: float) -> list[Placed | Failed]:
        """A piece as a cargo of its own, with the identity of a slot; its fates by the indexes of the whole."""
        alone = Cargo(piece.rows.batch, lambda: whole.hashes[piece.indexes])
        first = Piece(piece.segment, piece.part, piece.rows, np.arange(len(piece.indexes)))
        try:
            async with self._slots.take(topic, piece.segment, self._timeout_s) as slot:
                sequences = slot.sequences(len(piece.indexes))
                fates = await self._settle(topic, [first], alone, sequences, end_s)
        except Unavailable as error:
            return [Failed(piece, error)]
        return [_outward(fate, piece) for fate in fates]

    async def _settle(
        self, topic: Topic, pieces: Sequence[Piece], cargo: Cargo, sequences: Sequences, end_s: float
    ) -> list[Placed | Failed]:
        """Settle all pieces of a cargo; what bounces is cut again until nothing does."""
        settled: list[Placed | Failed] = []
        in_doubt = False
        while pieces:
            work = (self._settle_piece(topic, piece, cargo, sequences, in_doubt, end_s) for piece in pieces)
            bounced: list[_Bounced] = []
            for fates in await asyncio.gather(*work):
                if isinstance(fates, _Bounced):
                    bounced.append(fates)
                else:
                    settled += fates
            in_doubt = in_doubt or any(one.in_doubt for one in bounced)
            pieces = [one.piece for one in bounced]
            try:
                pieces, torn = await self._cut_again(topic, cargo, pieces, end_s) if pieces else ([], [])
            except Exception as error:
                return settled + [Failed(piece, error) for piece in pieces]
            settled += [Failed(piece, Unavailable("other rows of the request have failed there")) for piece in torn]
        return settled

    async def _cut_again(
        self, topic: Topic, cargo: Cargo, pieces: Sequence[Piece], end_s: float
    ) -> tuple[list[Piece], list[Piece]]:
        """What can be taken, and what only a repeat of the whole request may bring."""
        while True:
            try:
                routing = await self._ownership.routing(topic)
                again = await asyncio.to_thread(cut_again, routing, cargo, pieces)
                whole = [is_whole(routing, cargo, piece) for piece in again]
                return list(compress(again, whole)), [p for p, good in zip(again, whole, strict=True) if not good]
            except Unavailable:
                if self._clock.monotonic_s() >= end_s:
                    raise
            await asyncio.sleep(PAUSE_S)

    async def _settle_piece(
        self, topic: Topic, piece: Piece, cargo: Cargo, sequences: Sequences, in_doubt: bool, end_s: float
    ) -> "list[Placed] | list[Failed] | _Bounced":
        look_s = self._clock.monotonic_s() + LOOK_S
        while True:
            seen = topic.moved.count
            try:
                self._catalog.check(topic)
                if self._is_sealed(topic, piece.segment):
                    return _Bounced(piece, in_doubt)
                outcome = await self._try(topic, piece, sequences, end_s)
                outcome = msgspec.structs.replace(outcome, duplicate=outcome.duplicate and not in_doubt)
                return places(cargo, piece, outcome, self._ownership.record(topic, outcome.segment))
            except Unavailable as error:
                in_doubt = in_doubt or not isinstance(error, NotOwner)
                now_s = self._clock.monotonic_s()
                if (left_s := end_s - now_s) <= 0:
                    return [Failed(piece, error)]
                if now_s >= look_s:  # the watch may be behind
                    look_s = now_s + LOOK_S
                    with suppress(CoordinationUnavailable):
                        await self._catalog.look(topic.name, piece.segment)
            except Exception as error:
                return [Failed(piece, error)]
            if topic.moved.count == seen:
                await topic.moved.wait(min(PAUSE_S, left_s))

    def _is_sealed(self, topic: Topic, segment: int) -> bool:
        record = self._ownership.record(topic, segment)
        return record is not None and record.state == "sealed"

    async def _try(self, topic: Topic, piece: Piece, sequences: Sequences, end_s: float) -> Outcome:
        if self._ownership.has(topic, piece.segment):
            opened = await self._ownership.opened(topic, piece.segment)
            return await self._taker.take(opened, piece.part, piece.rows, sequences)
        owner = self._catalog.segment(topic, piece.segment)[0].owner
        url = self._roster.url(owner)
        if url is None:
            raise NotOwner(f"segment {piece.segment} of {topic.name!r} belongs to {owner}, who is gone", owner=owner)
        return await self._forward(topic, owner, url, _parcel(topic, piece, sequences), end_s)

    async def _forward(self, topic: Topic, owner: str | None, url: str, parcel: Parcel, end_s: float) -> Outcome:
        """Wait for the owner's answer for as long as it is the owner, and lives."""
        sent = self._outbound.send(url, parcel)
        try:
            while (left_s := end_s - self._clock.monotonic_s()) > 0:
                await asyncio.wait([sent], timeout=min(LOOK_S, left_s))
                if sent.done():
                    return sent.result()
                record, _ = self._catalog.segment(topic, parcel.header.segment)
                if record.owner != owner or not self._roster.alive(owner):
                    raise Unavailable(f"{owner} is not the owner any more, and has not answered")
            raise Unavailable(
                f"{owner} has not answered within publish_timeout_s={self._timeout_s:g}; "
                "whether it took the rows is unknown"
            )
        finally:
            sent.cancel()


def _answer(waiting: Sequence[Gathered], fate: Placed | Failed) -> None:
    if isinstance(fate, Failed):
        for index in fate.piece.indexes:
            fail(waiting[index][2], fate.error)
        return
    for at, index in enumerate(fate.indexes):
        resolve(waiting[index][2], (fate.segment, fate.first + at))


def _outward(fate: Placed | Failed, piece: Piece) -> Placed | Failed:
    """The fate of a part of a piece, by the indexes of the piece's own cargo."""
    if isinstance(fate, Placed):
        return Placed(fate.segment, fate.first, piece.indexes[fate.indexes], fate.duplicate)
    inner = fate.piece
    return Failed(Piece(inner.segment, inner.part, inner.rows, piece.indexes[inner.indexes]), fate.error)


def _parcel(topic: Topic, piece: Piece, sequences: Sequences) -> Parcel:
    header = Header(
        topic.name,
        topic.record.incarnation,
        piece.segment,
        piece.part,
        mask_of(piece.rows.batch),
        sequences.producer,
        sequences.low,
        sequences.high,
        piece.rows.payload.size,
    )
    return Parcel(header, piece.rows.payload)

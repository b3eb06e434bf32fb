"""Rows for segments of other brokers: settled with whoever owns the segment, until the time for a publish is over.

Every piece has an identity: the client's producer and sequences, or those of a slot (broker/forward). A try whose
answer was lost is repeated under the same identity, at the same owner or at the next one, which may be this broker.
"""

import asyncio

import msgspec

from seaweedq.broker.catalog import Catalog, Topic
from seaweedq.broker.commit import Rows
from seaweedq.broker.forward import Outbound, Slots
from seaweedq.broker.open_segment import Sequences
from seaweedq.broker.ownership import Ownership
from seaweedq.broker.parcels import Header, Outcome, Parcel
from seaweedq.broker.taking import Taker
from seaweedq.clock import Clock
from seaweedq.coordination.roster import Roster
from seaweedq.errors import NotOwner, Unavailable
from seaweedq.segments.layout import mask_of
from seaweedq.segments.rows import Single, rows_of_singles

PAUSE_S = 0.1
LOOK_S = 0.5


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
        self._gathered: dict[tuple[Topic, int], list[tuple[Single, asyncio.Future[int]]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def settle(self, topic: Topic, segment: int, rows: Rows, sequences: Sequences | None) -> Outcome:
        """Have the owner take rows, whoever that is. Raises Unavailable, SequenceOutOfOrder, TopicBeingDeleted."""
        end_s = self._clock.monotonic_s() + self._timeout_s
        if sequences:
            return await self._settle(topic, segment, rows, sequences, end_s)
        async with self._slots.take(topic, segment, self._timeout_s) as slot:
            return await self._settle(topic, segment, rows, slot.sequences(rows.batch.num_rows), end_s)

    def single(self, topic: Topic, segment: int, message: Single) -> asyncio.Future[int]:
        """A message without identity: its offset. Those that wait for a slot go together."""
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        waiting = self._gathered.setdefault((topic, segment), [])
        waiting.append((message, done))
        if len(waiting) == 1:
            task = asyncio.create_task(self._send_gathered(topic, segment))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return done

    async def _send_gathered(self, topic: Topic, segment: int) -> None:
        end_s = self._clock.monotonic_s() + self._timeout_s
        waiting = self._gathered[topic, segment]
        failed: Exception = Unavailable("the broker is stopping")
        outcome = None
        try:
            async with self._slots.take(topic, segment, self._timeout_s) as slot:
                del self._gathered[topic, segment]  # the next ones gather anew
                rows = Rows.of(rows_of_singles([message for message, _ in waiting], topic.layout))
                outcome = await self._settle(topic, segment, rows, slot.sequences(len(waiting)), end_s)
        except Exception as error:
            failed = error
        finally:
            if self._gathered.get((topic, segment)) is waiting:
                del self._gathered[topic, segment]
            for at, (_, done) in enumerate(waiting):
                if not done.done():
                    _answer(done, outcome, at, failed)

    async def _settle(self, topic: Topic, segment: int, rows: Rows, sequences: Sequences, end_s: float) -> Outcome:
        in_doubt = False
        while True:
            seen = topic.moved.count
            self._catalog.check(topic)
            try:
                outcome = await self._try(topic, segment, rows, sequences, end_s)
                return msgspec.structs.replace(outcome, duplicate=outcome.duplicate and not in_doubt)
            except Unavailable as error:
                in_doubt = in_doubt or not isinstance(error, NotOwner)
                left_s = end_s - self._clock.monotonic_s()
                if left_s <= 0:
                    raise
            if topic.moved.count == seen:
                await topic.moved.wait(min(PAUSE_S, left_s))

    async def _try(self, topic: Topic, segment: int, rows: Rows, sequences: Sequences, end_s: float) -> Outcome:
        if self._ownership.has(topic, segment):
            opened = await self._ownership.opened(topic, segment)
            return await self._taker.take(opened, rows, sequences)
        owner = self._catalog.segment(topic, segment)[0].owner
        url = self._roster.url(owner)
        if url is None:
            raise NotOwner(f"segment {segment} of {topic.name!r} belongs to {owner}, who is gone", owner=owner)
        return await self._forward(topic, owner, url, _parcel(topic, segment, rows, sequences), end_s)

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


def _answer(done: asyncio.Future[int], outcome: Outcome | None, at: int, failed: Exception) -> None:
    if outcome:
        done.set_result(outcome.first_offset + at)
    else:
        done.set_exception(failed)
        done.exception()  # whoever waits gets it; where nobody does any more, it is no news


def _parcel(topic: Topic, segment: int, rows: Rows, sequences: Sequences) -> Parcel:
    header = Header(
        topic.name,
        topic.record.incarnation,
        segment,
        mask_of(rows.batch),
        sequences.producer,
        sequences.low,
        sequences.high,
        rows.payload.size,
    )
    return Parcel(header, rows.payload)

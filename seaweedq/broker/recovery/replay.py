"""Recovery of a broker that is gone: what its journal holds beyond the chains goes into the chains, its acks into the
cursors.

Every step can be repeated: 1. The journal cannot grow any more (its lock is ours). 2. For each segment with frames,
rows beyond the chain's end are appended; a crash in between leaves a longer chain, and the next try begins at its new
end. An entry that the dead broker's own late put, or another recoverer, got in first holds the same rows: read the end
again and go on from there. 3. Acks of the subscription's present epoch are added to its cursors, in one transaction a
segment; adding twice changes nothing. Only after all of it may the segments change hands and the journal go
(broker/recovery/journal_recovery).
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from seaweedq.broker.log.entry_writer import EntryWriter, Source, known_producers
from seaweedq.broker.subscriptions.delivery import Delivery
from seaweedq.broker.subscriptions.subscription import Acks
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Coordination, Put
from seaweedq.coordination.records import CursorRecord
from seaweedq.errors import Fenced, JournalDamaged, SegmentNotFound
from seaweedq.failpoints import reach
from seaweedq.segments.chain import Chain
from seaweedq.segments.frames import Frame, FrameKind, rows_of
from seaweedq.storage.interface import ObjectStore

ENTRY_BYTES = 64 * 1024 * 1024
SEGMENTS = 16  # worked in at a time
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a recovery found: segments with frames, rows appended to chains, acks frames worked in."""

    segments: int
    rows: int
    acks: int


class Recovery:
    """Works the frames of dead journals in."""

    def __init__(self, catalog: Catalog, coordination: Coordination, store: ObjectStore, entries: EntryWriter) -> None:
        self._catalog = catalog
        self._coordination = coordination
        self._store = store
        self._entries = entries

    async def work_in(self, broker: str, frames: Iterable[Frame]) -> Recovered:
        """Bring all frames of a broker's journal, in their order, to where they belong. Raises Damaged.

        Rows of segments that are not its own any more are left alone: they were flushed before it gave them away, and
        a commit that failed there must not take an offset that their owner has given out since.
        """
        rows: dict[tuple[str, int], list[Frame]] = {}
        acks: dict[tuple[str, int], list[Frame]] = {}
        for frame in frames:
            kind = acks if frame.kind is FrameKind.ACKS else rows
            kind.setdefault((frame.topic, frame.segment), []).append(frame)
        places = asyncio.Semaphore(SEGMENTS)

        async def append(name: str, segment: int, found: list[Frame]) -> int:
            async with places:
                topic = self._live(name, segment)
                if topic is None or self._catalog.segment(topic, segment)[0].owner != broker:
                    return 0
                return await self._append(topic, segment, found)

        appended = await asyncio.gather(*(append(name, segment, found) for (name, segment), found in rows.items()))
        for (name, segment), found in acks.items():
            if topic := self._live(name, segment):
                await self._acknowledge(topic, segment, found)
        return Recovered(len(rows), sum(appended), sum(map(len, acks.values())))

    def _live(self, name: str, segment: int) -> Topic | None:
        topic = self._catalog.find(name)
        if topic is None or topic.record.state == "deleting":
            return None
        try:
            self._catalog.segment(topic, segment)
        except SegmentNotFound:
            return None
        return topic

    async def _append(self, topic: Topic, segment: int, frames: list[Frame]) -> int:
        record, _ = self._catalog.segment(topic, segment)
        source = Source.of(topic.name, segment, record, topic.layout)
        chain = Chain(self._store, topic.name, segment)
        await chain.open()
        appended = 0
        while frames := [frame for frame in frames if frame.first_offset + frame.count > chain.end]:
            if chain.last and chain.last.seal:  # put when all was settled: these failed, and nobody was told otherwise
                logger.warning("%s is sealed at %d, what its journal has beyond was not taken", chain.folder, chain.end)
                break
            taken = _entry_of(frames)
            try:
                appended += await self._append_entry(source, chain, taken)
            except Fenced:
                logger.info("%s has grown meanwhile, going on from its new end", chain.folder)
                await chain.open()
        return appended

    async def _append_entry(self, source: Source, chain: Chain, frames: list[Frame]) -> int:
        producers = await known_producers(self._store, source, chain)
        newest = chain.last.max_timestamp_us if chain.last else 0
        pieces: list[tuple[int, pa.RecordBatch]] = []
        end = chain.end
        for frame in frames:
            if frame.first_offset > end:
                raise JournalDamaged(
                    f"rows {end} to {frame.first_offset} of {chain.folder} are in no commit",
                    path=chain.folder,
                    position=end,
                )
            rows = rows_of(frame, source.layout).slice(end - frame.first_offset)
            newest = max(newest, pa.compute.max(rows.column(0)).cast(pa.int64()).as_py())
            pieces.append((end, rows))
            end += rows.num_rows
            for known in frame.ranges:
                producers.record(
                    known.part,
                    known.producer,
                    known.low,
                    known.high,
                    known.first_offset,
                    known.count,
                    frame.append_time_us,
                )
        reach("recover.append")
        await self._entries.append(source, chain, pieces, producers, newest)
        return sum(rows.num_rows for _, rows in pieces)

    async def _acknowledge(self, topic: Topic, segment: int, frames: list[Frame]) -> None:
        by_subscription: dict[str, list[Acks]] = {}
        for frame in frames:
            acks = msgspec.msgpack.decode(frame.payload, type=Acks)
            by_subscription.setdefault(acks.subscription, []).append(acks)
        for name, found in by_subscription.items():
            while not await self._advance(topic, segment, name, found):
                logger.info("the cursor of %s on segment %s changed meanwhile, once more", name, segment)

    async def _advance(self, topic: Topic, segment: int, name: str, acks: list[Acks]) -> bool:
        """One transaction; the subscription's epoch is compared with it. False: try again."""
        incarnation = topic.record.incarnation
        subscription = await self._coordination.get(keys.SUBSCRIPTIONS.key(topic.name, incarnation, name))
        known = keys.SUBSCRIPTIONS.decode(subscription.value) if subscription else None
        if subscription is None or known is None or known.state != "active":
            return True
        epoch = known.epoch
        acks = [one for one in acks if one.epoch == epoch]
        if not acks:
            return True
        path = keys.CURSORS.key(topic.name, incarnation, name, segment)
        there = await self._coordination.get(path)
        cursor = keys.CURSORS.decode(there.value) if there else CursorRecord(epoch=epoch, acked_to=0)
        attempts = {int(offset): count for offset, count in cursor.attempts.items()}
        delivery = Delivery(cursor.acked_to, cursor.acked, attempts, cursor.delivered_to)
        for low, high in (run for one in acks for run in one.runs):
            delivery.pass_over(low, high)
        reach("recover.acks")
        record = CursorRecord(
            epoch,
            delivery.acked_to,
            tuple(delivery.acked),
            {str(o): n for o, n in delivery.attempts.items()},
            delivery.delivered_to,
        )
        compares = [Compare(subscription.key, subscription.revision), Compare(path, there.revision if there else 0)]
        return await self._coordination.commit(compares, [Put(path, keys.CURSORS.encode(record))]) is not None


def _entry_of(frames: list[Frame]) -> list[Frame]:
    """The first frames, as many as make one entry; at least one."""
    taken: list[Frame] = []
    size = 0
    for frame in frames:
        size += memoryview(frame.payload).nbytes
        if taken and size > ENTRY_BYTES:
            break
        taken.append(frame)
    return taken

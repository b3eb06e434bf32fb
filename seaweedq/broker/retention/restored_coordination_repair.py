"""The confirmation of a coordination that was restored from a backup, and its repair.

It may know starts from before files were deleted, which will not come back: reads below a segment's first file were
errors, and retention took nothing of its topic. A sealed segment may have no file at all, since retention had removed
it; it becomes emptied, and goes a grace later (broker/retention/segment_removal).

An open segment of which the store has no file is *missing*: after the backup it was sealed, and retention took all of
it. Nobody knows where it ended, and no offset may be given out twice: its owner keeps it closed
(broker/topics/restored_coordination) until a confirmation lets it go on far behind any end that it can have had.

Order of writes: 1. the owner of an open segment without files says that it is closed there: one that it opens never had
files, and stays; 2. a missing one gets an entry without rows, SEQUENCES and OFFSETS behind the start that coordination
knows; 3. each start that is before its segment's first file is raised to that, and that of a sealed segment without
files to its end, in a transaction that compares the topic's record, the segment's and the start; 4. coordination's
number of rounds becomes the store's (broker/retention/rounds). A crash behind 2 leaves a file, which the next
confirmation finds, and does 3; the owner opens such a segment only behind 2, or once the confirmation is over. A crash
before 4 leaves rounds held: to confirm once more goes on. Each segment costs a listing, so a confirmation is made of
steps: each looks at so many segments, and says where the next one goes on; the last one does 4.

A folder without files is believed only here: the store has just shown a round that coordination does not know, so it is
the right store, and whoever asks says that the backup is old.
"""

import asyncio
import logging
from dataclasses import dataclass

import msgspec

from seaweedq.broker.log.entry_writer import EntryWriter, Source, known_producers
from seaweedq.broker.read.readable_segments import ReadableSegments
from seaweedq.broker.retention.rounds import Rounds
from seaweedq.broker.rpc.messages import SegmentCall
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.topics.ownership import Ownership
from seaweedq.clock import Clock
from seaweedq.concurrency.gather import gather_bounded
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Put
from seaweedq.coordination.records import SegmentRecord, StartRecord
from seaweedq.errors import ChainDamaged, CoordinationUnavailable, Fenced, NeedsNewerBroker, StoreUnavailable
from seaweedq.failpoints import reach
from seaweedq.segments.chain import Chain
from seaweedq.segments.entry import LAST_SEQUENCE, EntryName
from seaweedq.storage.interface import ObjectStore

# A chain is rolled once it has 10,000 entries (broker/reshape/planner), of 64 MiB and far fewer rows each.
SEQUENCES = 100_000
OFFSETS = 10**12
ASK_S = 5.0
PUT_S = 10.0
CHECKED = 16  # segments at a time
STEP = 1000  # segments of a step: some seconds
logger = logging.getLogger(__name__)
Place = tuple[str, int]  # a topic's name, and a segment of it
BEGINNING: Place = ("", 0)


class MissingSegments:
    """Lets segments go on whose files are all gone, for any broker."""

    def __init__(
        self,
        catalog: Catalog,
        ownership: Ownership,
        readables: ReadableSegments,
        entries: EntryWriter,
        store: ObjectStore,
    ) -> None:
        self._catalog = catalog
        self._ownership = ownership
        self._readables = readables
        self._entries = entries
        self._store = store

    async def begin_anew(self, topic: Topic, number: int, known: EntryName) -> EntryName | None:
        """Puts the entry from which on an open segment without files goes on, given the start that is known. Returns
        its name; None where it never had any file. Raises Unavailable where the owner does not answer."""
        record = self._catalog.segment(topic, number).record
        if await self._is_sound(topic, number, known, record.owner):
            return None
        begin = EntryName(known.sequence + SEQUENCES, known.first_offset + OFFSETS)
        reach("confirm.entry")
        await self._put(topic, number, record, begin)
        reach("confirm.begun")
        return begin

    async def _is_sound(self, topic: Topic, number: int, known: EntryName, owner: str | None) -> bool:
        """Tells whether a segment never had a file, so that its owner opens it."""
        try:
            if owner is None and known.sequence:
                return False
            if owner is None:
                await self._ownership.check_empty(topic, number)
            elif owner == self._ownership.broker:
                await self._ownership.opened(topic, number)
            else:
                call = SegmentCall(topic.name, topic.record.incarnation, number)
                await self._readables.ask(topic, owner, "size", call, int, ASK_S)
        except ChainDamaged:
            return False
        return True

    async def _put(self, topic: Topic, number: int, record: SegmentRecord, begin: EntryName) -> None:
        chain = Chain(self._store, topic.name, number)
        chain.begin(begin)
        source = Source.from_record(topic.name, number, record, topic.layout)
        producers = await known_producers(self._store, source, chain, lambda one: self._catalog.is_gone(topic, one))
        try:
            async with asyncio.timeout(PUT_S):
                await self._entries.append(source, chain, [], producers, 0)
        except Fenced as error:
            raise CoordinationUnavailable("another confirmation is under way; ask again") from error
        except TimeoutError:
            unknown = StoreUnavailable(f"the store did not confirm an entry of {chain.folder} in time")
            raise chain.failing or unknown from None


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a confirmation: the last segment that it has looked at, and how many are left; at the end None, 0, and
    the number of the newest round."""

    last: Place | None
    left: int
    round: int | None


class RestoredCoordinationRepair:
    """Confirms a coordination, for any broker."""

    def __init__(
        self, catalog: Catalog, store: ObjectStore, rounds: Rounds, missing: MissingSegments, clock: Clock
    ) -> None:
        self._catalog = catalog
        self._store = store
        self._rounds = rounds
        self._missing = missing
        self._clock = clock

    async def confirm(self, after: Place = BEGINNING) -> Step:
        """Looks at the segments behind one, at STEP of them; behind the last one it makes coordination the one to go
        by. Raises Unavailable."""
        if await self._rounds.is_restored():
            found = filter(None, map(self._catalog.find, self._catalog.names()))
            active = [topic for topic in found if topic.record.state == "active"]
            places = [(topic, n) for topic in active for n in sorted(self._catalog.records(topic))]
            behind = [(topic, n) for topic, n in places if (topic.name, n) > after]
            step = behind[:STEP]
            await gather_bounded(CHECKED, lambda one: self._raise_start(*one), step)
            if left := len(behind) - len(step):
                topic, number = step[-1]
                return Step((topic.name, number), left, None)
        return Step(None, 0, await self._rounds.confirm())

    async def _raise_start(self, topic: Topic, number: int) -> None:
        segment = self._catalog.records(topic).get(number)
        if segment is None:
            return
        place = (topic.name, topic.record.incarnation, number)
        try:
            held = self._catalog.starts.held(*place)
        except NeedsNewerBroker as error:
            logger.warning("the start of segment %d of %s stays: %s", number, topic.name, error)
            return
        first = await Chain(self._store, topic.name, number).first_from(held.record.sequence)
        known = held.record
        if first is None and segment.record.state == "open":
            first = await self._missing.begin_anew(topic, number, EntryName(known.sequence, known.offset))
        record = self._emptied(known, segment.record) if first is None else _begun(known, first)
        if record == known:
            return
        key, its_segment = keys.STARTS.key(*place), keys.SEGMENTS.key(*place)
        compares = [
            Compare(keys.TOPICS.key(topic.name), topic.revision),
            Compare(its_segment, segment.revision),
            Compare(key, held.revision),
        ]
        if not await self._catalog.commit(compares, [Put(key, keys.STARTS.encode(held.with_record(record)))]):
            raise CoordinationUnavailable(f"topic {topic.name!r} has changed meanwhile; ask again")
        what = "segment %d of %s has no file before offset %d, and begins there: rows from %d on are gone"
        logger.warning(what, number, topic.name, record.offset, known.offset)

    def _emptied(self, known: StartRecord, segment: SegmentRecord) -> StartRecord:
        """Returns the start behind all entries of a sealed segment. That of an open one stays: it never had an
        entry."""
        if segment.state != "sealed" or segment.end_offset is None or known.emptied:
            return known
        raised = (*known.raised, (LAST_SEQUENCE, self._clock.now_us()))  # no file is there: the time deletes none
        return msgspec.structs.replace(
            known,
            sequence=LAST_SEQUENCE,
            offset=segment.end_offset,
            raised=raised,
            deleted=LAST_SEQUENCE,
            emptied=True,
        )


def _begun(known: StartRecord, first: EntryName) -> StartRecord:
    """Returns the start at the first file that is there."""
    if first.sequence == known.sequence:
        return known
    deleted = max(known.deleted, first.sequence)
    return msgspec.structs.replace(known, sequence=first.sequence, offset=first.first_offset, deleted=deleted)

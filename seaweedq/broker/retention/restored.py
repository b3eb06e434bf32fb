"""The confirmation of a coordination that was restored from a backup.

It may know starts from before files were deleted, which will not come back: reads below a segment's first file were
errors, and retention took nothing of its topic. A sealed segment may have no file at all, since retention had removed
it; it becomes emptied, and goes a grace later (broker/retention/burial). An open one goes on behind any end that it can
have had (broker/retention/lost).

Order of writes: 1. open segments without files get one, each start that is before its segment's first file is raised to
that, and that of a sealed segment without files to its end, in a transaction that compares the topic's record, the
segment's and the start; 2. coordination's number of rounds becomes the store's (broker/retention/rounds). A crash
between leaves rounds held: to confirm once more goes on. Each segment costs a listing, so a confirmation is made of
steps: each looks at so many segments, and says where the next one goes on; the last one does 2.

A folder without files is believed only here: the store has just shown a round that coordination does not know, so it is
the right store, and whoever asks says that the backup is old.
"""

import logging
from dataclasses import dataclass

import msgspec

from seaweedq.broker.retention.lost import LostSegments
from seaweedq.broker.retention.rounds import Rounds
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.clock import Clock
from seaweedq.concurrency.gather import gather_bounded
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Put
from seaweedq.coordination.records.topics import SegmentRecord, StartRecord
from seaweedq.errors import CoordinationUnavailable, NeedsNewerBroker
from seaweedq.segments.chain import Chain
from seaweedq.segments.entry import LAST_SEQUENCE, EntryName
from seaweedq.storage.interface import ObjectStore

LOOKED = 16  # segments at a time
STEP = 1000  # segments of a step: some seconds
logger = logging.getLogger(__name__)
Place = tuple[str, int]  # a topic's name, and a segment of it
BEGINNING: Place = ("", 0)


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a confirmation: the last segment that it has looked at, and how many are left; at the end None, 0, and
    the number of the newest round."""

    last: Place | None
    left: int
    round: int | None


class Restored:
    """Confirms a coordination, for any broker."""

    def __init__(self, catalog: Catalog, store: ObjectStore, rounds: Rounds, lost: LostSegments, clock: Clock) -> None:
        self._catalog = catalog
        self._store = store
        self._rounds = rounds
        self._lost = lost
        self._clock = clock

    async def confirm(self, after: Place = BEGINNING) -> Step:
        """Looks at the segments behind one, at STEP of them; behind the last one it makes coordination the one to go
        by. Raises Unavailable."""
        if await self._rounds.is_restored():
            places = [(topic, n) for topic in self._active() for n in sorted(self._catalog.records(topic))]
            behind = [(topic, n) for topic, n in places if (topic.name, n) > after]
            step = behind[:STEP]
            await gather_bounded(LOOKED, lambda one: self._raise_start(*one), step)
            if left := len(behind) - len(step):
                topic, number = step[-1]
                return Step((topic.name, number), left, None)
        return Step(None, 0, await self._rounds.confirm())

    def _active(self) -> list[Topic]:
        """Returns the active topics by name."""
        found = filter(None, map(self._catalog.find, self._catalog.names()))
        return [topic for topic in found if topic.record.state == "active"]

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
        first = await self._first(topic, number, held.record.sequence)
        known = held.record
        if first is None and segment.record.state == "open":
            first = await self._lost.begin_anew(topic, number, EntryName(known.sequence, known.offset))
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

    async def _first(self, topic: Topic, number: int, sequence: int) -> EntryName | None:
        """Returns the first entry that counts; None where there is none."""
        return await Chain(self._store, topic.name, number).first_from(sequence)


def _begun(known: StartRecord, first: EntryName) -> StartRecord:
    """Returns the start at the first file that is there."""
    if first.sequence == known.sequence:
        return known
    deleted = max(known.deleted, first.sequence)
    return msgspec.structs.replace(known, sequence=first.sequence, offset=first.first_offset, deleted=deleted)

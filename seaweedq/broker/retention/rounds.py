"""The rounds of retention: nothing is taken or deleted outside one.

Order of writes: 1. the store's newest generation is compared with this life's (storage/generations), and its newest
number read; that must not be above coordination's; 2. the round's number, one
more, is committed in coordination; 3. `_retention/{number}` is created in the store, and the one before removed; 4. the
store's own time of that object is compared with this broker's clock. Then the round may raise starts and delete files.
A crash behind 2 leaves a number that no object has: the next round takes the next one.

*No restore may delete.* Coordination that was restored knows a lower number than the store. It may know older start
offsets, cursors and policies too, so nothing is done until somebody confirms that (`seaweedq cluster confirm`).

*No clock may delete.* All ages are differences of the store's own times. A leader whose clock is more than MAX_SKEW_US
from the store's does nothing: one of the two is wrong.

The confirmation of a coordination that was restored from a backup, and its repair.

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
the right store, and the caller says that the backup is old.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

import msgspec

from seaweedq.broker.log.entry_writer import EntryWriter, Source, known_producers
from seaweedq.broker.read.readable_segments import ReadableSegments
from seaweedq.broker.rpc.messages import SegmentCall
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.topics.ownership import Ownership
from seaweedq.broker.topics.restored_coordination import KEY, is_restored, known_round
from seaweedq.checks import reach
from seaweedq.clock import Clock
from seaweedq.concurrency.futures import gather_bounded
from seaweedq.coordination import keys
from seaweedq.coordination.election import Election
from seaweedq.coordination.interface import Compare, Coordination, Put
from seaweedq.coordination.records import SegmentRecord, StartRecord
from seaweedq.errors import ChainDamaged, CoordinationUnavailable, Fenced, NeedsNewerBroker, StoreUnavailable
from seaweedq.segments.chain import Chain
from seaweedq.segments.entry import LAST_SEQUENCE, EntryName
from seaweedq.storage.identity import mark_round, newest_round
from seaweedq.storage.interface import ObjectStore

MAX_SKEW_US = 60_000_000
Reason = Literal["", "clock", "restored"]
REASONS: tuple[Reason, ...] = ("clock", "restored")
logger = logging.getLogger(__name__)


class Rounds:
    """Begins the rounds. `held` is the reason why the last one was not allowed to do anything; empty if it was."""

    def __init__(
        self,
        coordination: Coordination,
        store: ObjectStore,
        election: Election,
        clock: Clock,
        check_generation: Callable[[], Awaitable[None]],
    ) -> None:
        self.held: Reason = ""
        self.begun = 0
        self._coordination = coordination
        self._store = store
        self._election = election
        self._clock = clock
        self._check_generation = check_generation

    @property
    def leads(self) -> bool:
        """Whether this broker leads, as far as it knows."""
        return self._election.is_leader

    def leader_compare(self) -> Compare:
        """Returns a comparison that holds as long as this broker leads. Raises Fenced."""
        return self._election.leader_compare()

    async def begin(self) -> int | None:
        """Begins a round. Returns the store's time in microseconds since 1970; None if nothing may be done. Raises
        Unavailable, Fenced."""
        known = await known_round(self._coordination)
        await self._check_generation()
        if await newest_round(self._store) > known.record.next:
            self._hold("restored", "the store knows a later round of retention than coordination does")
            return None
        number = known.record.next + 1
        reach("retention.number")
        put = Put(KEY, keys.RETENTION.encode(known.replace(next=number)))
        if not await self._coordination.commit([self.leader_compare(), Compare(KEY, known.revision)], [put]):
            return None  # another leader, which does its own
        reach("retention.numbered")
        now_us = await mark_round(self._store, number)
        reach("retention.marked")
        if now_us is None:  # perhaps by an earlier try of this very put; the next round looks again
            logger.warning("round %d of retention is in the store already", number)
            return None
        ahead_us = self._clock.now_us() - now_us
        if abs(ahead_us) > MAX_SKEW_US:
            self._hold("clock", f"this broker's clock is {ahead_us / 1e6:.0f} s ahead of the store's")
            return None
        self.held, self.begun = "", self.begun + 1
        return now_us

    async def is_restored(self) -> bool:
        """Tells whether the store knows a later round than coordination. Raises Unavailable."""
        return await is_restored(self._coordination, self._store)

    async def confirm(self) -> int:
        """Makes coordination's number the store's, so that rounds may begin again. Returns the number. Raises
        Unavailable."""
        known = await known_round(self._coordination)
        newest = await newest_round(self._store)
        if newest > known.record.next:
            put = Put(KEY, keys.RETENTION.encode(known.replace(next=newest)))
            if not await self._coordination.commit([Compare(KEY, known.revision)], [put]):
                raise CoordinationUnavailable("a round of retention began meanwhile; ask again")
            logger.warning("coordination was confirmed: rounds of retention go on behind number %d", newest)
        return max(newest, known.record.next)

    def _hold(self, reason: Reason, why: str) -> None:
        if self.held != reason:
            hint = "; `seaweedq cluster confirm` lets it go on" if reason == "restored" else ""
            logger.error("retention takes and deletes nothing: %s%s", why, hint)
        self.held = reason


# A chain is rolled once it has 10,000 entries (broker/reshape/planning), of 64 MiB and far fewer rows each.
SEQUENCES = 100_000
OFFSETS = 10**12
ASK_S = 5.0
PUT_S = 10.0
CHECKED = 16  # segments at a time
STEP = 1000  # segments of a step: some seconds
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
        its name; None if it never had any file. Raises Unavailable if the owner does not answer."""
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
            found = filter(None, map(self._catalog.get, self._catalog.names()))
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
        text = "segment %d of %s has no file before offset %d, and begins there: rows from %d on are gone"
        logger.warning(text, number, topic.name, record.offset, known.offset)

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

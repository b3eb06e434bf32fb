"""The segments of this broker: opens them when first needed, and routes the rows of a topic.

broker/reshape/segment_mover changes the owner of a segment.

The first owner of a segment in a generation, and the first one behind an owner that was given up for dead, puts an
entry without rows before it takes anything (segments/terms). Order: 1. the chain is opened at its end; 2. the entry is
put under the next name; 3. if that is taken, the chain is opened again. So a put of an earlier broker, which may still
land, finds its name taken, or is found. The entry need not stand in a journal before: as long as it has not landed,
each later owner finds that the chain's last entry is of before, and puts an entry of its own under the same name.

Segments that are about to leave this broker, or to end, are locked: one holder per segment. A move takes a lock for as
long as it runs, and an intent from the time before it is committed until its successors exist. Each of them relies on
the segment not being moved or ended by the other meanwhile. While a segment is locked:
- another holder does not get it: a move is refused, an intent is retried later;
- this broker does not open it, and drops the chain that it has just read;
- an open segment keeps accepting messages until its holder pauses it (`OpenSegment.pause`).

A move that is cancelled keeps its lock: its transaction may still be applied, so the owner of the segment is unknown.
Acquiring and releasing never waits, so that a check and the lock that follows from it are one step.

A broker that opens an open segment compares its end with the cursors of the topic, which it reads once in its life:
each offset that was delivered is durable, and in the chain before the segment has another owner. A cursor above the end
hides what the segment would take, so coordination went back, or rows were lost. The topic waits then, as one whose
first segment has no file, and `restored` has the reason.

`find_orphaned_topics` tells of the segments that wait for an owner, and of the journals that brokers which are gone
have left. It only reads views, for observers: it decides nothing, and may be behind.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal
from weakref import WeakKeyDictionary

from seaweedq.broker.log.entry_writer import EntryWriter, Source, known_producers
from seaweedq.broker.log.memory_budget import Budget
from seaweedq.broker.log.open_segment import DirtySegments, OpenSegment
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.topics.segment_index import GAP, Routing
from seaweedq.checks import reach
from seaweedq.coordination.interface import Compare
from seaweedq.coordination.membership import Membership
from seaweedq.coordination.records import Intent, SegmentRecord
from seaweedq.coordination.roster import Roster
from seaweedq.coordination.versioned import Unreadable
from seaweedq.errors import ChainDamaged, Fenced, NotOwner, NotReady, Restored, StoreUnavailable
from seaweedq.segments.chain import Chain
from seaweedq.segments.entry import SealedIntent
from seaweedq.segments.producers import ProducerTables
from seaweedq.segments.terms import owes_entry
from seaweedq.storage.interface import ObjectStore

NAMED = 20  # that are named
logger = logging.getLogger(__name__)
OPENINGS = 16
RestoredReason = Literal["file", "cursor"]


@dataclass(frozen=True, slots=True)
class OrphanedTopics:
    """The segments of a broker that is gone, or of none, and the state of its journal: `recovering`,
    `partly-recovered`, `needs-newer-broker`, `unknown`, or `unassigned` if nothing is left to recover. `topics` are
    some of those that wait. A journal is unknown since `since_us`."""

    broker: str | None
    state: str
    why: str
    segments: int
    topics: tuple[str, ...]
    since_us: int | None = None


def find_orphaned_topics(catalog: Catalog, roster: Roster) -> list[OrphanedTopics]:
    """Returns the segments and the journal that each broker which is gone has left, most segments first."""
    gone = [one for one in (*roster.journals, *roster.unreadable_journals) if not roster.alive(one)]
    owners: Iterable[str | None] = dict.fromkeys([*catalog.owners(), *gone])
    found = []
    for owner in owners:
        if owner is not None and roster.alive(owner):
            continue
        segments = catalog.owned_by(owner)
        state, why, since_us = _state(owner, roster)
        if segments or state != "unassigned":
            topics = tuple(sorted({topic for topic, _, _ in segments})[:NAMED])
            found.append(OrphanedTopics(owner, state, why, len(segments), topics, since_us))
    return sorted(found, key=lambda one: (-one.segments, one.broker or ""))


def _state(owner: str | None, roster: Roster) -> tuple[str, str, int | None]:
    """Returns the state of a journal, why it is in that state, and since when it is unknown."""
    journal = None if owner is None else roster.journal(owner)
    if isinstance(journal, Unreadable):
        return "needs-newer-broker", f"the record of its journal cannot be read: {journal.why}", None
    if journal is None or journal.record.recovered:
        takers = any(known.record.takes_more for known in roster.brokers.values())
        why = "the leader is about to give them an owner" if takers else "no broker accepts segments now"
        return "unassigned", why, None
    record = journal.record
    if record.needs_newer:
        levels = f"levels {record.lowest} to {record.highest}"
        return "needs-newer-broker", f"no running broker can read its journal (kind {record.kind}, {levels})", None
    if record.unknown:
        why = f"no running broker can reach its journal (kind {record.kind}): {record.unknown.why}"
        return "unknown", why, record.unknown.since_us
    if record.left:
        return "partly-recovered", f"records of these topics cannot be read: {', '.join(record.left[:NAMED])}", None
    place = f", in the folder {record.path}, which that broker must be able to reach" if record.path else ""
    return "recovering", f"a broker is replaying its journal (kind {record.kind}){place}", None


@dataclass(frozen=True, eq=False, slots=True)
class Holder:
    """A holder of locks; `why` states the purpose. Two holders are never equal."""

    why: str


class SegmentLocks:
    """The locks on the segments of one broker."""

    def __init__(self) -> None:
        self._holders: WeakKeyDictionary[Topic, dict[int, Holder]] = WeakKeyDictionary()

    def acquire(self, topic: Topic, segments: Collection[int], holder: Holder) -> bool:
        """Locks all of these segments, or none of them; those that the holder has already stay locked. False: another
        holder has one."""
        locked = self._holders.setdefault(topic, {})
        if any(locked.get(segment, holder) is not holder for segment in segments):
            return False
        locked.update(dict.fromkeys(segments, holder))
        return True

    def release(self, topic: Topic, segments: Collection[int], holder: Holder) -> None:
        """Unlocks those of the segments that the holder has; the locks of others stay."""
        locked = self._holders.get(topic, {})
        for segment in segments:
            if locked.get(segment) is holder:
                del locked[segment]

    def holder(self, topic: Topic, segment: int) -> Holder | None:
        """Returns the holder of a segment's lock, None if it is not locked."""
        return self._holders.get(topic, {}).get(segment)

    def locked(self, holder: Holder | None = None) -> list[tuple[Topic, int]]:
        """Returns all segments that are locked, or those that a holder has locked."""
        held = [(topic, number, who) for topic, locked in self._holders.items() for number, who in locked.items()]
        return [(topic, number) for topic, number, who in held if holder in (None, who)]


def names(intent: Intent | None, sealed: SealedIntent) -> bool:
    """Tells whether a record's intent is the one that a seal names."""
    return intent is not None and (intent.id, intent.segments) == (sealed.id, sealed.segments)


class Ownership:
    """The segments of one broker. `locks` are on those that are about to leave it; `dirty` collects those with a
    tail."""

    def __init__(
        self,
        catalog: Catalog,
        store: ObjectStore,
        membership: Membership,
        budget: Budget,
        dirty: DirtySegments,
        entries: EntryWriter,
        patience_s: float,
    ) -> None:
        self._entries = entries
        self._patience_s = patience_s  # with a store that refuses an entry that is owed
        self.locks = SegmentLocks()
        self._catalog = catalog
        self._store = store
        self._membership = membership
        self._budget = budget
        self._dirty = dirty
        self._late_seals: dict[tuple[Topic, int], SealedIntent] = {}
        self.restored: dict[tuple[str, int], tuple[RestoredReason, str]] = {}  # by topic and segment, for rebuilds
        self._delivered: WeakKeyDictionary[Topic, dict[int, int]] = WeakKeyDictionary()
        self._places = asyncio.Semaphore(OPENINGS)
        self._openings: dict[tuple[Topic, int], asyncio.Task[OpenSegment | None]] = {}

    @property
    def broker(self) -> str:
        """Returns the id of the broker whose segments these are."""
        return self._membership.broker

    def compare(self) -> Compare:
        """Returns a comparison that holds as long as that broker lives, for each transaction that changes its
        segments."""
        return self._membership.compare()

    def has(self, topic: Topic, segment: int) -> bool:
        """Tells whether this broker may serve the segment, as far as it knows: its own, or a sealed one, which any
        broker may serve. Raises SegmentNotFound."""
        record = self._catalog.segment(topic, segment).record
        return record.owner == self._membership.broker or record.state == "sealed"

    def record(self, topic: Topic, segment: int) -> SegmentRecord | None:
        """Returns the known record of a segment, None if it has none."""
        found = self._catalog.records(topic).get(segment)
        return found.record if found else None

    async def routing(self, topic: Topic) -> Routing:
        """Returns the routing of the topic's rows. Raises NotReady, TopicBeingDeleted."""
        while topic.routing is None:
            await self._catalog.load_topic(topic)
            if topic.routing is None:
                topic.routing = Routing.from_records(self._catalog.records(topic), topic.opened)
        return topic.routing

    async def mine(self, topic: Topic) -> list[OpenSegment]:
        """Returns this broker's segments of a topic, opened."""
        routing = await self.routing(topic)
        numbers = [number for number in dict.fromkeys(routing.ids) if number != GAP]
        await self.open_all(topic, numbers)
        return [topic.opened[number] for number in numbers if number in topic.opened]

    async def open_all(self, topic: Topic, numbers: Iterable[int]) -> None:
        """Opens those of these segments that are this broker's and not open yet. Raises SegmentNotFound."""
        if closed := [number for number in numbers if number not in topic.opened and self.has(topic, number)]:
            await asyncio.gather(*(self.open(topic, number) for number in closed))

    async def opened(self, topic: Topic, segment: int) -> OpenSegment:
        """Returns one of this broker's segments, opened. Raises SegmentNotFound, NotOwner."""
        if not self.has(topic, segment):
            await self._catalog.refresh(topic.name, segment)
        found = await self.open(topic, segment) or await self.open(topic, segment)  # its record may change meanwhile
        if found is None:
            owner = self._catalog.segment(topic, segment).record.owner
            raise NotOwner(f"segment {segment} of topic {topic.name!r} is owned by broker {owner}", owner=owner)
        return found

    async def open(self, topic: Topic, segment: int) -> OpenSegment | None:
        """Returns a segment if it is this broker's, and opens it when first asked for. Raises SegmentNotFound."""
        found = topic.opened.get(segment)
        if found or self.locks.holder(topic, segment) or not self.has(topic, segment):
            return found
        opening = self._openings.get((topic, segment))
        if opening is None:
            opening = self._openings[topic, segment] = asyncio.create_task(self._open_once(topic, segment))
            opening.add_done_callback(partial(self._end_opening, (topic, segment)))
        await asyncio.wait([opening])  # not cancelled with us: others may wait for it
        if opening.cancelled():
            raise NotReady("this broker is stopping")
        return opening.result()

    async def stop(self) -> None:
        """Ends what is being opened."""
        for opening in (openings := [*self._openings.values()]):
            opening.cancel()
        await asyncio.gather(*openings, return_exceptions=True)

    def begin(self, topic: Topic, segment: int, revision: int, before: Sequence[ProducerTables]) -> None:
        """Opens a successor that this broker has just created, in that revision, of segments with these tables:
        publishes wait for it, and the store would only confirm the facts that are known here."""
        if topic.record.state == "deleting" or not self._is_still(topic, segment, revision):
            return  # it may have been written to since
        if segment in topic.opened or (topic, segment) in self._openings:
            return
        record = self._catalog.segment(topic, segment).record
        chain = Chain(self._store, topic.name, segment)
        chain.begin()
        source = Source.from_record(topic.name, segment, record, topic.layout)
        producers = ProducerTables.inherited(segment, source.key_range, source.cuts, before)
        topic.add_opened(self._opened(topic, source, chain, producers, record))

    def waiting_topics(self) -> list[tuple[RestoredReason, str]]:
        """Returns why topics wait for a rebuild, of the segments that are still this broker's: reason and text."""
        found = []
        for (name, number), why in self.restored.items():
            topic = self._catalog.get(name)
            record = self.record(topic, number) if topic else None
            if record and record.owner == self._membership.broker:
                found.append(why)
        return found

    def take_late_seals(self) -> list[tuple[Topic, SealedIntent]]:
        """Returns the intents that seals name and no record, of segments that this broker has tried to open since the
        last call."""
        found, self._late_seals = self._late_seals, {}
        return [(topic, sealed) for (topic, _), sealed in found.items()]

    async def has_ended(self, segment: OpenSegment) -> bool:
        """Reads again whether the segment's chain has a seal."""
        chain = Chain(self._store, segment.topic, segment.id)
        await chain.open()
        return chain.sealed

    def _end_opening(self, key: tuple[Topic, int], opening: asyncio.Task[OpenSegment | None]) -> None:
        del self._openings[key]
        _ = opening.cancelled() or opening.exception()  # those who wait have it; perhaps nobody does any more

    async def _open_once(self, topic: Topic, segment: int) -> OpenSegment | None:
        async with self._places:
            revision = self._catalog.segment(topic, segment).revision
            if not self.has(topic, segment):
                return None  # it has left while others were opened
            opened = await self._open(topic, segment, revision)
        if opened is None or not self._is_still(topic, segment, revision):
            return None
        opened.chain.raise_start(self._catalog.start(topic, segment))  # it may have risen meanwhile
        topic.add_opened(opened)
        if topic.routing:
            topic.routing.add_opened(opened)
        return opened

    def _is_still(self, topic: Topic, number: int, revision: int) -> bool:
        """Tells whether this broker may still write to a chain that was read since that revision: a segment that is
        moving to another broker is not opened, and one that has been away has a longer chain by now."""
        return self.locks.holder(topic, number) is None and self._catalog.segment(topic, number).revision == revision

    async def _open(self, topic: Topic, number: int, revision: int) -> OpenSegment | None:
        record = self._catalog.segment(topic, number).record
        if record.state == "open" and topic not in self._delivered:  # before the chain, which others may lengthen
            self._delivered[topic] = await self._catalog.delivered(topic)
        source = Source.from_record(topic.name, number, record, topic.layout)
        chain = Chain(self._store, topic.name, number)
        if self._catalog.is_emptied(topic, number):
            chain.empty(self._catalog.start(topic, number))
        else:
            chain.raise_start(self._catalog.start(topic, number))
            try:
                await chain.open()
            finally:
                self._catalog.check(topic)  # one that has been deleted meanwhile is not opened, nor damaged
            if chain.last and chain.last.schema_id > topic.layout.schema_id:
                await self._catalog.refresh(topic.name)  # the owner before knew a later version
        if record.state == "sealed" and not chain.sealed:
            await self._catalog.refresh(topic.name, number)
            self._catalog.segment(topic, number)
            if self._catalog.is_emptied(topic, number):
                raise NotOwner(
                    f"retention has just deleted all messages of segment {number} of topic {topic.name!r}; try again"
                )
            raise ChainDamaged(
                f"the segment in {chain.folder} was replaced, but its files do not end with a seal (the entry that "
                "names the segment's successors)",
                name=chain.folder,
            )
        if record.state == "open" and chain.last is None and number == topic.record.incarnation:
            raise self._waits(
                topic, number, "file", f"{chain.folder} belongs to the topic's first segment, but contains no file"
            )
        if record.state == "open" and self._delivered[topic].get(number, 0) > chain.end:
            self._delivered[topic] = await self._catalog.delivered(topic)  # a loss that was accepted lowers cursors
        if record.state == "open" and (delivered := self._delivered[topic].get(number, 0)) > chain.end:
            await self._catalog.refresh(topic.name, number)
            if not self._is_still(topic, number, revision):
                return None  # another broker has had it since, and lengthens the chain
            why = (
                f"a subscription has received messages up to offset {delivered} of {chain.folder}, which ends at "
                f"{chain.end}"
            )
            raise self._waits(topic, number, "cursor", why)
        self.restored.pop((topic.name, number), None)
        if record.state == "sealed":
            producers = ProducerTables.empty(number, source.key_range)  # it takes nothing any more
        else:
            begun = await self._begin(topic, source, chain, record)
            if begun is None:
                return None
            producers = begun
        return self._opened(topic, source, chain, producers, record)

    def _waits(self, topic: Topic, number: int, reason: RestoredReason, why: str) -> Restored:
        """Returns the error of a topic that waits for a rebuild, and logs that once."""
        text = (
            f"topic {topic.name!r} waits: {why}, so coordination was lost or restored to an earlier state; run "
            "`seaweedq cluster rebuild`"
        )
        if self.restored.get((topic.name, number)) != (reason, text):
            logger.error("%s", text)
            self.restored[topic.name, number] = reason, text
        return Restored(text, command="seaweedq cluster rebuild", topic=topic.name)

    async def _begin(self, topic: Topic, source: Source, chain: Chain, record: SegmentRecord) -> ProducerTables | None:
        """Makes sure that nothing which coordination may have forgotten can come into an open segment's chain any more.
        Returns its producer tables; None if a seal has come, which its record does not name: the segment is about to be
        replaced."""
        while True:
            last = chain.last
            sealed = last.intent if last else None
            if sealed and not names(record.intent, sealed):
                self._late_seals[topic, source.segment] = sealed  # it was committed: coordination has forgotten that
                self._catalog.locking.wake()
                return None
            producers = await known_producers(self._store, source, chain, partial(self._catalog.is_gone, topic))
            is_recovered = last is not None and last.broker != last.owner
            if sealed or not owes_entry(record.term, last.term if last else None, record.entry_from, is_recovered):
                return producers
            newest_us = last.max_timestamp_us if last else 0
            reach("open.first")
            try:
                async with asyncio.timeout(self._patience_s):
                    await self._entries.append(source, chain, [], producers, newest_us)
            except TimeoutError:
                detail = f"the store did not confirm an entry of {chain.folder} in time"
                raise chain.failing or StoreUnavailable(detail) from None
            except Fenced:
                logger.info(
                    "another broker has added files to %s, so this broker looks for the folder's last file again",
                    chain.folder,
                )
                await chain.open()

    def _opened(
        self, topic: Topic, source: Source, chain: Chain, producers: ProducerTables, record: SegmentRecord
    ) -> OpenSegment:
        opened = OpenSegment(source, chain, producers, self._budget, topic.signal, self._dirty.add)
        if record.intent and record.intent.state == "committed":
            opened.pause(NotOwner(f"segment {opened.id} of topic {topic.name!r} is about to be sealed"))
        return opened

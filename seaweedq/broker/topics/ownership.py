"""Which segments are this broker's: opened when first needed, given to another broker on demand.

Giving one away, in this order, and what a crash after each step leaves:
1. *Hold*: nothing new is taken; publishes wait and go to the new owner. (Crash: recovery.)
2. *Quiet and flush*: what was taken is durable, then in the chain; no put of ours is under way any more. (Crash:
   recovery finds it in the chain.)
3. *One transaction* compares the segment, this broker's key and the new owner's, and writes the new owner. From here
   the other one opens the chain at its end, and we never touch it again. (Crash before: the segment is still ours, and
   recovered as such; after: nothing of ours is missing from the chain.)
A transaction whose answer is lost may still come to pass. Before anything is taken again the segment's record is
written once more, so that the lost one's comparison can not hold any more.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from seaweedq.broker.log.entry_writer import Source, known_producers
from seaweedq.broker.log.memory_budget import Budget
from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.broker.topics.catalog import Catalog, Routing, Topic
from seaweedq.broker.topics.intents import Transaction, locks, undo
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Change, Compare, Coordination, Put
from seaweedq.coordination.membership import Membership
from seaweedq.coordination.records import SegmentRecord
from seaweedq.coordination.roster import Roster
from seaweedq.errors import CoordinationUnavailable, NotOwner
from seaweedq.failpoints import reach
from seaweedq.segments.chain import Chain
from seaweedq.segments.producers import ProducerTables
from seaweedq.storage.interface import ObjectStore

OPENINGS = 16
RETRY_S = 0.5
logger = logging.getLogger(__name__)


class Ownership:
    """The segments of one broker. `dirty` collects those that have a tail."""

    def __init__(
        self,
        catalog: Catalog,
        coordination: Coordination,
        store: ObjectStore,
        membership: Membership,
        roster: Roster,
        budget: Budget,
        dirty: set[OpenSegment],
    ) -> None:
        self._catalog = catalog
        self._coordination = coordination
        self._store = store
        self._membership = membership
        self._roster = roster
        self._budget = budget
        self._dirty = dirty
        self._places = asyncio.Semaphore(OPENINGS)
        self._openings: dict[tuple[Topic, int], asyncio.Task[OpenSegment | None]] = {}

    def has(self, topic: Topic, segment: int) -> bool:
        """Whether the segment is this broker's to serve, as far as it knows: its own, or sealed, which is anybody's.
        Raises SegmentNotFound."""
        record, _ = self._catalog.segment(topic, segment)
        return record.owner == self._membership.broker or record.state == "sealed"

    def record(self, topic: Topic, segment: int) -> SegmentRecord | None:
        """What is known of a segment."""
        found = self._catalog.records(topic).get(segment)
        return found[0] if found else None

    async def routing(self, topic: Topic) -> Routing:
        """Where the topic's rows go. Raises NotReady, TopicBeingDeleted."""
        while topic.routing is None:
            await self._catalog.whole(topic)
            if topic.routing is None:
                topic.routing = Routing.of(self._catalog.records(topic), topic.opened)
        return topic.routing

    async def mine(self, topic: Topic) -> list[OpenSegment]:
        """The segments of a topic that are this broker's, opened."""
        routing = await self.routing(topic)
        found = await asyncio.gather(*(self.open(topic, number) for number in dict.fromkeys(routing.ids)))
        return [segment for segment in found if segment]

    async def opened(self, topic: Topic, segment: int) -> OpenSegment:
        """One of this broker's segments. Raises SegmentNotFound, NotOwner."""
        if not self.has(topic, segment):
            await self._catalog.look(topic.name, segment)
        found = await self.open(topic, segment) or await self.open(topic, segment)  # its record may change meanwhile
        if found is None:
            owner = self._catalog.segment(topic, segment)[0].owner
            raise NotOwner(f"segment {segment} of {topic.name!r} is owned by {owner}", owner=owner)
        return found

    async def open(self, topic: Topic, segment: int) -> OpenSegment | None:
        """A segment if it is this broker's, opened when first asked for. Raises SegmentNotFound."""
        found = topic.opened.get(segment)
        if found or segment in topic.leaving or not self.has(topic, segment):
            return found
        opening = self._openings.get((topic, segment))
        if opening is None:
            opening = self._openings[topic, segment] = asyncio.create_task(self._open_once(topic, segment))
            opening.add_done_callback(lambda _: self._openings.pop((topic, segment)))
        await asyncio.wait([opening])  # not cancelled with us: others may wait for it
        return opening.result()

    def begin(self, topic: Topic, segment: int, revision: int, before: Sequence[ProducerTables]) -> None:
        """Open a successor that this broker has just made, in that revision, of segments with these tables: publishes
        wait for it, and its store would only say what is known here."""
        if topic.record.state == "deleting" or not self._is_still(topic, segment, revision):
            return  # it may have been written to since
        if segment in topic.opened or (topic, segment) in self._openings:
            return
        record, _ = self._catalog.segment(topic, segment)
        chain = Chain(self._store, topic.name, segment)
        chain.begin()
        source = Source.of(topic.name, segment, record, topic.layout)
        producers = ProducerTables.inherited(segment, source.key_range, source.cuts, before)
        topic.opened[segment] = self._opened(topic, source, chain, producers, record)

    async def give(
        self,
        topic: Topic,
        segment: int,
        target: str,
        settle: Callable[[OpenSegment], Awaitable[None]],
        committed: bool = False,
    ) -> bool:
        """Give a segment to another living broker; `settle` makes it quiet and flushes it. False: it could not be.

        A planned intent is undone with it; one whose intent is committed stays, unless `committed` says otherwise.
        """
        if target == self._membership.broker or not self._roster.alive(target) or segment in topic.leaving:
            return False
        record, _ = self._catalog.segment(topic, segment)
        if record.owner != self._membership.broker:
            return False
        if not committed and record.intent and record.intent.state == "committed":
            return False
        topic.leaving.add(segment)
        topic.routing = None
        try:
            moved = await self._give(topic, segment, target, settle)
        except Exception:
            self._keep(topic, segment)
            raise  # when cancelled nobody knows whose it is: it is not opened here any more
        if not moved:
            self._keep(topic, segment)
        topic.leaving.discard(segment)
        topic.routing = None
        topic.moved.wake()
        return moved

    async def _give(
        self, topic: Topic, segment: int, target: str, settle: Callable[[OpenSegment], Awaitable[None]]
    ) -> bool:
        opened = topic.opened.get(segment)
        if opened:
            await settle(opened)  # most of it, while publishes go on
            opened.hold(NotOwner(f"segment {segment} of {topic.name!r} is being moved to {target}", owner=target))
            await settle(opened)
        reach("move.flushed")
        moved = await self._hand_over(topic, segment, target)
        reach("move.given")
        return moved

    def _keep(self, topic: Topic, segment: int) -> None:
        topic.leaving.discard(segment)
        topic.routing = None
        intent = self._catalog.segment(topic, segment)[0].intent
        if (opened := topic.opened.get(segment)) and not (intent and intent.state == "committed"):
            opened.reopen()
        topic.moved.wake()

    async def _hand_over(self, topic: Topic, segment: int, target: str) -> bool:
        record, revision = self._catalog.segment(topic, segment)
        key = keys.SEGMENTS.key(topic.name, topic.record.incarnation, segment)
        compares = [Compare(key, revision), self._membership.compare(), self._roster.compare(target)]
        records, intent = self._catalog.records(topic), record.intent
        undone = Transaction((), ())
        if intent and intent.state == "planned":
            if not locks(records, intent):
                await self._catalog.reread(topic)
                return False
            undone, intent = undo(topic, records, intent), None
        given = Put(key, keys.SEGMENTS.encode(msgspec.structs.replace(record, owner=target, intent=intent)))
        others = [put for put in undone.writes if put.key != key]
        try:
            done = await self._write([*compares, *undone.compares], [given, *others])
        except CoordinationUnavailable:
            await self._be_sure(key, record, revision)
            done = self._catalog.segment(topic, segment)[0].owner == target
        if not done:
            await self._catalog.look(topic.name, segment)
        return done

    async def _be_sure(self, key: str, record: SegmentRecord, revision: int) -> None:
        """After a lost answer: write the record as it was, or learn that it has changed."""
        while True:
            try:
                again = Put(key, keys.SEGMENTS.encode(record))
                if not await self._write([Compare(key, revision), self._membership.compare()], [again]):
                    there = await self._coordination.get(key)
                    if there and there.revision == revision:
                        raise NotOwner("this broker's lease has expired")
                    self._catalog.apply([Change(key, there.value, there.revision)] if there else [])
                return
            except CoordinationUnavailable:
                logger.warning("it is still unknown whether segment %s was handed over", key)
                await asyncio.sleep(RETRY_S)

    async def _write(self, compares: list[Compare], writes: list[Put]) -> bool:
        done = await self._coordination.commit(compares, writes)
        if done:
            self._catalog.apply([Change(put.key, put.value, done) for put in writes])
        return done is not None

    async def _open_once(self, topic: Topic, segment: int) -> OpenSegment | None:
        async with self._places:
            _, revision = self._catalog.segment(topic, segment)
            opened = await self._open(topic, segment)
        if not self._is_still(topic, segment, revision):
            return None
        topic.opened[segment] = opened
        if topic.routing:
            topic.routing.note(opened)
        return opened

    def _is_still(self, topic: Topic, number: int, revision: int) -> bool:
        """Whether a chain that was read since that revision is still ours to write: a segment on its way to another
        broker is not opened, and one that has been away has a longer chain by now."""
        return number not in topic.leaving and self._catalog.segment(topic, number)[1] == revision

    async def _open(self, topic: Topic, number: int) -> OpenSegment:
        record, _ = self._catalog.segment(topic, number)
        chain = Chain(self._store, topic.name, number)
        try:
            await chain.open()
        finally:
            self._catalog.check(topic)  # one that has been deleted meanwhile is not opened, nor damaged
        source = Source.of(topic.name, number, record, topic.layout)
        if record.state == "sealed":
            producers = ProducerTables.empty(number, source.key_range)  # it takes nothing any more
        else:
            producers = await known_producers(self._store, source, chain)
        return self._opened(topic, source, chain, producers, record)

    def _opened(
        self, topic: Topic, source: Source, chain: Chain, producers: ProducerTables, record: SegmentRecord
    ) -> OpenSegment:
        opened = OpenSegment(source, chain, producers, record.owner, self._budget, topic.signal, self._dirty.add)
        if record.intent and record.intent.state == "committed":
            opened.hold(NotOwner(f"segment {opened.id} of {topic.name!r} is about to be sealed"))
        return opened

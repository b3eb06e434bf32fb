"""Moves a segment from this broker to another living one.

In this order, and what a crash after each step leaves:
1. *Hold*: the segment accepts nothing new; publishes wait, and then go to the new owner. (Crash: recovery.)
2. *Settle and flush*: accepted messages become durable, and commits that failed are cut off: a recovery of this broker
   would bring them back in part, should the segment have gone away and returned. What is durable goes into the chain;
   no put of this broker is in flight any more. (Crash: recovery finds them in the chain.)
3. *One transaction* compares the segment, this broker's key and the new owner's, and writes the new owner. From here
   the new owner opens the chain at its end, and this broker never writes to it again. (Crash before: the segment is
   still this broker's, and recovered as such; after: the chain has all of its messages.)
A transaction whose answer is lost may still be applied. Before the segment accepts messages again its record is written
once more, so that the comparison of the lost transaction cannot hold any more.
"""

import asyncio
import logging
from itertools import count

from seaweedq.broker.log.flusher import Flusher
from seaweedq.broker.log.group_commit import GroupCommit
from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.broker.reshape.intents import Transaction, locks, undo
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.topics.ownership import Holder, Ownership
from seaweedq.checks import reach
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Put
from seaweedq.coordination.roster import Roster
from seaweedq.errors import CoordinationUnavailable, NotOwner
from seaweedq.segments.terms import next_term

RETRY_S = 0.5
LOGGED_TRIES = 120  # one of so many is in the log
logger = logging.getLogger(__name__)


class SegmentMover:
    """Moves the segments of one broker. `patience_s`: how long a move waits for a store that refuses an entry."""

    def __init__(
        self,
        catalog: Catalog,
        roster: Roster,
        ownership: Ownership,
        commit: GroupCommit,
        flusher: Flusher,
        patience_s: float,
    ) -> None:
        self._catalog = catalog
        self._roster = roster
        self._ownership = ownership
        self._commit = commit
        self._flusher = flusher
        self._patience_s = patience_s

    async def move(self, topic: Topic, segment: int, target: str, committed: bool = False) -> bool:
        """Moves a segment to another living broker. False: it could not be moved.

        A planned intent is undone with it; a segment whose intent is committed stays, unless `committed` is true.
        Raises SegmentNotFound, Unavailable, Fenced.
        """
        mine, taken = self._ownership.broker, self._ownership.locks
        if target == mine or not self._roster.alive(target) or taken.holder(topic, segment):
            return False
        record = self._catalog.segment(topic, segment).record
        if record.owner != mine:
            return False
        if not committed and record.intent and record.intent.state == "committed":
            return False
        holder = Holder(f"it moves to {target}")
        taken.acquire(topic, [segment], holder)
        topic.routing = None
        moved = False
        try:
            moved = await self._move(topic, segment, target)
        except Exception:
            self._keep_segment(topic, segment, holder)
            raise  # when cancelled nobody knows whose it is: it is not opened here any more
        if not moved:
            self._keep_segment(topic, segment, holder)
        taken.release(topic, [segment], holder)
        topic.routing = None
        topic.moved.wake()
        return moved

    async def _move(self, topic: Topic, segment: int, target: str) -> bool:
        opened = topic.opened.get(segment)
        if opened:
            await self._flush_all(opened)  # most of it, while publishes go on
            opened.pause(
                NotOwner(f"segment {segment} of topic {topic.name!r} is being moved to broker {target}", owner=target)
            )
            await self._flush_all(opened)
        else:
            await self._commit.finish()
        reach("move.flushed")
        moved = await self._hand_over(topic, segment, target)
        reach("move.given")
        return moved

    async def _flush_all(self, segment: OpenSegment) -> None:
        """Brings all messages that the segment has accepted into its chain: first the commits in flight, then the
        tail. Raises JournalUnavailable if one that failed may still come back."""
        await self._commit.finish()
        await self._flusher.flush(segment, self._patience_s)

    def _keep_segment(self, topic: Topic, segment: int, holder: Holder) -> None:
        """Lets the segment accept messages again: it is still this broker's."""
        self._ownership.locks.release(topic, [segment], holder)
        topic.routing = None
        intent = self._catalog.segment(topic, segment).record.intent
        if (opened := topic.opened.get(segment)) and not (intent and intent.state == "committed"):
            opened.resume()
        topic.moved.wake()

    async def _hand_over(self, topic: Topic, segment: int, target: str) -> bool:
        """Writes the new owner. Tells whether it is the owner now."""
        known = self._catalog.segment(topic, segment)
        key = keys.SEGMENTS.key(topic.name, topic.record.incarnation, segment)
        unchanged = Compare(key, known.revision)
        compares = [unchanged, self._ownership.compare(), self._roster.compare(target)]
        records, intent = self._catalog.records(topic), known.record.intent
        undone = Transaction((), ())
        if intent and intent.state == "planned":
            if not locks(records, intent):
                await self._catalog.reload_segments(topic)
                return False
            undone, intent = undo(topic, records, intent), None
        term = next_term(known.record.term, self._catalog.generation)
        given = Put(key, keys.SEGMENTS.encode(known.replace(owner=target, term=term, intent=intent)))
        others = [put for put in undone.writes if put.key != key]
        try:
            done = await self._catalog.commit([*compares, *undone.compares], [given, *others]) is not None
        except CoordinationUnavailable:
            await self._resolve_lost_answer(topic, segment, Put(key, keys.SEGMENTS.encode(known)), unchanged)
            done = self._catalog.segment(topic, segment).record.owner == target
        if not done:
            await self._catalog.refresh(topic.name, segment)
        return done

    async def _resolve_lost_answer(self, topic: Topic, segment: int, again: Put, unchanged: Compare) -> None:
        """Resolves a lost answer: writes the record as it was, or finds that it has changed."""
        for tries in count():
            try:
                if await self._catalog.commit([unchanged, self._ownership.compare()], [again]) is None:
                    await self._catalog.refresh(topic.name, segment)
                    if self._catalog.segment(topic, segment).revision == unchanged.revision:
                        raise NotOwner("this broker's lease has expired")
                return
            except CoordinationUnavailable:
                if tries % LOGGED_TRIES == 0:
                    logger.warning("it is still unknown whether another broker now owns segment %s", again.key)
                await asyncio.sleep(RETRY_S)

"""Carries out the intents of one broker's segments: split, merge, roll. docs/internals/scaling.md has the order of
writes, and what a crash between each two leaves.

Level triggered: each intent in the records of this broker's segments is continued from its state, also if another
broker began it. This module does not decide what to split or merge.

The `Sealer` ends the chains of the segments that an intent replaces: it locks them, makes them refuse messages, and
seals them. The locks prevent moves from the time before the intent is committed until the successors exist. Until the
commit publishes continue, and tails are flushed ahead, so that publishes wait for little. The seal is in the last entry
of a chain: the segment ends there, also if another broker put it. Every step can be repeated.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Literal

from seaweedq.broker.log.flusher import Flusher
from seaweedq.broker.log.group_commit import GroupCommit
from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.broker.reshape import intents
from seaweedq.broker.reshape.segment_mover import SegmentMover
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.topics.ownership import Holder, Ownership
from seaweedq.checks import reach
from seaweedq.clock import Clock, Durations
from seaweedq.coordination.interface import Compare
from seaweedq.coordination.records import Intent, Successor
from seaweedq.coordination.roster import Roster
from seaweedq.errors import Fenced, NotOwner, SeaweedqError
from seaweedq.segments.entry import SealedIntent
from seaweedq.segments.keyrange import KeyRange
from seaweedq.segments.producers import inherited_cuts
from seaweedq.segments.terms import first_term
from seaweedq.traces import Traces

LEFT_BYTES, LEFT_PIECES = 2 * 1024 * 1024, 300  # that may be left in a tail when publishes begin to wait,
FLUSHES = 6  # unless it comes too fast to be flushed ahead
Kind = Literal["split", "merge", "roll"]
KINDS: tuple[Kind, ...] = ("split", "merge", "roll")
BOUNDS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
logger = logging.getLogger(__name__)
LOOK_S, PAUSE_S = 1.0, 0.1
Work = Callable[[], Awaitable[bool | None]]


class Sealer:
    """Seals the segments of one broker's intents, and holds their locks."""

    def __init__(
        self, catalog: Catalog, ownership: Ownership, commit: GroupCommit, flusher: Flusher, clock: Clock
    ) -> None:
        self._catalog = catalog
        self._ownership = ownership
        self._commit = commit
        self._flusher = flusher
        self._clock = clock
        self._holder = Holder("an intent replaces it")

    def lock(self, topic: Topic, intent: Intent) -> bool:
        """Prevents moves of all segments of an intent. False: a move is in progress."""
        return self._ownership.locks.acquire(topic, intent.segments, self._holder)

    def unlock(self, topic: Topic, intent: Intent) -> None:
        """Allows moves again."""
        self._ownership.locks.release(topic, intent.segments, self._holder)

    def unlock_ended(self) -> None:
        """Unlocks segments that are sealed, or have another owner: the answer to the transaction that did it may have
        been lost."""
        for topic, number in self._ownership.locks.locked(self._holder):
            known = self._catalog.records(topic).get(number)
            if known is None or known.record.owner != self._ownership.broker:
                self._ownership.locks.release(topic, [number], self._holder)

    async def flush_ahead(self, segment: OpenSegment) -> None:
        """Flushes ahead, so that little is left when publishes must wait; later messages have to be flushed too."""
        for _ in range(FLUSHES):
            await self._flusher.flush(segment)
            if segment.tail.size_bytes <= LEFT_BYTES and len(segment.tail) <= LEFT_PIECES:
                break

    async def seal(self, topic: Topic, intent: Intent, segments: Sequence[OpenSegment]) -> None:
        """Makes the segments refuse messages, and ends their chains. Raises NotOwner, Unavailable, Fenced."""
        if not self.lock(topic, intent):
            raise NotOwner(f"segments {intent.segments} of topic {topic.name!r} are being moved to another broker")
        for segment in segments:
            segment.pause(NotOwner(f"segment {segment.id} of topic {topic.name!r} is being replaced"))
            if segment.paused_since_s is None:
                segment.paused_since_s = self._clock.monotonic_s()
        reach("reshape.held")
        await self._commit.wait_until_idle()
        await asyncio.gather(*(self._seal_one(topic, intent, segment) for segment in segments))

    async def _seal_one(self, topic: Topic, intent: Intent, segment: OpenSegment) -> None:
        try:
            await self._flusher.seal(segment, intents.seal_of(intent, segment.source.key_range))
        except Fenced as error:
            if not await self._ownership.has_ended(segment):
                self._flusher.fenced(segment, error)
                raise  # rows of a recovery have it: this broker counts as dead, and more of its journal is to come
            self.unlock(topic, intent)  # another's seal for the same intent is as good: it is read when opened anew
            ended = NotOwner(f"another broker sealed segment {segment.id} of topic {topic.name!r}")
            segment.close(ended)
            topic.opened.pop(segment.id, None)
            topic.routing = None
            await self._catalog.refresh_segments(topic, intent.segments)
            raise ended from None


def kind_of(intent: Intent) -> Kind:
    """Returns the kind of an intent: split, merge or roll."""
    if len(intent.segments) > 1:
        return "merge"
    return "split" if len(intent.successors) > 1 else "roll"


class Counters:
    """Intents that were completed. A *pause* is the time for which their segments accepted no message."""

    def __init__(self) -> None:
        self.done: Counter[Kind] = Counter()
        self.pauses = Durations(BOUNDS_S)

    def add(self, intent: Intent, pause_s: float) -> None:
        """Counts one more."""
        self.done[kind_of(intent)] += 1
        self.pauses.add(pause_s)


class Replacer:
    """Carries out the intents of one broker's segments. `counters` count those that were completed."""

    def __init__(
        self,
        catalog: Catalog,
        roster: Roster,
        ownership: Ownership,
        sealer: Sealer,
        mover: SegmentMover,
        clock: Clock,
        traces: Traces | None,
    ) -> None:
        self.counters = Counters()
        self._catalog = catalog
        self._roster = roster
        self._ownership = ownership
        self._sealer = sealer
        self._mover = mover
        self._clock = clock
        self._traces = traces

    async def carry_out(self, topic: Topic, intent: Intent) -> bool:
        """Continues from the state of the intent. False: it cannot be completed now. Raises Unavailable, Fenced."""
        work = self._carry_out(topic, intent)
        return await (work if self._traces is None else self._traces.around(work, kind_of(intent), topic.name))

    async def _carry_out(self, topic: Topic, intent: Intent) -> bool:
        if not intents.locks(self._catalog.records(topic), intent):
            await self._refresh(topic, intent)
            return intents.locks(self._catalog.records(topic), intent)
        if strays := [n for n in intent.segments if self._owner(topic, n) != self._ownership.broker]:
            return await self._gather_strays(topic, intent, strays)
        if intent.state == "planned":
            await asyncio.gather(*map(self._sealer.flush_ahead, await self._open(topic, intent)))
            reach("reshape.flushed")
            committed = await self._lock_and_commit(topic, intent)
            if committed is None:
                return False
            intent = committed
        segments = await self._open(topic, intent)
        await self._sealer.seal(topic, intent, segments)
        reach("reshape.sealed")
        return await self._replace(topic, intent, segments)

    async def _open(self, topic: Topic, intent: Intent) -> list[OpenSegment]:
        return [await self._ownership.opened(topic, number) for number in intent.segments]

    async def _lock_and_commit(self, topic: Topic, intent: Intent) -> Intent | None:
        """Commits a planned intent. None: it was changed concurrently, or a move was first."""
        if not self._sealer.lock(topic, intent):
            return None
        records, mine = self._catalog.records(topic), self._ownership.broker
        is_there = intents.locks(records, intent) and all(records[n].record.owner == mine for n in intent.segments)
        if not is_there:  # the records may have changed while tails were flushed
            self._sealer.unlock(topic, intent)
            return None
        compares, writes = intents.commit(topic, records, intent)
        reach("reshape.commit")
        try:
            done = await self._catalog.commit([*compares, self._ownership.compare()], writes)
        except BaseException:
            self._sealer.unlock(topic, intent)  # should it come to pass, the record says so, and the intent goes on
            raise
        if done is None:
            self._sealer.unlock(topic, intent)
            await self._refresh(topic, intent)
            return None
        reach("reshape.committed")
        return self._catalog.segment(topic, intent.segments[0]).record.intent

    async def _replace(self, topic: Topic, intent: Intent, segments: Sequence[OpenSegment]) -> bool:
        """Writes that the segments are sealed, and that their successors are open. False: a record has changed."""
        tables, term = [segment.producers for segment in segments], first_term(self._catalog.generation)
        successors = {
            one.id: intents.NewSegment(
                self._owner_to_be(one), inherited_cuts(KeyRange(one.low, one.high), tables), term
            )
            for one in intent.successors
        }
        records = self._catalog.records(topic)
        if not intents.locks(records, intent):
            await self._refresh(topic, intent)
            return False
        ended = intents.Ends({segment.id: segment.chain.end for segment in segments}, self._clock.now_us())
        compares, writes = intents.finish(topic, records, intent, ended, successors)
        others = sorted({one.owner for one in successors.values()} - {self._ownership.broker})
        living = [self._ownership.compare(), *map(self._roster.compare, others)]
        revision = await self._catalog.commit([*compares, *living], writes)
        if revision is None:
            await self._roster.load()
            await self._catalog.refresh(topic.name)
            await self._refresh(topic, intent)
            return False
        self._sealer.unlock(topic, intent)
        topic.routing = None
        for number in (number for number, one in successors.items() if one.owner == self._ownership.broker):
            self._ownership.begin(topic, number, revision, tables)
        paused_s = min(filter(None, (segment.paused_since_s for segment in segments)))
        self.counters.add(intent, self._clock.monotonic_s() - paused_s)
        logger.info(
            "segments %s of topic %s were replaced by segments %s",
            ", ".join(map(str, intent.segments)),
            topic.name,
            ", ".join(f"{number} at {one.owner}" for number, one in successors.items()),
        )
        reach("reshape.replaced")
        return True

    def _owner_to_be(self, successor: Successor) -> str:
        """Returns the planned owner if it lives and accepts segments; else this broker; else any other one that accepts
        them."""
        brokers = {broker: known.record.takes_more for broker, known in self._roster.brokers.items()}
        mine = self._ownership.broker
        willing = [broker for broker in (successor.owner, mine, *sorted(brokers)) if broker and brokers.get(broker)]
        return willing[0] if willing else mine

    async def _gather_strays(self, topic: Topic, intent: Intent, strays: Sequence[int]) -> bool:
        """Handles segments of a merge that have different owners by now: a plan is undone, and a committed intent
        continues at the owner of the first."""
        if intent.state == "planned":
            compares, writes = intents.undo(topic, self._catalog.records(topic), intent)
            await self._catalog.commit([*compares, self._ownership.compare()], writes)
            return False
        first = self._owner(topic, intent.segments[0])
        if first is None or first == self._ownership.broker or not self._roster.alive(first):
            await self._refresh(topic, intent)
            return False
        mine = [number for number in intent.segments if number not in strays]
        for segment in [await self._ownership.opened(topic, number) for number in mine]:
            await self._mover.move(topic, segment.id, first, committed=True)
        return True

    def _owner(self, topic: Topic, number: int) -> str | None:
        return self._catalog.segment(topic, number).record.owner

    async def _refresh(self, topic: Topic, intent: Intent) -> None:
        await self._catalog.refresh_segments(topic, intent.segments)


class Reshaper:
    """Runs one task for each intent of this broker's segments, and restarts it until the intent is over. `resume`
    commits an intent again that a seal names, and no record."""

    def __init__(
        self,
        catalog: Catalog,
        ownership: Ownership,
        sealer: Sealer,
        replacer: Replacer,
        resume: Callable[[Topic, SealedIntent, Compare], Awaitable[None]],
    ) -> None:
        self._resume = resume
        self._catalog = catalog
        self._ownership = ownership
        self._sealer = sealer
        self._replacer = replacer
        self._ending = False
        self._tasks: dict[tuple[Topic, int], asyncio.Task[None]] = {}

    @property
    def under_way(self) -> int:
        """Returns the number of intents that are being carried out."""
        return len(self._tasks)

    @property
    def counters(self) -> Counters:
        """Returns the counters of completed intents."""
        return self._replacer.counters

    async def run(self) -> None:
        """Carries out intents, for ever."""
        while True:
            seen = self._catalog.locking.count
            self._begin()
            if self._catalog.locking.count == seen:
                await self._catalog.locking.wait(LOOK_S)

    async def stop(self, topic: Topic | None = None) -> None:
        """Cancels the tasks of a topic that is being deleted, or all; then no task is begun any more."""
        self._ending = self._ending or topic is None
        tasks = [task for (whose, _), task in self._tasks.items() if topic in (None, whose)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks = {key: task for key, task in self._tasks.items() if not task.done()}  # some never began

    def _begin(self) -> None:
        """Begins a task for each intent that has a segment of this broker, and has no task."""
        self._sealer.unlock_ended()
        for late, sealed in [] if self._ending else self._ownership.take_late_seals():
            self._begin_one(late, sealed, partial(self._resume, late, sealed, self._ownership.compare()))
        for name, incarnation, number in [] if self._ending else sorted(self._catalog.locked()):
            topic = self._catalog.get(name)
            if topic is None or topic.record.incarnation != incarnation or topic.record.state == "deleting":
                continue
            if self._catalog.unreadable_of(topic):
                continue  # perhaps the intent has more segments than those that are known
            record = self._catalog.segment(topic, number).record
            if record.intent is None or record.owner != self._ownership.broker:
                continue
            self._begin_one(topic, record.intent, partial(self._replacer.carry_out, topic, record.intent))

    def _begin_one(self, topic: Topic, intent: Intent | SealedIntent, work: Work) -> None:
        if (topic, intent.id) not in self._tasks:
            name = f"reshaping {topic.name}"
            self._tasks[topic, intent.id] = asyncio.create_task(self._try(topic, intent, work), name=name)

    async def _try(self, topic: Topic, intent: Intent | SealedIntent, work: Work) -> None:
        try:
            if not await work():
                await asyncio.sleep(PAUSE_S)
        except SeaweedqError as error:
            logger.warning("segments %s of topic %s have not been replaced yet: %s", intent.segments, topic.name, error)
            await asyncio.sleep(LOOK_S)
        except Exception:
            logger.exception("segments %s of topic %s have not been replaced yet", intent.segments, topic.name)
            await asyncio.sleep(LOOK_S)
        finally:
            del self._tasks[topic, intent.id]
            self._catalog.locking.wake()

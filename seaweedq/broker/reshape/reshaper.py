"""Reshaping: an owner carries out the intents of its segments: split, merge, roll.

docs/scaling.md has the order of writes, and what a crash between each two leaves. Level triggered: whatever intent
stands in the records of this broker's segments is gone on with from where it is, whoever began it. Nothing here decides
what is to be split or merged.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from seaweedq.broker.log.flusher import Flusher
from seaweedq.broker.log.group_commit import GroupCommit
from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.broker.reshape.metrics import Tally
from seaweedq.broker.topics import intents
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.topics.intents import Transaction
from seaweedq.broker.topics.ownership import Ownership
from seaweedq.clock import Clock
from seaweedq.coordination.interface import Change, Compare, Coordination
from seaweedq.coordination.membership import Membership
from seaweedq.coordination.records import Intent, Successor
from seaweedq.coordination.roster import Roster
from seaweedq.errors import Fenced, NotOwner, SeaweedqError
from seaweedq.failpoints import reach
from seaweedq.segments.chain import Chain
from seaweedq.segments.entry import Seal
from seaweedq.segments.keyrange import KeyRange
from seaweedq.segments.producers import FORWARD, inherited_cuts
from seaweedq.storage.interface import ObjectStore

LOOK_S, PAUSE_S = 1.0, 0.1
SLOT_US = 600_000_000  # a forward that is older is not tried any more
LEFT_BYTES, LEFT_PIECES = 2 * 1024 * 1024, 300  # what may be left in a tail when publishes begin to wait,
FLUSHES = 6  # unless it comes too fast to be flushed ahead
logger = logging.getLogger(__name__)
Give = Callable[[Topic, int, str], Awaitable[bool]]


class Reshaper:
    """The intents of one broker's segments; `give` moves a segment of a committed intent to another broker."""

    def __init__(
        self,
        catalog: Catalog,
        coordination: Coordination,
        store: ObjectStore,
        membership: Membership,
        roster: Roster,
        ownership: Ownership,
        commit: GroupCommit,
        flusher: Flusher,
        give: Give,
        clock: Clock,
    ) -> None:
        self.tally = Tally()
        self._catalog = catalog
        self._coordination = coordination
        self._store = store
        self._membership = membership
        self._roster = roster
        self._ownership = ownership
        self._commit = commit
        self._flusher = flusher
        self._give = give
        self._clock = clock
        self._ending = False
        self._tasks: dict[tuple[Topic, int], asyncio.Task[None]] = {}
        self._held: set[tuple[Topic, int]] = set()  # the segments that take nothing because of an intent

    @property
    def under_way(self) -> int:
        """How many intents it is carrying out."""
        return len(self._tasks)

    async def run(self) -> None:
        """Carry out for ever whatever intent there is."""
        while True:
            seen = self._catalog.locking.count
            self._begin()
            if self._catalog.locking.count == seen:
                await self._catalog.locking.wait(LOOK_S)

    async def stop(self, topic: Topic | None = None) -> None:
        """Break off what is under way, of a topic that is being deleted or of all; then nothing is begun any more."""
        self._ending = self._ending or topic is None
        tasks = [task for (whose, _), task in self._tasks.items() if topic in (None, whose)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks = {key: task for key, task in self._tasks.items() if not task.done()}  # some never began

    def _begin(self) -> None:
        """One task for each intent that has a segment of this broker."""
        self._let_go_what_is_over()
        for name, incarnation, number in [] if self._ending else list(self._catalog.locked()):
            topic = self._catalog.find(name)
            if topic is None or topic.record.incarnation != incarnation or topic.record.state == "deleting":
                continue
            record, _ = self._catalog.segment(topic, number)
            if record.intent is None or record.owner != self._membership.broker:
                continue
            key = (topic, record.intent.id)
            if key not in self._tasks:
                self._tasks[key] = asyncio.create_task(self._try(topic, record.intent), name=f"reshaping {name}")

    def _let_go_what_is_over(self) -> None:
        """Segments that are sealed, or have an owner elsewhere: the answer to the transaction may have been lost."""
        for topic, number in list(self._held):
            known = self._catalog.records(topic).get(number)
            if known is None or known[0].owner != self._membership.broker:
                self._held.discard((topic, number))
                topic.leaving.discard(number)

    async def _try(self, topic: Topic, intent: Intent) -> None:
        try:
            if not await self._carry_out(topic, intent):
                await asyncio.sleep(PAUSE_S)
        except SeaweedqError as error:
            logger.warning("segments %s of %s are not replaced yet: %s", intent.segments, topic.name, error)
            await asyncio.sleep(LOOK_S)
        except Exception:
            logger.exception("segments %s of %s are not replaced yet", intent.segments, topic.name)
            await asyncio.sleep(LOOK_S)
        finally:
            del self._tasks[topic, intent.id]
            self._catalog.locking.wake()

    async def _carry_out(self, topic: Topic, intent: Intent) -> bool:
        """Go on from where it is. False: not now."""
        if not intents.locks(self._catalog.records(topic), intent):
            await self._look(topic, intent)
            return intents.locks(self._catalog.records(topic), intent)
        if strays := [n for n in intent.segments if self._owner(topic, n) != self._membership.broker]:
            return await self._gather(topic, intent, strays)
        if intent.state == "planned":
            await asyncio.gather(*map(self._flush_ahead, await self._open(topic, intent)))
            reach("reshape.flushed")
            committed = await self._hold_and_commit(topic, intent)
            if committed is None:
                return False
            intent = committed
        segments = await self._open(topic, intent)
        await self._seal(topic, intent, segments)
        reach("reshape.sealed")
        return await self._replace(topic, intent, segments)

    async def _flush_ahead(self, segment: OpenSegment) -> None:
        """Have little left to flush when publishes must wait; what comes meanwhile has to be flushed too."""
        for _ in range(FLUSHES):
            await self._flusher.flush(segment)
            if segment.tail.size_bytes <= LEFT_BYTES and len(segment.tail) <= LEFT_PIECES:
                break

    async def _open(self, topic: Topic, intent: Intent) -> list[OpenSegment]:
        return [await self._ownership.opened(topic, number) for number in intent.segments]

    async def _hold_and_commit(self, topic: Topic, intent: Intent) -> Intent | None:
        """None: it has changed meanwhile, or a move was first."""
        if not self._hold(topic, intent):
            return None
        if not self._is_mine(topic, intent):  # the records may have changed while tails were flushed
            self._let_go(topic, intent)
            return None
        transaction = intents.commit(topic, self._catalog.records(topic), intent)
        reach("reshape.commit")
        try:
            done = await self._write(transaction, [])
        except BaseException:
            self._let_go(topic, intent)  # should it come to pass, the record will say so, and may go on being taken
            raise
        if done is None:
            self._let_go(topic, intent)
            await self._look(topic, intent)
            return None
        reach("reshape.committed")
        return self._catalog.segment(topic, intent.segments[0])[0].intent

    def _is_mine(self, topic: Topic, intent: Intent) -> bool:
        """Whether all its segments have this very intent, and this broker."""
        mine = self._membership.broker
        records = self._catalog.records(topic)
        return intents.locks(records, intent) and all(records[n][0].owner == mine for n in intent.segments)

    def _hold(self, topic: Topic, intent: Intent) -> bool:
        """Keep moves away. False: one is under way."""
        wanted = {(topic, number) for number in intent.segments} - self._held
        if any(number in topic.leaving for _, number in wanted):
            return False
        self._held |= wanted
        topic.leaving.update(number for _, number in wanted)
        return True

    def _let_go(self, topic: Topic, intent: Intent) -> None:
        for number in intent.segments:
            self._held.discard((topic, number))
            topic.leaving.discard(number)

    async def _seal(self, topic: Topic, intent: Intent, segments: Sequence[OpenSegment]) -> None:
        """Take nothing more, and end the chains. Raises Unavailable; done again it goes on."""
        if not self._hold(topic, intent):
            raise NotOwner(f"segments {intent.segments} of {topic.name!r} are being moved to another broker")
        for segment in segments:
            segment.hold(NotOwner(f"segment {segment.id} of {topic.name!r} is being replaced"))
            segment.held_since_s = segment.held_since_s or self._clock.monotonic_s()
        reach("reshape.held")
        await self._commit.quiet()
        now_us = self._clock.now_us()
        await asyncio.gather(*(self._seal_one(topic, intent, segment, now_us) for segment in segments))

    async def _seal_one(self, topic: Topic, intent: Intent, segment: OpenSegment, now_us: int) -> None:
        if segment.sealed:
            return
        whole = segment.source.key_range
        heirs = [s for s in intent.successors if s.low < whole.high and whole.low < s.high]
        if segment.seal is None:
            segment.producers.evict(now_us)
            segment.producers.forget(FORWARD, now_us - SLOT_US)
            segment.seal = Seal(tuple(s.id for s in heirs), tuple((s.low, s.high) for s in heirs))
        try:
            await self._flusher.flush(segment)
        except Fenced:
            if not await self._is_sealed(topic, segment):
                raise  # rows of a recovery have it: this broker counts as dead, and more of its journal is to come
            self._let_go(topic, intent)  # another's seal for the same intent is as good: it is read when opened anew
            ended = NotOwner(f"segment {segment.id} of {topic.name!r} was sealed by another broker")
            segment.close(ended)
            topic.opened.pop(segment.id, None)
            topic.routing = None
            await self._look(topic, intent)
            raise ended from None

    async def _is_sealed(self, topic: Topic, segment: OpenSegment) -> bool:
        chain = Chain(self._store, topic.name, segment.id)
        await chain.open()
        return chain.last is not None and chain.last.seal is not None

    async def _replace(self, topic: Topic, intent: Intent, segments: Sequence[OpenSegment]) -> bool:
        tables = [segment.producers for segment in segments]
        ends = {segment.id: segment.chain.end for segment in segments}
        owners = {successor.id: self._owner_to_be(successor) for successor in intent.successors}
        cuts = {s.id: inherited_cuts(KeyRange(s.low, s.high), tables) for s in intent.successors}
        records = self._catalog.records(topic)
        if not intents.locks(records, intent):
            await self._look(topic, intent)
            return False
        transaction = intents.finish(topic, records, intent, ends, owners, cuts, self._clock.now_us())
        others = sorted(set(owners.values()) - {self._membership.broker})
        revision = await self._write(transaction, list(map(self._roster.compare, others)))
        if revision is None:
            await self._roster.load()
            await self._catalog.look(topic.name)
            await self._look(topic, intent)
            return False
        self._let_go(topic, intent)
        topic.routing = None
        for successor in (s for s, owner in owners.items() if owner == self._membership.broker):
            self._ownership.begin(topic, successor, revision, tables)
        held_s = min(filter(None, (segment.held_since_s for segment in segments)))
        self.tally.add(intent, self._clock.monotonic_s() - held_s)
        logger.info(
            "segments %s of %s gave way to %s",
            ", ".join(map(str, intent.segments)),
            topic.name,
            ", ".join(f"{successor} at {owner}" for successor, owner in owners.items()),
        )
        reach("reshape.replaced")
        return True

    def _owner_to_be(self, successor: Successor) -> str:
        """Who was planned, as long as it lives and takes more; else this broker; else any other one that takes more."""
        brokers = {broker: record.takes_more for broker, (record, _) in self._roster.brokers.items()}
        mine = self._membership.broker
        willing = [broker for broker in (successor.owner, mine, *sorted(brokers)) if broker and brokers.get(broker)]
        return willing[0] if willing else mine

    async def _gather(self, topic: Topic, intent: Intent, strays: Sequence[int]) -> bool:
        """The segments of a merge have come to different owners: a plan is undone, and what is committed goes on at the
        owner of the first."""
        if intent.state == "planned":
            await self._write(intents.undo(topic, self._catalog.records(topic), intent), [])
            return False
        first = self._owner(topic, intent.segments[0])
        if first is None or first == self._membership.broker or not self._roster.alive(first):
            await self._look(topic, intent)
            return False
        mine = [number for number in intent.segments if number not in strays]
        for segment in [await self._ownership.opened(topic, number) for number in mine]:
            await self._give(topic, segment.id, first)
        return True

    def _owner(self, topic: Topic, number: int) -> str | None:
        return self._catalog.segment(topic, number)[0].owner

    async def _look(self, topic: Topic, intent: Intent) -> None:
        for number in intent.segments:
            await self._catalog.look(topic.name, number)

    async def _write(self, transaction: Transaction, living: list[Compare]) -> int | None:
        compares = [*transaction.compares, self._membership.compare(), *living]
        revision = await self._coordination.commit(compares, transaction.writes)
        if revision:
            self._catalog.apply([Change(put.key, put.value, revision) for put in transaction.writes])
        return revision

"""Plans to replace segments by others, which the owner of the segments carries out (broker/reshape/reshaper).

One of them is made here: a segment whose chain has grown long is *rolled*, replaced by one with the same range. The end
of a chain is found by bisection, and its readers list it: both stay cheap. It is checked after each flush.
"""

import asyncio
import logging
from collections.abc import Sequence

from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.broker.topics import intents
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.topics.cluster_quota import ClusterQuota
from seaweedq.broker.topics.restored_coordination import RestoredCoordination
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Coordination, Put
from seaweedq.coordination.records import Counter, Intent
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import NotOwner, SeaweedqError, SegmentConflict
from seaweedq.failpoints import reach

TRIES = 5
ENTRIES = 10_000
AGAIN = 100  # entries later, where it could not be planned
logger = logging.getLogger(__name__)


class Planner:
    """Plans at any broker; safety does not depend on the planner, or on its knowledge of the segments."""

    def __init__(
        self, catalog: Catalog, coordination: Coordination, quota: ClusterQuota, restored: RestoredCoordination
    ) -> None:
        self._catalog = catalog
        self._quota = quota
        self._restored = restored
        self._coordination = coordination

    async def plan(
        self,
        topic: Topic,
        segments: Sequence[int],
        points: Sequence[int] = (),
        owners: Sequence[str | None] = (),
        compares: Sequence[Compare] = (),
    ) -> Intent:
        """Plans to seal `segments` (one, or neighbours of one owner), and to give their range, cut at `points`, to new
        ones.

        One segment with points is a split, several segments a merge, one without points a roll. `owners` should own the
        new ones, `compares` must hold too. Raises SegmentNotFound, SegmentConflict, InvalidRequest, NotOwner if two
        owners have the segments, TooManySegments, NeedsNewerBroker, CoordinationUnavailable: then the plan may have
        been written.
        """
        await self._restored.check_ids(topic.name)
        for _ in range(TRIES):
            if intent := await self._plan(topic, segments, points, owners, compares):
                return intent
            await self._catalog.reread(topic)
            self._catalog.check(topic)
        raise SegmentConflict(
            f"segments {list(segments)} of {topic.name!r} kept changing while they were planned; try again"
        )

    async def _plan(
        self,
        topic: Topic,
        segments: Sequence[int],
        points: Sequence[int],
        owners: Sequence[str | None],
        compares: Sequence[Compare],
    ) -> Intent | None:
        self._catalog.check_whole(topic)
        room = await self._quota.room(0, len(points) + 1, topic.record.creator)
        records = self._catalog.records(topic)
        path = keys.COUNTERS.key(topic.name)
        there = await self._coordination.get(path)
        counter = keys.COUNTERS.require(there) if there else Versioned.new(Counter(0))
        first = counter.record.next
        intent = intents.intent_of(records, segments, points, first, owners)
        if len({records[number].record.owner for number in segments}) > 1:
            raise NotOwner(f"segments {list(segments)} of {topic.name!r} have different owners")
        transaction = intents.plan(topic, records, intent)
        raised = Put(path, keys.COUNTERS.encode(counter.replace(next=first + len(intent.successors))))
        unchanged = Compare(path, counter.revision)
        reach("plan.write")
        revision = await self._catalog.commit(
            [*transaction.compares, *compares, unchanged, *room.compares], [*transaction.writes, raised, *room.writes]
        )
        return intent if revision else None


class Roller:
    """Plans the rolls of this broker's segments; their owner carries them out (broker/reshape/reshaper)."""

    def __init__(self, catalog: Catalog, planner: Planner, entries: int = ENTRIES) -> None:
        self._catalog = catalog
        self._planner = planner
        self._entries = entries
        self._tasks: set[asyncio.Task[None]] = set()

    def grown(self, segment: OpenSegment) -> None:
        """Plans a roll if a chain, to which an entry was appended, is long."""
        beyond = segment.chain.next.sequence - self._entries
        if beyond < 0 or beyond % AGAIN or segment.sealed or segment.paused_since_s is not None:
            return
        task = asyncio.create_task(self._roll(segment), name=f"rolling {segment.topic}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Plans nothing any more."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _roll(self, segment: OpenSegment) -> None:
        topic = self._catalog.find(segment.topic)
        if topic is None or topic.opened.get(segment.id) is not segment:
            return
        try:
            await self._planner.plan(topic, [segment.id])
            logger.info("segment %d of %s has %d entries; it is rolled", segment.id, topic.name, self._entries)
        except SeaweedqError as error:
            logger.warning("segment %d of %s is long but cannot be rolled yet: %s", segment.id, topic.name, error)

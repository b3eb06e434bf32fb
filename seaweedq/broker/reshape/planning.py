"""Plans to replace segments by others, at any broker: on request, and of itself when a chain has grown long.

The owner of the segments carries a plan out (broker/reshape/reshaper), and moves a segment
(broker/reshape/segment_mover), whether anybody waits or not. Safety does not depend on the planner, or on its knowledge
of the segments. A request waits for the end of its plan; a plan that was undone by a move is written again.

A segment whose chain has grown long is *rolled*, replaced by one with the same range. The end of a chain is found by
bisection, and its readers list it: both stay cheap. The length is checked after each flush.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from seaweedq.broker.context import ClusterView
from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.broker.rebuild import Sign, record_signs
from seaweedq.broker.reshape import intents
from seaweedq.broker.rpc.client import Peers, ask_while
from seaweedq.broker.rpc.messages import GiveCall
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.topics.cluster_quota import ClusterQuota
from seaweedq.broker.topics.ownership import names
from seaweedq.broker.topics.segment_index import Records
from seaweedq.checks import reach
from seaweedq.concurrency.deadline import Deadline
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Coordination, Put
from seaweedq.coordination.records import Counter, Intent, SegmentRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import NotOwner, SeaweedqError, SegmentConflict, Unavailable
from seaweedq.segments.entry import SealedIntent, segment_folder
from seaweedq.storage.interface import ObjectStore

TRIES = 5
ENTRIES = 10_000
AGAIN = 100  # entries later, if it could not be planned
logger = logging.getLogger(__name__)
LOOK_S, PAUSE_S = 1.0, 0.1
MARGIN_S = 1.0
Stage = Literal["under way", "done", "undone"]


class Planner:
    """Plans at any broker; safety does not depend on the planner, or on its knowledge of the segments."""

    def __init__(self, catalog: Catalog, coordination: Coordination, store: ObjectStore, quota: ClusterQuota) -> None:
        self._catalog = catalog
        self._store = store
        self._quota = quota
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
        for _ in range(TRIES):
            if intent := await self._plan(topic, segments, points, owners, compares):
                return intent
            await self._catalog.reload_segments(topic)
            self._catalog.check(topic)
        raise SegmentConflict(
            f"segments {list(segments)} of topic {topic.name!r} kept changing while their "
            "replacement was planned; try again"
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
        reserved = await self._quota.reserve(0, len(points) + 1, topic.record.creator)
        records = self._catalog.records(topic)
        path = keys.COUNTERS.key(topic.name)
        there = await self._coordination.get(path)
        counter = keys.COUNTERS.require(there) if there else Versioned.new(Counter(0))
        first = counter.record.next
        intent = intents.new_intent(records, segments, points, first, owners)
        if len({records[number].record.owner for number in segments}) > 1:
            raise NotOwner(f"segments {list(segments)} of topic {topic.name!r} have different owners")
        transaction = intents.plan(topic, records, intent)
        raised = Put(path, keys.COUNTERS.encode(counter.replace(next=first + len(intent.successors))))
        unchanged = Compare(path, counter.revision)
        if await self._has_gone_back(topic, [one.id for one in intent.successors], [unchanged]):
            raise SegmentConflict(
                f"segments {list(segments)} of topic {topic.name!r} cannot be replaced: the folders of the new "
                "segments already contain files, which shows that coordination was restored to an earlier state"
            )
        reach("plan.write")
        revision = await self._catalog.commit(
            [*transaction.compares, *compares, unchanged, *reserved.compares],
            [*transaction.writes, raised, *reserved.writes],
        )
        return intent if revision else None

    async def _has_gone_back(self, topic: Topic, numbers: Sequence[int], holds: Sequence[Compare]) -> bool:
        """Tells whether segments have files that coordination has not made yet, as `holds` says. Then it went back, so
        that no broker serves any more."""
        for number in numbers:
            if await self._store.list(folder := segment_folder(topic.name, number), limit=1):
                sign = Sign("segment", f"{folder} has files, but coordination has no such segment")
                await record_signs(self._coordination, holds, [sign])
                return True
        return False

    async def resume(self, topic: Topic, sealed: SealedIntent, owner: Compare) -> None:
        """Commits an intent again that a seal names and no record: coordination has gone back to before it. `owner`
        must hold. A successor that has files was opened then, so messages are there that coordination knows nothing of:
        in that case nothing is committed, and no broker serves any more, until a rebuild. Raises SegmentConflict if it
        cannot be carried out any more, NeedsNewerBroker, Unavailable."""
        await self._catalog.reload_segments(topic)
        self._catalog.check(topic)
        self._catalog.check_whole(topic)
        records, ids = self._catalog.records(topic), {one.id for one in sealed.successors}
        known = [records[number].record for number in sealed.segments if number in records]
        if any(names(record.intent, sealed) or ids.intersection(record.successors) for record in known):
            return  # this broker's view was behind
        compares, writes = intents.resume(topic, records, sealed)
        if await self._has_gone_back(topic, [one.id for one in sealed.successors], [*compares, owner]):
            return
        path = keys.COUNTERS.key(topic.name)
        there = await self._coordination.get(path)
        counter = keys.COUNTERS.require(there) if there else Versioned.new(Counter(0))
        behind = max(counter.record.next, *(one.id + 1 for one in sealed.successors))
        raised = Put(path, keys.COUNTERS.encode(counter.replace(next=behind)))
        reach("reshape.resume")
        done = await self._catalog.commit(
            [*compares, owner, Compare(path, counter.revision)], [*writes, raised], proven=sealed.id
        )
        if done:
            segments = ", ".join(map(str, sealed.segments))
            logger.warning(
                "replacing segments %s of topic %s, because their files already name the segments that replace them",
                segments,
                topic.name,
            )


class Roller:
    """Plans the rolls of this broker's segments; their owner carries them out (broker/reshape/reshaper)."""

    def __init__(self, catalog: Catalog, planner: Planner, entries: int = ENTRIES) -> None:
        self._catalog = catalog
        self._planner = planner
        self._entries = entries
        self._tasks: dict[asyncio.Task[None], None] = {}

    def roll_if_long(self, segment: OpenSegment) -> None:
        """Plans a roll if a chain, to which an entry was appended, is long."""
        beyond = segment.chain.next.sequence - self._entries
        if beyond < 0 or beyond % AGAIN or segment.sealed or segment.paused_since_s is not None:
            return
        task = asyncio.create_task(self._roll(segment), name=f"rolling {segment.topic}")
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def stop(self) -> None:
        """Plans nothing any more."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _roll(self, segment: OpenSegment) -> None:
        topic = self._catalog.get(segment.topic)
        if topic is None or topic.opened.get(segment.id) is not segment:
            return
        try:
            await self._planner.plan(topic, [segment.id])
            logger.info(
                "segment %d of topic %s has %d files; replacing it with a new segment",
                segment.id,
                topic.name,
                self._entries,
            )
        except SeaweedqError as error:
            logger.warning(
                "segment %d of topic %s has many files, but cannot be replaced with a new segment yet: %s",
                segment.id,
                topic.name,
                error,
            )


def stage(records: Records, intent: Intent) -> Stage:
    """Returns how far an intent has come according to these records, which may show a part of a transaction before
    the rest."""
    ids = {successor.id for successor in intent.successors}
    known = [records[number].record for number in intent.segments if number in records]
    sealed = [record for record in known if record.state == "sealed" and ids.issuperset(record.successors)]
    if sealed:
        return "done" if len(sealed) == len(intent.segments) and ids <= records.keys() else "under way"
    locked = [record for record in known if record.intent and record.intent.id == intent.id]
    return "under way" if len(locked) == len(intent.segments) else "undone"


class ChangeRequests:
    """Replaces and moves segments on request. Each request has `timeout_s`, or until the broker stops."""

    def __init__(
        self, view: ClusterView, planner: Planner, peers: Peers, timeout_s: float, stopping: Callable[[], bool]
    ) -> None:
        self._view = view
        self._planner = planner
        self._peers = peers
        self._timeout_s = timeout_s
        self._stopping = stopping

    async def replace(self, topic: Topic, segments: Sequence[int], points: Sequence[int] = ()) -> tuple[Intent, bool]:
        """Has segments sealed, and their range, cut at `points`, given to new ones. Returns the plan, and whether it
        has been carried out; otherwise it is under way.

        Segments of other owners move to the owner of the first one. Raises SegmentNotFound, SegmentConflict,
        InvalidRequest, TopicBeingDeleted; NotOwner if the segments have no owner, or different ones, at the end.
        """
        request = self._begin(topic)
        return await request.deadline.retry(partial(request.replace, segments, points), NotOwner, topic.moved, PAUSE_S)

    async def move(self, topic: Topic, segment: int, target: str) -> bool:
        """Has a segment moved to a living broker. False: its owner is still moving it.

        Raises SegmentNotFound, SegmentConflict, TopicBeingDeleted, Unavailable if the segment could not be moved.
        """
        return await self._begin(topic).move(segment, target)

    def _begin(self, topic: Topic) -> "_Request":
        deadline = Deadline(self._view.clock, self._timeout_s, self._stopping)
        return _Request(self._view, self._planner, self._peers, topic, deadline)


class _Request:
    """One request, which ends with its deadline."""

    def __init__(self, view: ClusterView, planner: Planner, peers: Peers, topic: Topic, deadline: Deadline) -> None:
        self.deadline = deadline
        self._catalog = view.catalog
        self._roster = view.roster
        self._planner = planner
        self._peers = peers
        self._topic = topic

    async def replace(self, segments: Sequence[int], points: Sequence[int]) -> tuple[Intent, bool]:
        """Plans the change and waits for its end. Raises NotOwner if it has to be tried again."""
        await self._refresh(segments)
        self._check_free(segments, points)
        first = self._owner(segments[0])
        for number in segments[1:]:
            if self._record(number).owner != first and not await self.move(number, first):
                raise NotOwner(
                    f"segment {number} of topic {self._topic.name!r} is still being moved to broker {first}",
                    owner=first,
                )
        intent = await self._planner.plan(self._topic, segments, points)
        outcome = await self._outcome(intent)
        if outcome == "undone":
            raise NotOwner(
                f"segments {list(segments)} of topic {self._topic.name!r} kept changing owner until the timeout"
            )
        return intent, outcome == "done"

    async def move(self, segment: int, target: str) -> bool:
        """Moves one segment. Raises as `ChangeRequests.move`."""
        async for attempt in self.deadline.attempts(self._topic.moved, PAUSE_S):
            await self._refresh([segment])
            if self._record(segment).owner == target:
                return True
            self._check_free([segment])
            try:
                owner = self._owner(segment)
                if await self._ask_to_give(owner, segment, target):
                    await self._refresh([segment])
                    return True
            except TimeoutError:
                return False
            except Unavailable:
                if attempt.is_last():
                    raise
        raise NotOwner(f"broker {owner} did not hand over segment {segment} of topic {self._topic.name!r}", owner=owner)

    def _check_free(self, segments: Sequence[int], points: Sequence[int] = ()) -> None:
        """Refuses a change that cannot be planned, before anything is done."""
        for number in segments:
            self._record(number)
        self._catalog.check_whole(self._topic)
        intents.new_intent(self._catalog.records(self._topic), segments, points, 0)

    def _owner(self, segment: int) -> str:
        owner = self._record(segment).owner
        if owner is None or not self._roster.alive(owner):
            raise NotOwner(f"no running broker owns segment {segment} of topic {self._topic.name!r}", owner=owner)
        return owner

    async def _ask_to_give(self, owner: str, segment: int, target: str) -> bool:
        """Returns whether the owner has given the segment away. Raises Unavailable, and TimeoutError if the owner
        is still giving it when the time is over."""
        url = self._roster.url(owner)
        if url is None or not self._roster.alive(target) or self.deadline.is_over:
            raise NotOwner(
                f"segment {segment} could not be moved from broker {owner} to broker {target} in time", owner=owner
            )
        call = GiveCall(self._topic.name, self._topic.record.incarnation, segment, target)
        asking = self._peers.call(url, "give", call, bool, self.deadline.left_s + MARGIN_S)
        return await ask_while(partial(self._roster.check_alive, owner), asking, self.deadline)

    async def _outcome(self, intent: Intent) -> Stage:
        """Returns how far the intent has come at its end, or when the time is over."""
        topic = self._topic
        async for attempt in self.deadline.attempts(topic.moved, LOOK_S):
            if not attempt.woken:  # the watch may be behind
                await self._refresh([*intent.segments, *(successor.id for successor in intent.successors)])
            self._catalog.check(topic)
            found = stage(self._catalog.records(topic), intent)
            if found != "under way":
                break
        return found

    def _record(self, segment: int) -> SegmentRecord:
        return self._catalog.segment(self._topic, segment).record

    async def _refresh(self, segments: Sequence[int]) -> None:
        """Reads the records again: the watch may be behind."""
        await self._catalog.refresh_segments(self._topic, segments)
        self._catalog.check(self._topic)

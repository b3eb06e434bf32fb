"""Carries out the changes of segments that a request asks for: plans them, or asks the owner, and waits for the end.

Any broker does it. Safety does not depend on it: the owner of the segments carries a plan out
(broker/reshape/reshaper) and moves a segment (broker/topics/segment_mover) whether anybody waits or not. A plan that
was undone by a move is written again.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from seaweedq.broker.context import ClusterView
from seaweedq.broker.reshape.planner import Planner
from seaweedq.broker.rpc.client import Peers, ask_while
from seaweedq.broker.rpc.messages import GiveCall
from seaweedq.broker.topics import intents
from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.topics.segment_index import Records
from seaweedq.concurrency.deadline import Deadline
from seaweedq.coordination.records import Intent, SegmentRecord
from seaweedq.errors import NotOwner, Unavailable

LOOK_S, PAUSE_S = 1.0, 0.1
MARGIN_S = 1.0
Stage = Literal["under way", "done", "undone"]


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
        InvalidRequest, TopicBeingDeleted; NotOwner where the segments have no owner, or different ones, at the end.
        """
        request = self._begin(topic)
        return await request.deadline.retry(partial(request.replace, segments, points), NotOwner, topic.moved, PAUSE_S)

    async def move(self, topic: Topic, segment: int, target: str) -> bool:
        """Has a segment moved to a living broker. False: its owner is still moving it.

        Raises SegmentNotFound, SegmentConflict, TopicBeingDeleted, Unavailable where the segment could not be moved.
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
        """Plans the change and waits for its end. Raises NotOwner where it has to be tried again."""
        await self._refresh(segments)
        self._check_free(segments, points)
        first = self._owner(segments[0])
        for number in segments[1:]:
            if self._record(number).owner != first and not await self.move(number, first):
                raise NotOwner(f"segment {number} of {self._topic.name!r} is still moving to {first}", owner=first)
        intent = await self._planner.plan(self._topic, segments, points)
        outcome = await self._outcome(intent)
        if outcome == "undone":
            raise NotOwner(f"segments {list(segments)} of {self._topic.name!r} kept changing owner until the timeout")
        return intent, outcome == "done"

    async def move(self, segment: int, target: str) -> bool:
        """As `ChangeRequests.move`."""
        async for attempt in self.deadline.attempts(self._topic.moved, PAUSE_S):
            await self._refresh([segment])
            if self._record(segment).owner == target:
                return True
            self._check_free([segment])
            try:
                owner = self._owner(segment)
                if await self._give(owner, segment, target):
                    await self._refresh([segment])
                    return True
            except TimeoutError:
                return False
            except Unavailable:
                if attempt.is_last():
                    raise
        raise NotOwner(f"segment {segment} of {self._topic.name!r} stays with {owner}", owner=owner)

    def _check_free(self, segments: Sequence[int], points: Sequence[int] = ()) -> None:
        """Refuses what cannot be planned, before anything is done for it."""
        for number in segments:
            self._record(number)
        self._catalog.check_whole(self._topic)
        intents.intent_of(self._catalog.records(self._topic), segments, points, 0)

    def _owner(self, segment: int) -> str:
        owner = self._record(segment).owner
        if owner is None or not self._roster.alive(owner):
            raise NotOwner(f"segment {segment} of {self._topic.name!r} has no living owner", owner=owner)
        return owner

    async def _give(self, owner: str, segment: int, target: str) -> bool:
        """Returns whether the owner has given the segment away. Raises Unavailable, and TimeoutError where the owner
        is still giving it when the time is over."""
        url = self._roster.url(owner)
        if url is None or not self._roster.alive(target) or self.deadline.is_over:
            raise NotOwner(f"segment {segment} could not be moved from {owner} to {target} in time", owner=owner)
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
        await self._catalog.look_at(self._topic, segments)
        self._catalog.check(self._topic)

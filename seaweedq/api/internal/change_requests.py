"""Changes of segments that somebody asked for, seen through: planned, or asked of the owner, and then waited for.

Any broker does it. Safety does not depend on it: the segments' owner carries a plan out (broker/reshape/reshaper) and
moves a segment (broker/topics/segment_mover) whether anybody waits or not. A plan that a move has undone is written
again.
"""

import asyncio
from collections.abc import Sequence
from typing import Literal

from seaweedq.broker.broker import Broker
from seaweedq.broker.rpc.messages import GiveCall
from seaweedq.broker.topics import intents
from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.topics.segment_records import Records
from seaweedq.coordination.records import Intent, SegmentRecord
from seaweedq.errors import NotOwner, Unavailable

LOOK_S, PAUSE_S = 1.0, 0.1
MARGIN_S = 1.0
Stage = Literal["under way", "done", "undone"]


def stage(records: Records, intent: Intent) -> Stage:
    """How far an intent has come, as these records say; they may know a part of a transaction before the rest."""
    ids = {successor.id for successor in intent.successors}
    known = [records[number].record for number in intent.segments if number in records]
    sealed = [record for record in known if record.state == "sealed" and ids.issuperset(record.successors)]
    if sealed:
        return "done" if len(sealed) == len(intent.segments) and ids <= records.keys() else "under way"
    locked = [record for record in known if record.intent and record.intent.id == intent.id]
    return "under way" if len(locked) == len(intent.segments) else "undone"


class Changes:
    """The changes of a topic's segments that one request asks for: they have `publish_timeout_s` to come about."""

    def __init__(self, broker: Broker, topic: Topic) -> None:
        self._broker = broker
        self._topic = topic
        self._end_s = broker.environment.clock.monotonic_s() + broker.environment.settings.publish_timeout_s

    async def replace(self, segments: Sequence[int], points: Sequence[int] = ()) -> tuple[Intent, bool]:
        """Have segments sealed, and their range, cut at `points`, go to new ones: the plan, and whether it has come
        about; else it is under way.

        Those of other owners move to that of the first one. Raises SegmentNotFound, SegmentConflict, InvalidRequest,
        TopicBeingDeleted, NotOwner where the segments have no owner, or not the same one, when the time is over.
        """
        while True:
            await self._check_free(segments, points)
            try:
                await self._gather(segments)
                intent = await self._broker.serving.reshaping.planner.plan(self._topic, segments, points)
            except NotOwner:
                if self._left_s() <= 0:
                    raise
                await self._pause()
                continue
            come = await self._settled(intent)
            if come != "undone":
                return intent, come == "done"
            if self._left_s() <= 0:
                raise NotOwner(f"segments {list(segments)} of {self._topic.name!r} move all the time")

    async def move(self, segment: int, target: str) -> bool:
        """Have a segment moved to a living broker. False: its owner is still at it.

        Raises SegmentNotFound, SegmentConflict, TopicBeingDeleted, Unavailable where it could not be in time.
        """
        while True:
            await self._look([segment])
            if self._record(segment).owner == target:
                return True
            await self._check_free([segment])
            owner = await self._owner(segment)
            try:
                given = await self._give(owner, segment, target)
            except Unavailable:
                if self._left_s() <= 0:
                    raise
                given = False
            if given is None:
                return False
            if given:
                await self._look([segment])
                return True
            if self._left_s() <= 0:
                raise NotOwner(f"segment {segment} of {self._topic.name!r} stays with {owner}", owner=owner)
            await self._pause()

    async def _gather(self, segments: Sequence[int]) -> None:
        first = await self._owner(segments[0])
        for number in segments[1:]:
            if self._record(number).owner != first and not await self.move(number, first):
                raise NotOwner(f"segment {number} of {self._topic.name!r} is still on its way to {first}", owner=first)

    async def _check_free(self, segments: Sequence[int], points: Sequence[int] = ()) -> None:
        """Refuse what cannot be planned, before anything is done for it."""
        await self._look(segments)
        for number in segments:
            self._record(number)
        intents.intent_of(self._broker.core.catalog.records(self._topic), segments, points, 0)

    async def _owner(self, segment: int) -> str:
        """Its owner, once that one lives. Raises NotOwner."""
        while not self._broker.core.roster.alive(owner := self._record(segment).owner):
            if self._left_s() <= 0:
                raise NotOwner(f"segment {segment} of {self._topic.name!r} has no living owner", owner=owner)
            await self._pause()
        assert owner is not None
        return owner

    async def _give(self, owner: str, segment: int, target: str) -> bool | None:
        """Whether the owner has given it away; None: it is still at it. Raises Unavailable."""
        roster = self._broker.core.roster
        url = roster.url(owner)
        if url is None or not roster.alive(target) or self._left_s() <= 0:
            raise NotOwner(f"segment {segment} could not be moved from {owner} to {target} in time", owner=owner)
        call = GiveCall(self._topic.name, self._topic.record.incarnation, segment, target)
        asking = asyncio.create_task(
            self._broker.environment.peers.call(url, "give", call, bool, self._left_s() + MARGIN_S)
        )
        try:
            while not (await asyncio.wait([asking], timeout=min(LOOK_S, self._left_s())))[0]:
                if not roster.alive(owner):
                    raise Unavailable(f"{owner}, who was to give segment {segment} away, is gone")
                if self._left_s() <= 0:
                    return None
            return asking.result()
        finally:
            asking.cancel()

    async def _settled(self, intent: Intent) -> Stage:
        """How far it has come, once that is the end of it, or the time is over."""
        topic = self._topic
        while True:
            seen = topic.moved.count
            self._broker.core.catalog.check(topic)
            come, left_s = stage(self._broker.core.catalog.records(topic), intent), self._left_s()
            if come != "under way" or left_s <= 0:
                return come
            await topic.moved.wait(min(LOOK_S, left_s))
            if topic.moved.count == seen:  # the watch may be behind
                await self._look([*intent.segments, *(successor.id for successor in intent.successors)])

    def _record(self, segment: int) -> SegmentRecord:
        return self._broker.core.catalog.segment(self._topic, segment).record

    async def _look(self, segments: Sequence[int]) -> None:
        for number in segments:
            await self._broker.core.catalog.look(self._topic.name, number)
        self._broker.core.catalog.check(self._topic)

    async def _pause(self) -> None:
        self._broker.core.catalog.check(self._topic)
        await self._topic.moved.wait(PAUSE_S)

    def _left_s(self) -> float:
        """Nothing is waited for at a broker that is about to end."""
        return (
            0.0
            if self._broker.readiness.stopping
            else max(0.0, self._end_s - self._broker.environment.clock.monotonic_s())
        )

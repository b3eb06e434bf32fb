"""Seeks: a subscription goes on at other offsets, in a new epoch.

The offsets are looked for first, while everything goes on; the epoch begins at the dispatcher (its module has the order
of writes). A seek has a name, which the client chooses, or the broker that takes the request before it hands it on: the
record has the last ones, so that a repetition whose answer was lost changes nothing.
"""

from collections.abc import Sequence

from seaweedq.broker.subscriptions.administration.starts import AtOffsets, Place, Starts
from seaweedq.broker.subscriptions.cursors.subscription import SeekResult
from seaweedq.broker.subscriptions.dispatch.dispatcher import Dispatcher
from seaweedq.broker.topics.catalog import Topic
from seaweedq.coordination import seek_plan
from seaweedq.coordination.seek_plan import Sought
from seaweedq.errors import TooManySegments


class Seeking:
    """Seeks subscriptions that this broker dispatches. All of it raises NotOwner, NeedsNewerBroker, Unavailable."""

    def __init__(self, dispatcher: Dispatcher, starts: Starts) -> None:
        self._dispatcher = dispatcher
        self._starts = starts

    async def seek(self, topic: Topic, name: str, place: Place, key: str) -> SeekResult:
        """Goes on elsewhere, as the seek `key`. Raises SegmentNotFound, OffsetOutOfRange."""
        if known := (await self._dispatcher.open(topic, name)).sought_as(key):
            return known
        if isinstance(place, AtOffsets):
            return await self._begin(topic, name, key, *await self._starts.at(topic, place.offsets))
        return await self._begin(topic, name, key, await self._starts.find(topic, place))

    async def _begin(
        self, topic: Topic, name: str, key: str, plan: Sequence[Sought], moved: Sequence[int] = ()
    ) -> SeekResult:
        packed = seek_plan.packed(plan)
        if len(packed) > seek_plan.MAX_BYTES:
            raise TooManySegments(f"topic {topic.name!r} has {len(plan)} segments, too many for one seek")
        before, after = await self._dispatcher.seek(topic, name, key, packed)
        if known := before.sought_as(key):  # a repetition was faster
            return known
        segments = [(one.segment, before.stands_at(one.segment, one.end), one.to) for one in plan if one.to is not None]
        after.last_seek = SeekResult(key, segments, moved)
        return after.last_seek

"""Seeks: a subscription goes on at other offsets, in a new epoch.

The offsets are looked for first, while everything goes on; the epoch begins at the dispatcher (its module has the order
of writes). A seek has a name, which the client chooses, or the broker that takes the request before it hands it on: the
record has the last ones, so that a repetition whose answer was lost changes nothing.
"""

import hashlib
from collections.abc import Sequence

from seaweedq.broker.subscriptions.administration.starts import AtOffsets, Place, Starts
from seaweedq.broker.subscriptions.cursors.subscription import SeekResult, Subscription
from seaweedq.broker.subscriptions.dispatch.dispatcher import Dispatcher, Sought
from seaweedq.broker.topics.catalog import Topic
from seaweedq.coordination.records import seek_plan
from seaweedq.errors import InvalidRequest, TooManySegments

DIGEST = 16  # characters


class Seeking:
    """Seeks subscriptions that this broker dispatches. All of it raises NotOwner, NeedsNewerBroker, Unavailable."""

    def __init__(self, dispatcher: Dispatcher, starts: Starts) -> None:
        self._dispatcher = dispatcher
        self._starts = starts

    async def seek(self, topic: Topic, name: str, place: Place, key: str) -> SeekResult:
        """Goes on elsewhere, as the seek `key`. Raises SegmentNotFound, OffsetOutOfRange, and InvalidRequest where the
        seek of this name went to another place."""
        if known := _known(await self._dispatcher.open(topic, name), key, place):
            return known
        plan: Sequence[seek_plan.Sought]
        moved: Sequence[int]
        if isinstance(place, AtOffsets):
            plan, moved = await self._starts.at(topic, place.offsets)
        else:
            plan, moved = await self._starts.find(topic, place), ()
        packed = seek_plan.packed(plan)
        if len(packed) > seek_plan.MAX_BYTES:
            raise TooManySegments(f"topic {topic.name!r} has {len(plan)} segments, too many for one seek")
        before, after = await self._dispatcher.seek(topic, name, key, Sought(packed, _digest(place)))
        if known := _known(before, key, place):  # a repetition was faster
            return known
        segments = [(one.segment, before.stands_at(one.segment, one.end), one.to) for one in plan if one.to is not None]
        after.last_seek = SeekResult(key, segments, moved)
        return after.last_seek


def _digest(place: Place) -> str:
    at = sorted(place.offsets.items()) if isinstance(place, AtOffsets) else place
    return hashlib.sha256(repr(at).encode()).hexdigest()[:DIGEST]


def _known(subscription: Subscription, key: str, place: Place) -> SeekResult | None:
    """Returns the outcome of a seek of this name, None where there was none. Raises InvalidRequest where that one went
    to another place."""
    known, seek = subscription.sought_as(key), subscription.record.seek
    if known and seek and seek.asked.get(key, digest := _digest(place)) != digest:
        detail = f"id is {key!r}, under which this subscription went elsewhere; another seek takes another id"
        raise InvalidRequest(detail, field="id", value=key)
    return known

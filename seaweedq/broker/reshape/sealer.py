"""Ends the chains of the segments that an intent replaces: locks them, makes them refuse messages, and seals them.

The locks prevent moves from the time before the intent is committed until the successors exist. Until the commit
publishes continue, and tails are flushed ahead, so that publishes wait for little. The seal is in the last entry of a
chain: whichever broker put it, the segment ends there. Every step can be repeated.
"""

import asyncio
from collections.abc import Sequence

from seaweedq.broker.log.flusher import Flusher
from seaweedq.broker.log.group_commit import GroupCommit
from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.topics.ownership import Holder, Ownership
from seaweedq.clock import Clock
from seaweedq.coordination.records import Intent
from seaweedq.errors import Fenced, NotOwner
from seaweedq.failpoints import reach
from seaweedq.segments.entry import Seal

LEFT_BYTES, LEFT_PIECES = 2 * 1024 * 1024, 300  # what may be left in a tail when publishes begin to wait,
FLUSHES = 6  # unless it comes too fast to be flushed ahead


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
        return self._ownership.locks.take(topic, intent.segments, self._holder)

    def unlock(self, topic: Topic, intent: Intent) -> None:
        """Allows moves again."""
        self._ownership.locks.release(topic, intent.segments, self._holder)

    def unlock_what_is_over(self) -> None:
        """Unlocks segments that are sealed, or have another owner: the answer to the transaction that did it may have
        been lost."""
        for topic, number in self._ownership.locks.held(self._holder):
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
            raise NotOwner(f"segments {intent.segments} of {topic.name!r} are being moved to another broker")
        for segment in segments:
            segment.pause(NotOwner(f"segment {segment.id} of {topic.name!r} is being replaced"))
            if segment.paused_since_s is None:
                segment.paused_since_s = self._clock.monotonic_s()
        reach("reshape.held")
        await self._commit.wait_until_idle()
        await asyncio.gather(*(self._seal_one(topic, intent, segment) for segment in segments))

    async def _seal_one(self, topic: Topic, intent: Intent, segment: OpenSegment) -> None:
        try:
            await self._flusher.seal(segment, _seal_of(intent, segment))
        except Fenced as error:
            if not await self._ownership.has_ended(segment):
                self._flusher.fenced(segment, error)
                raise  # rows of a recovery have it: this broker counts as dead, and more of its journal is to come
            self.unlock(topic, intent)  # another's seal for the same intent is as good: it is read when opened anew
            ended = NotOwner(f"segment {segment.id} of {topic.name!r} was sealed by another broker")
            segment.close(ended)
            topic.opened.pop(segment.id, None)
            topic.routing = None
            await self._catalog.look_at(topic, intent.segments)
            raise ended from None


def _seal_of(intent: Intent, segment: OpenSegment) -> Seal:
    """Returns the seal that names the successors on the segment's range."""
    whole = segment.source.key_range
    successors = [s for s in intent.successors if s.low < whole.high and whole.low < s.high]
    return Seal(tuple(s.id for s in successors), tuple((s.low, s.high) for s in successors))

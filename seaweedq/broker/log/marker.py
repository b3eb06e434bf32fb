"""Marks: an idle segment gets an entry without rows, so that retention can take the one before.

Order of writes: 1. a mark, which names the sequence of the entry to come, is journaled; 2. any entry of that sequence
is put, with the rows that have come meanwhile, or with none; it has the producer table and the running maximum of
`_timestamp`; 3. the journal lets go of the mark. A crash behind 1 leaves the mark: a recovery puts the entry before it
hands the segment over, so a put of a dead owner that lands late finds its name taken (broker/recovery/replay).
"""

import asyncio

from seaweedq.broker.log.flusher import Flusher
from seaweedq.broker.log.group_commit import GroupCommit
from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.clock import Clock
from seaweedq.failpoints import reach
from seaweedq.segments.frames import mark_frame


class Marker:
    """Marks this broker's segments."""

    def __init__(self, commit: GroupCommit, flusher: Flusher, clock: Clock) -> None:
        self._commit = commit
        self._flusher = flusher
        self._clock = clock

    async def mark(self, segment: OpenSegment, patience_s: float) -> None:
        """Gives a segment one more entry. Raises NotOwner, NotReady, JournalUnavailable, StoreUnavailable, Fenced."""
        segment.check_open()
        sequence = segment.chain.next.sequence
        if segment.mark is None:  # what holds the segment waits for the commit, and flushes behind it
            frame = mark_frame(segment.topic, segment.id, sequence, self._clock.now_us())
            durable = self._commit.append_frame(frame)
            durable.add_done_callback(lambda number: _note(segment, sequence, number))
            await asyncio.shield(durable)
            reach("mark.durable")
        await self._flusher.flush(segment, patience_s)


def _note(segment: OpenSegment, sequence: int, durable: asyncio.Future[int]) -> None:
    if not durable.cancelled() and durable.exception() is None:
        segment.marked(sequence, durable.result())

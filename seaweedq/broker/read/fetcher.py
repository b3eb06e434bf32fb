"""Fetches rows of a segment of this broker for a client, which may wait for the first row."""

from collections.abc import Callable

from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.broker.log.reader import Pieces, Reader
from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.topics.ownership import Ownership
from seaweedq.clock import Clock
from seaweedq.concurrency.deadline import Deadline

MAX_BYTES = 8 * 1024 * 1024


class Fetcher:
    """Fetches at most MAX_BYTES at a time. A wait ends early once the broker stops."""

    def __init__(self, ownership: Ownership, reader: Reader, clock: Clock, stopping: Callable[[], bool]) -> None:
        self._ownership = ownership
        self._reader = reader
        self._clock = clock
        self._stopping = stopping

    async def fetch(
        self, topic: Topic, number: int, offset: int, limit: int, wait_s: float
    ) -> tuple[OpenSegment, Pieces]:
        """Returns the segment, and its rows from `offset` on; none where the wait has ended, or no row can come.

        Raises SegmentNotFound, OffsetOutOfRange; NotOwner where the segment is held, or was sealed meanwhile.
        """
        segment = await self._ownership.opened(topic, number)
        deadline = Deadline(self._clock, wait_s, self._stopping)
        async for _ in deadline.attempts(segment.signal):
            segment.check_open()
            pieces = await self._reader.read(segment, offset, limit, MAX_BYTES)
            if pieces or segment.sealed:
                break
        return segment, pieces

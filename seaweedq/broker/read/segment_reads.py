"""Reads of this broker's segments: for clients, which may wait for the first row, and for other brokers: ends, which a
caller may wait for, rows, and the search for a time.

Only the owner of an open segment answers another broker, and only while it has its lease, so a reader there sees what
is acknowledged. Calls are bounded: rows and bytes by the caller, as a client's fetch is, waits by MAX_WAIT_S.
"""

from collections.abc import Callable

import msgspec
import pyarrow as pa

from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.broker.log.reader import Pieces, Reader
from seaweedq.broker.rpc.messages import SegmentCall
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.topics.ownership import Ownership
from seaweedq.clock import Clock
from seaweedq.concurrency.deadline import Deadline
from seaweedq.segments.layout import Layout, mask_of

MAX_WAIT_S = 10.0
MAX_BYTES = 8 * 1024 * 1024


class SentRows(msgspec.Struct, array_like=True):
    """Rows between brokers: the first offset, the optional columns (layout.mask_of), Arrow IPC without the schema."""

    first: int
    columns: int
    payload: bytes


class SegmentRows(msgspec.Struct, array_like=True):
    """The answer to a read: rows, and the end of the segment."""

    end: int
    pieces: list[SentRows]

    def rows(self, layout: Layout) -> Pieces:
        """Returns the rows as Arrow batches, each with its first offset."""
        return [
            (one.first, pa.ipc.read_record_batch(pa.py_buffer(one.payload), layout.rows(one.columns)))
            for one in self.pieces
        ]


class ReadServer:
    """Answers reads of other brokers. `check_ready` raises NotReady where this broker may not answer."""

    def __init__(
        self, catalog: Catalog, ownership: Ownership, reader: Reader, clock: Clock, check_ready: Callable[[], None]
    ) -> None:
        self._catalog = catalog
        self._ownership = ownership
        self._reader = reader
        self._clock = clock
        self._check_ready = check_ready

    async def ends(self, topic: Topic, known: dict[int, int], wait_s: float) -> dict[int, int]:
        """Returns the ends of this broker's segments of a topic by id, as soon as they differ from `known` or `wait_s`
        has passed. Raises NotReady, TopicBeingDeleted."""
        async for _ in Deadline(self._clock, min(wait_s, MAX_WAIT_S)).attempts(topic.signal):
            self._catalog.check(topic)
            ends = {segment.id: segment.end for segment in await self._ownership.mine(topic) if not segment.closed}
            self._check_ready()
            if ends != known:
                break
        return ends

    async def read(self, topic: Topic, call: SegmentCall) -> SegmentRows:
        """Returns rows of a segment of this broker. Raises NotOwner, NotReady."""
        segment = await self._opened(topic, call)
        pieces = await self._reader.read(segment, call.offset, call.limit, call.max_bytes)
        lent = [SentRows(first, mask_of(rows), rows.serialize().to_pybytes()) for first, rows in pieces]
        return SegmentRows(segment.end, lent)

    async def find(self, topic: Topic, call: SegmentCall) -> int:
        """Returns the first offset of a time in a segment of this broker. Raises NotOwner, NotReady."""
        return await self._reader.find(await self._opened(topic, call), call.timestamp_us)

    async def size_since(self, topic: Topic, call: SegmentCall) -> int:
        """Returns about how many bytes a segment of this broker has from an offset on. Raises NotOwner, NotReady."""
        return sum(await self._reader.sizes_since(await self._opened(topic, call), call.offset))

    async def _opened(self, topic: Topic, call: SegmentCall) -> OpenSegment:
        if call.segment not in self._catalog.records(topic):
            await self._catalog.look(topic.name, call.segment)
        segment = await self._ownership.opened(topic, call.segment)
        self._check_ready()
        segment.check_open()
        return segment


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

        Raises SegmentNotFound, OffsetOutOfRange; NotOwner where the segment is paused, or was sealed meanwhile.
        """
        segment = await self._ownership.opened(topic, number)
        deadline = Deadline(self._clock, wait_s, self._stopping)
        async for _ in deadline.attempts(segment.signal):
            segment.check_open()
            pieces = await self._reader.read(segment, offset, limit, MAX_BYTES)
            if pieces or segment.sealed:
                break
        return segment, pieces

"""Reads: the service, and the answers from this broker's segments. Clients may wait for the first row. Other brokers
ask for ends, which they may wait for, for rows, and for the first offset of a time.

Only the owner of an open segment answers another broker, and only while it has its lease, so a reader there sees the
acknowledged rows. Calls are bounded: rows and bytes by the caller, as a client's fetch is, waits by MAX_WAIT_S.
"""

from collections.abc import Callable

from seaweedq.broker.context import Context
from seaweedq.broker.load import Load
from seaweedq.broker.log.flusher import Log
from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.broker.log.reader import Pieces, Reader
from seaweedq.broker.read.positions import FilePages, LocalPositions, TopicPositions
from seaweedq.broker.read.readable_segments import MAX_WAIT_S, ReadableSegments
from seaweedq.broker.read.request_search import OwnerFinder, SearchContext
from seaweedq.broker.read.sealed_reader import SealedReader
from seaweedq.broker.rpc.messages import SegmentCall, SegmentRows, SentRows
from seaweedq.broker.service import Service
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.topics.ownership import Ownership
from seaweedq.clock import Clock
from seaweedq.concurrency.deadline import Deadline
from seaweedq.segments.layout import mask_of

MAX_BYTES = 8 * 1024 * 1024


class ReadServer:
    """Answers reads of other brokers. `check_ready` raises NotReady if this broker may not answer."""

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
        layout = segment.layout
        raised = [(first, layout.raised(rows)) for first, rows in pieces]
        lent = [SentRows(first, mask_of(rows), rows.serialize().to_pybytes()) for first, rows in raised]
        return SegmentRows(segment.end, lent, layout.schema_id)

    async def find(self, topic: Topic, call: SegmentCall) -> int:
        """Returns the first offset of a time in a segment of this broker. Raises NotOwner, NotReady."""
        return await self._reader.find(await self._opened(topic, call), call.timestamp_us)

    async def size_since(self, topic: Topic, call: SegmentCall) -> int:
        """Returns about how many bytes a segment of this broker has from an offset on. Raises NotOwner, NotReady."""
        return sum(await self._reader.sizes_since(await self._opened(topic, call), call.offset))

    async def _opened(self, topic: Topic, call: SegmentCall) -> OpenSegment:
        if call.segment not in self._catalog.records(topic):
            await self._catalog.refresh(topic.name, call.segment)
        segment = await self._ownership.opened(topic, call.segment)
        self._check_ready()
        segment.check_open()
        return segment


class Fetcher:
    """Fetches at most MAX_BYTES at a time. A wait ends early once the broker stops."""

    def __init__(
        self,
        ownership: Ownership,
        reader: Reader,
        cached: SealedReader | None,
        clock: Clock,
        stopping: Callable[[], bool],
    ) -> None:
        self._cached = cached
        self._ownership = ownership
        self._reader = reader
        self._clock = clock
        self._stopping = stopping

    async def fetch(
        self, topic: Topic, number: int, offset: int, limit: int, wait_s: float
    ) -> tuple[OpenSegment, Pieces]:
        """Returns the segment, and its rows from `offset` on; none if the wait has ended, or no row can come.

        Raises SegmentNotFound, OffsetOutOfRange; NotOwner if the segment is paused, or was sealed meanwhile.
        """
        segment = await self._ownership.opened(topic, number)
        deadline = Deadline(self._clock, wait_s, self._stopping)
        async for _ in deadline.attempts(segment.signal):
            segment.check_open()
            if self._cached and segment.sealed:
                pieces = await self._cached.read(topic, segment, offset, limit, MAX_BYTES)
            else:
                pieces = await self._reader.read(segment, offset, limit, MAX_BYTES)
            if pieces or segment.sealed:
                break
        return segment, pieces


class Reading(Service):
    """The starts and ends of segments, and their rows, by segment, for requests and for other brokers."""

    def __init__(self, context: Context, ownership: Ownership, log: Log, load: Load) -> None:
        view, peers, reader = context.view, context.peers, log.reader
        timeout_s, stopping = context.settings.publish_timeout_s, context.readiness.is_stopping
        self.search = SearchContext(view, timeout_s, stopping)
        self.local_positions = LocalPositions(view, ownership, reader, log.flusher, load.loads, timeout_s)
        self.positions = TopicPositions(view, ownership, peers, self.local_positions, timeout_s)
        cached = SealedReader(view, reader, peers) if context.files is not context.store else None
        self.readables = ReadableSegments(view, ownership, reader, cached, peers)
        self.server = ReadServer(view.catalog, ownership, reader, view.clock, context.readiness.check_ready)
        self.fetcher = Fetcher(ownership, reader, cached, view.clock, stopping)
        self.finder = OwnerFinder(self.search, ownership)
        self.files = FilePages(view.catalog, self.positions, context.store)

    async def stop(self) -> None:
        """Ends all long polls at other brokers."""
        self.readables.close()

"""The positions of a broker's own segments, for itself and for brokers that ask for a whole topic's."""

import asyncio

import msgspec

from seaweedq.broker.load.meters import Loads
from seaweedq.broker.load.segment_rates import Observed, observed
from seaweedq.broker.log.flusher import Flusher
from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.broker.log.reader import Reader
from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.topics.cluster_view import ClusterView
from seaweedq.broker.topics.ownership import Ownership
from seaweedq.errors import NotReady


class Position(msgspec.Struct, array_like=True):
    """The offsets of a segment; and where they were asked for, the bytes of its files, as stored, and of its tail, as
    in memory. The position of an open segment comes with the load that its owner has observed. With the bytes comes
    `file_us`, when its newest file was written; None where it has none, or its owner is of an earlier version."""

    segment: int
    flushed: int
    end: int
    size_bytes: int = 0
    observed: Observed | None = None
    file_us: int | None = None
    tail_bytes: int = 0


class LocalPositions:
    """Answers for the segments that this broker owns. `timeout_s` is how long one entry of a flush may take while the
    store refuses it."""

    def __init__(
        self,
        view: ClusterView,
        ownership: Ownership,
        reader: Reader,
        flusher: Flusher,
        loads: Loads,
        timeout_s: float,
    ) -> None:
        self._catalog = view.catalog
        self._membership = view.membership
        self._clock = view.clock
        self._ownership = ownership
        self._reader = reader
        self._flusher = flusher
        self._loads = loads
        self._timeout_s = timeout_s

    async def of(self, topic: Topic, sizes: bool = False, flush: bool = False) -> list[Position]:
        """Returns the positions of a topic's segments. A locked segment is left out: it is about to change its
        owner, or to be replaced."""
        segments = [segment for segment in await self._ownership.mine(topic) if not segment.closed]
        if flush:
            await asyncio.gather(*(self._flusher.flush(segment, self._timeout_s) for segment in segments))
        loads = observed(topic, self._catalog.records(topic), self._loads.of(topic), self._clock.now_us())
        found = {segment: await self.position(segment, sizes) for segment in segments}
        for segment, position in found.items():
            position.observed = loads.get(segment.id, Observed())
        if not self._membership.valid():
            raise NotReady("this broker's lease has expired")
        return [position for segment, position in found.items() if not segment.closed]

    async def position(self, segment: OpenSegment, sizes: bool) -> Position:
        """Returns where an opened segment stands, with its bytes if `sizes` asks for them."""
        files, tail = await self._reader.sizes_since(segment, 0) if sizes else (0, 0)
        last = segment.chain.last if sizes and segment.tail.start else None  # before it, all files are without rows
        written = last.appended_us if last else None
        return Position(segment.id, segment.tail.start, segment.end, files, file_us=written, tail_bytes=tail)

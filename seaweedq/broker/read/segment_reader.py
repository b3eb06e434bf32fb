"""A segment as readers see it, wherever its owner is: what dispatching, lag and starts need of it.

A sealed segment has no owner: it is local to every broker, which reads it from its files.
"""

from dataclasses import dataclass
from typing import Protocol

from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.broker.log.reader import Pieces, Reader
from seaweedq.segments.layout import Layout


class Readable(Protocol):
    """A segment that can be read. All of it raises Unavailable where its owner can not be asked, or has changed."""

    @property
    def id(self) -> int:
        """The segment's number."""

    @property
    def layout(self) -> Layout:
        """How its rows look."""

    @property
    def end(self) -> int:
        """One above the last durable offset, as far as that is known here; it only rises."""

    @property
    def certain(self) -> bool:
        """Whether `end` is the end, and not what its owner said last."""

    async def read(self, offset: int, limit: int, max_bytes: int) -> Pieces:
        """Up to `limit` rows from `offset` on, about `max_bytes` at most but at least one row; fewer at the end."""

    async def find(self, timestamp_us: int) -> int:
        """The first offset whose `_timestamp` reaches this, or the end."""

    async def size_since(self, offset: int) -> int:
        """About how many bytes the rows from `offset` on take."""


@dataclass(frozen=True, slots=True)
class Local:
    """A segment of this broker, or a sealed one."""

    segment: OpenSegment
    reader: Reader

    @property
    def id(self) -> int:
        """The segment's number."""
        return self.segment.id

    @property
    def layout(self) -> Layout:
        """How its rows look."""
        return self.segment.layout

    @property
    def end(self) -> int:
        """One above the last durable offset."""
        return self.segment.end

    @property
    def certain(self) -> bool:
        """It is."""
        return True

    async def read(self, offset: int, limit: int, max_bytes: int) -> Pieces:
        """Rows from `offset` on."""
        return await self.reader.read(self.segment, offset, limit, max_bytes)

    async def find(self, timestamp_us: int) -> int:
        """The first offset whose `_timestamp` reaches this, or the end."""
        return await self.reader.find(self.segment, timestamp_us)

    async def size_since(self, offset: int) -> int:
        """About how many bytes the rows from `offset` on take."""
        return await self.reader.size_since(self.segment, offset)

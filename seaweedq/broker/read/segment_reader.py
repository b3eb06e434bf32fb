"""A segment as its readers see it, wherever its owner is: dispatching, lag and starts read through it.

A sealed segment has no owner: every broker reads it from its files.
"""

from dataclasses import dataclass
from typing import Protocol

from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.broker.log.reader import Pieces, Reader
from seaweedq.segments.layout import Layout


class Readable(Protocol):
    """A segment that can be read. Every method raises Unavailable where its owner has changed or cannot be asked."""

    @property
    def id(self) -> int:
        """The segment's number."""

    @property
    def layout(self) -> Layout:
        """The layout of its rows."""

    @property
    def end(self) -> int:
        """The offset above the last durable one, as far as it is known here; it only rises."""

    @property
    def certain(self) -> bool:
        """Whether `end` is the end now, and not the one that the owner reported last."""

    def is_in_memory(self, offset: int) -> bool:
        """Whether rows from `offset` on are read without a file or another broker."""

    async def read(self, offset: int, limit: int, max_bytes: int) -> Pieces:
        """Returns up to `limit` rows from `offset` on, about `max_bytes` at most but at least one row; fewer at the
        end, and where the store is slow."""

    async def find(self, timestamp_us: int) -> int:
        """Returns the first offset whose `_timestamp` reaches this, or the end."""

    async def size_since(self, offset: int) -> int:
        """Returns about how many bytes the rows from `offset` on take."""


@dataclass(frozen=True, slots=True)
class LocalSegment:
    """A segment of this broker, or a sealed one."""

    segment: OpenSegment
    reader: Reader

    @property
    def id(self) -> int:
        """The segment's number."""
        return self.segment.id

    @property
    def layout(self) -> Layout:
        """The layout of its rows."""
        return self.segment.layout

    @property
    def end(self) -> int:
        """The offset above the last durable one."""
        return self.segment.end

    @property
    def certain(self) -> bool:
        """Always true."""
        return True

    def is_in_memory(self, offset: int) -> bool:
        """Whether rows from `offset` on are in the tail."""
        return offset >= self.segment.tail.start

    async def read(self, offset: int, limit: int, max_bytes: int) -> Pieces:
        """Returns rows from `offset` on."""
        return await self.reader.read(self.segment, offset, limit, max_bytes)

    async def find(self, timestamp_us: int) -> int:
        """Returns the first offset whose `_timestamp` reaches this, or the end."""
        return await self.reader.find(self.segment, timestamp_us)

    async def size_since(self, offset: int) -> int:
        """Returns about how many bytes the rows from `offset` on take."""
        return sum(await self.reader.sizes_since(self.segment, offset))

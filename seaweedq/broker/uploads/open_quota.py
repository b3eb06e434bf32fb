"""The number of open uploads of a topic, which is bounded, so that nobody fills the store with payloads that are never
published.

A count reads all of a topic's upload records, so it is made at most every RECOUNT_S, and this broker's own uploads
since are added. Before a request is refused the count is made again. So the limit is exact for the uploads of one
broker; several brokers may together exceed it by those that they begin in RECOUNT_S.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.uploads.record_store import UploadRecords
from seaweedq.clock import Clock
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Entry
from seaweedq.coordination.unreadable import Unreadable
from seaweedq.errors import TooManyUploads

RECOUNT_S = 30.0
FULL_S = 1.0  # between two counts that refuse requests


@dataclass(eq=False)
class _Count:
    """The count at `at_s` has found `found`; since then `since` were begun here, less those that ended; `begun` are
    under way."""

    at_s: float = float("-inf")
    found: int = 0
    since: int = 0
    begun: int = 0
    counting: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def total(self) -> int:
        return self.found + self.since + self.begun


class OpenQuota:
    """The approximate numbers of open uploads by topic."""

    def __init__(self, records: UploadRecords, clock: Clock, limit: int) -> None:
        self._records = records
        self._clock = clock
        self._limit = limit
        self._counts: WeakKeyDictionary[Topic, _Count] = WeakKeyDictionary()

    @asynccontextmanager
    async def place(self, topic: Topic) -> AsyncIterator[None]:
        """Counts an upload that begins in this block, unless it fails. Raises TooManyUploads."""
        count = self._counts.setdefault(topic, _Count())
        await self._recount(topic, count, RECOUNT_S)
        if count.total >= self._limit:
            await self._recount(topic, count, FULL_S)
        if count.total >= self._limit:
            detail = f"topic {topic.name!r} has {count.total} open uploads, which is the limit: publish or abort some"
            raise TooManyUploads(detail, limit=self._limit, retry_after_s=int(FULL_S))
        count.begun += 1
        try:
            yield
            count.since += 1
        finally:
            count.begun -= 1

    def ended(self, topic: Topic) -> None:
        """Counts an upload of the topic that is not open any more."""
        if topic in self._counts:
            self._counts[topic].since -= 1

    async def _recount(self, topic: Topic, count: _Count, every_s: float) -> None:
        async with count.counting:
            now_s = self._clock.monotonic_s()
            if now_s - count.at_s < every_s:
                return
            count.since = 0
            count.found, count.at_s = await self._open(topic), now_s

    async def _open(self, topic: Topic) -> int:
        return sum([_is_open(entry) async for entry in self._records.of(topic)])


def _is_open(entry: Entry) -> bool:
    found = keys.UPLOADS.read(entry)
    return isinstance(found, Unreadable) or found.record.state == "open"

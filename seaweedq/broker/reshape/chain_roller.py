"""Rolling: replaces a segment whose chain has grown long by one with the same range, so that no chain grows without
end.

The end of a chain is found by bisection, and its readers list it: both stay cheap. Checked after each flush.
"""

import asyncio
import logging

from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.broker.reshape.planner import Planner
from seaweedq.broker.topics.catalog import Catalog
from seaweedq.errors import SeaweedqError

ENTRIES = 10_000
AGAIN = 100  # entries later, where it could not be planned
logger = logging.getLogger(__name__)


class Roller:
    """Plans the rolls of this broker's segments; their owner carries them out (broker/reshape/reshaper)."""

    def __init__(self, catalog: Catalog, planner: Planner, entries: int = ENTRIES) -> None:
        self._catalog = catalog
        self._planner = planner
        self._entries = entries
        self._tasks: set[asyncio.Task[None]] = set()

    def grown(self, segment: OpenSegment) -> None:
        """Plans a roll if a chain, to which an entry was appended, is long."""
        beyond = segment.chain.next.sequence - self._entries
        if beyond < 0 or beyond % AGAIN or segment.sealed or segment.held_since_s is not None:
            return
        task = asyncio.create_task(self._roll(segment), name=f"rolling {segment.topic}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Plans nothing any more."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _roll(self, segment: OpenSegment) -> None:
        topic = self._catalog.find(segment.topic)
        if topic is None or topic.opened.get(segment.id) is not segment:
            return
        try:
            await self._planner.plan(topic, [segment.id])
            logger.info("segment %d of %s has %d entries; it is rolled", segment.id, topic.name, self._entries)
        except SeaweedqError as error:
            logger.warning("segment %d of %s is long but cannot be rolled yet: %s", segment.id, topic.name, error)

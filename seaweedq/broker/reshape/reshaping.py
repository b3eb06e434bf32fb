"""Reshaping: the services that move, split, merge and roll segments."""

import asyncio

from seaweedq.broker.context import Context
from seaweedq.broker.load.loads import Load
from seaweedq.broker.log.log import Log
from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.broker.publish.publishing import Publishing
from seaweedq.broker.reshape.change_requests import ChangeRequests
from seaweedq.broker.reshape.drain import Drain
from seaweedq.broker.reshape.planner import Planner, Roller
from seaweedq.broker.reshape.reshaper import Replacer, Reshaper
from seaweedq.broker.reshape.sealer import Sealer
from seaweedq.broker.service import Service, Tasks
from seaweedq.broker.topics.segment_mover import SegmentMover


class Reshaping(Service):
    """Plans changes of segments on request (`changes`) and by itself, and carries out those of this broker's."""

    def __init__(self, context: Context, log: Log, publishing: Publishing, load: Load) -> None:
        catalog, roster, clock = context.catalog, context.roster, context.clock
        timeout_s, ownership = context.settings.publish_timeout_s, publishing.ownership
        self.planner = Planner(catalog, context.coordination, context.quota, publishing.restored)
        self.roller = Roller(catalog, self.planner)
        self.mover = SegmentMover(catalog, roster, ownership, log.commit, log.flusher, timeout_s)
        sealer = Sealer(catalog, ownership, log.commit, log.flusher, clock)
        replacer = Replacer(catalog, roster, ownership, sealer, self.mover, clock)
        self.reshaper = Reshaper(catalog, ownership, sealer, replacer)
        self.changes = ChangeRequests(
            context.view, self.planner, context.peers, timeout_s, context.readiness.is_stopping
        )
        self._drain = Drain(catalog, roster, context.membership, load.loads, self.mover)

    def grown(self, segment: OpenSegment) -> None:
        """Hears of each segment that got a file: a chain that is long is rolled."""
        self.roller.grown(segment)

    async def run(self) -> Tasks:
        """Carries out intents."""
        return {"reshaping": self.reshaper.run()}

    async def hand_over(self) -> None:
        """Gives away the segments that others can have."""
        await self._drain.hand_over()

    async def stop(self) -> None:
        """Carries out and plans nothing more."""
        await asyncio.gather(self.reshaper.stop(), self.roller.stop())

"""Reshaping: the services that move, split, merge and roll segments, and the drain: a broker that is about to stop
gives its segments to the others, as even as it can, while it serves on.

Order of a drain: its record says `draining`, so that nobody gives it anything more; then each segment moves
(broker/reshape/segment_mover). What does not move in time, or has nobody to move to, is found in the journal or needs
nothing: all of it stays safe.
"""

import asyncio
import logging

from seaweedq.balancer.placement import Host, SegmentId, assign
from seaweedq.broker.context import Context
from seaweedq.broker.load import Load, Loads
from seaweedq.broker.log.flusher import Log
from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.broker.publish.publisher import Publishing
from seaweedq.broker.reshape.planning import ChangeRequests, Planner, Roller
from seaweedq.broker.reshape.reshaper import Replacer, Reshaper, Sealer
from seaweedq.broker.reshape.segment_mover import SegmentMover
from seaweedq.broker.service import Service, Tasks
from seaweedq.broker.topics.catalog import Catalog
from seaweedq.concurrency.futures import gather_bounded
from seaweedq.coordination.membership import Membership
from seaweedq.coordination.roster import Roster
from seaweedq.errors import SeaweedqError

GIVERS = 8
TRIES = 3  # for a segment whose new owner has begun to drain meanwhile
logger = logging.getLogger(__name__)


class Drain:
    """The hand-over of one broker's segments."""

    def __init__(
        self, catalog: Catalog, roster: Roster, membership: Membership, loads: Loads, mover: SegmentMover
    ) -> None:
        self._catalog = catalog
        self._roster = roster
        self._membership = membership
        self._loads = loads
        self._mover = mover

    async def hand_over(self) -> None:
        """Gives away the segments that others can have. Raises CoordinationUnavailable if no broker can be told."""
        await self._membership.drain()
        held = len(self._own())
        for _ in range(TRIES):
            if not (targets := self._targets()):
                break
            await gather_bounded(GIVERS, self._give_one, targets.items())
        logger.info("handed over %d of %d segments to other brokers", held - len(self._own()), held)

    def _own(self) -> list[SegmentId]:
        return list(self._catalog.owned_by(self._membership.broker))

    def _targets(self) -> dict[SegmentId, str]:
        mine = self._membership.broker
        brokers = {broker: known.record for broker, known in self._roster.brokers.items()}
        hosts = [Host(broker, one.zone, broker == mine or not one.takes_more) for broker, one in brokers.items()]
        owned = {segment: broker for broker in brokers if broker != mine for segment in self._catalog.owned_by(broker)}
        return assign(self._own(), owned, self._loads.costs(), hosts)

    async def _give_one(self, move: tuple[SegmentId, str]) -> None:
        (name, incarnation, number), target = move
        topic = self._catalog.get(name)
        if topic is None or topic.record.incarnation != incarnation:
            return  # a creation that was cut off
        try:
            await self._mover.move(topic, number, target)
        except SeaweedqError as error:
            logger.warning("segment %d of topic %s could not be handed over to another broker: %s", number, name, error)
        except Exception:  # a defect must not end the others under way
            logger.exception("segment %d of topic %s could not be handed over to another broker", number, name)


class Reshaping(Service):
    """Plans changes of segments on request (`changes`) and by itself, and carries out those of this broker's."""

    def __init__(self, context: Context, log: Log, publishing: Publishing, load: Load) -> None:
        catalog, roster, clock = context.catalog, context.roster, context.clock
        timeout_s, ownership = context.settings.publish_timeout_s, publishing.ownership
        self.planner = Planner(catalog, context.coordination, context.store, context.quota)
        self.roller = Roller(catalog, self.planner)
        self.mover = SegmentMover(catalog, roster, ownership, log.commit, log.flusher, timeout_s)
        sealer = Sealer(catalog, ownership, log.commit, log.flusher, clock)
        replacer = Replacer(catalog, roster, ownership, sealer, self.mover, clock, context.traces)
        self.reshaper = Reshaper(catalog, ownership, sealer, replacer, self.planner.resume)
        self.changes = ChangeRequests(
            context.view, self.planner, context.peers, timeout_s, context.readiness.is_stopping
        )
        self._drain = Drain(catalog, roster, context.membership, load.loads, self.mover)

    def grown(self, segment: OpenSegment) -> None:
        """Plans the roll of a segment that got a file, if its chain is long."""
        self.roller.roll_if_long(segment)

    async def run(self) -> Tasks:
        """Carries out intents."""
        return {"reshaping": self.reshaper.run()}

    async def hand_over(self) -> None:
        """Gives away the segments that others can have."""
        await self._drain.hand_over()

    async def stop(self) -> None:
        """Carries out and plans nothing more."""
        await asyncio.gather(self.reshaper.stop(), self.roller.stop())

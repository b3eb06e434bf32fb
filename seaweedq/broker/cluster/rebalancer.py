"""Rebalancing: segments move between living brokers until their loads are about equal.

`balancer/placement` decides in a thread, from the loads that owners report; the owner of a segment moves it
(broker/topics/segment_mover). Nothing here matters for safety, and a move that fails costs nothing.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from itertools import chain

from seaweedq.balancer.load import with_unknown
from seaweedq.balancer.placement import Host, Move, SegmentId, assign, moves
from seaweedq.broker.load.reports import Reports
from seaweedq.broker.rpc.client import Peers
from seaweedq.broker.rpc.messages import GiveCall
from seaweedq.broker.topics.catalog import Catalog
from seaweedq.clock import Clock
from seaweedq.concurrency.gather import gather_bounded
from seaweedq.coordination.roster import Roster
from seaweedq.errors import SeaweedqError

MOVES = 64  # at most, in each round
GIVERS = 8
TOLERANCE = 0.3
GIVE_S = 30.0  # enough to flush a large tail
SETTLED_S = 30.0  # a moved segment stays where it is for so long
REST = 10  # no further plan for so many times the duration of the last one
logger = logging.getLogger(__name__)


class Rebalancer:
    """The leader's rebalancer."""

    def __init__(self, catalog: Catalog, roster: Roster, reports: Reports, peers: Peers, clock: Clock) -> None:
        self._catalog = catalog
        self._roster = roster
        self._reports = reports
        self._peers = peers
        self._clock = clock
        self._moved_s: dict[SegmentId, float] = {}
        self._not_before_s = float("-inf")

    def owned(self) -> dict[SegmentId, str]:
        """Returns the segments of living brokers, with their owners."""
        return {segment: owner for owner in self._roster.brokers for segment in self._catalog.owned_by(owner)}

    async def assign(self, segments: Sequence[SegmentId]) -> dict[SegmentId, str]:
        """Returns an owner for each of these segments that can have one, by the last known loads."""
        hosts = hosts_of(self._roster)
        return await asyncio.to_thread(_assign, segments, self.owned(), self._reports.costs, hosts)

    async def rebalance(self) -> None:
        """Decides on moves, and has them made. A broker that does not report gives nothing and gets nothing."""
        if len(self._roster.brokers) < 2 or self._clock.monotonic_s() < self._not_before_s:
            return
        hosts = [host for host in hosts_of(self._roster) if host.broker in self._reports.answered]
        began_s = self._clock.monotonic_s()
        planned = await asyncio.to_thread(moves, self.owned(), self._reports.costs, hosts, MOVES, TOLERANCE)
        now_s = self._clock.monotonic_s()
        self._not_before_s = now_s + REST * (now_s - began_s)
        self._moved_s = {segment: at for segment, at in self._moved_s.items() if now_s - at < SETTLED_S}
        settled = {host.broker for host in hosts if not host.draining}
        locked = self._catalog.locked()  # a move would undo the plan of a split or merge
        free = [m for m in planned if m.segment not in locked or m.source not in settled]
        due = [m for m in free if m.segment not in self._moved_s or m.source not in settled]
        due = [m for m in due if m.source not in settled or not self._catalog.unreadable(*m.segment[:2])]
        await gather_bounded(GIVERS, self.move, due)

    async def move(self, move: Move) -> None:
        """Has one segment moved, which then stays where it is for a while."""
        url = self._roster.url(move.source)
        if url is None:
            return
        topic, incarnation, segment = move.segment
        try:
            request = GiveCall(topic, incarnation, segment, move.target)
            await self._peers.call(url, "give", request, bool, GIVE_S)
            self._moved_s[move.segment] = self._clock.monotonic_s()
        except SeaweedqError as error:
            logger.info("segment %d of %s stays with %s: %s", segment, topic, move.source, error)


def _assign(
    segments: Sequence[SegmentId],
    owned: Mapping[SegmentId, str],
    costs: Mapping[SegmentId, float],
    hosts: Sequence[Host],
) -> dict[SegmentId, str]:
    return assign(segments, owned, with_unknown(costs, chain(segments, owned)), hosts)


def hosts_of(roster: Roster) -> list[Host]:
    """Returns the living brokers."""
    brokers = sorted(roster.brokers)
    known = [roster.brokers[broker].record for broker in brokers]
    return [Host(broker, one.zone, not one.takes_more) for broker, one in zip(brokers, known, strict=True)]

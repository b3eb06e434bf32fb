"""Reads of sealed segments where brokers cache files in folders.

Every broker could read a sealed segment from its files. But its rows come from its preferred broker, the rendezvous
winner among those that do not leave: so the cluster's caches hold each file once, and the store sends it once. That is
only a preference. A broker whose preferred one refuses, or does not answer within ASK_S, reads the files itself, and
asks one that gave no answer again only after AWAY_S. A preferred broker never passes a read on, though it may know
another roster.
"""

import asyncio

from seaweedq.balancer.placement import Host, successor_of
from seaweedq.broker.context import ClusterView
from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.broker.log.reader import Pieces, Reader
from seaweedq.broker.rpc.client import Peers
from seaweedq.broker.rpc.messages import SegmentCall, SegmentRows
from seaweedq.broker.topics.catalog import Topic
from seaweedq.errors import NotReady, Overloaded, SeaweedqError, Unavailable

ASK_S = 0.5  # a round of a subscription waits as long for the owners of its segments (pull_rounds)
AWAY_S = 10.0


class SealedReader:
    """Reads rows of sealed segments at their preferred brokers."""

    def __init__(self, view: ClusterView, reader: Reader, peers: Peers) -> None:
        self._catalog = view.catalog
        self._roster = view.roster
        self._broker = view.membership.broker
        self._clock = view.clock
        self._reader = reader
        self._peers = peers
        self._away_s: dict[str, float] = {}  # until when a broker is not asked

    async def read(self, topic: Topic, segment: OpenSegment, offset: int, limit: int, max_bytes: int) -> Pieces:
        """Returns rows, as `Reader.read`."""
        segment.check_start(offset)
        if offset < segment.tail.start and (broker := self.preferred(topic, segment.id)) != self._broker:
            call = SegmentCall(topic.name, topic.record.incarnation, segment.id, offset, limit, max_bytes)
            lent = await self._ask(broker, call)
            if lent and lent.pieces:  # else it knows an older end
                layout = await self._catalog.layout(topic, lent.schema_id)
                segment.check_open()
                return lent.rows(layout)
        return await self._reader.read(segment, offset, limit, max_bytes)

    def preferred(self, topic: Topic, segment: int) -> str:
        """Returns the broker that reads a sealed segment's files for all."""
        now_s = self._clock.monotonic_s()
        hosts = [
            Host(broker)
            for broker, known in self._roster.brokers.items()
            if known.record.takes_more and self._away_s.get(broker, 0.0) <= now_s
        ]
        return successor_of(f"{topic.name}/{segment}", hosts) or self._broker

    async def _ask(self, broker: str, call: SegmentCall) -> SegmentRows | None:
        """Returns the rows that a broker lends; None if it refuses, which is judged here then, or gives no answer."""
        url = self._roster.brokers[broker].record.url
        try:
            async with asyncio.timeout(ASK_S):
                return await self._peers.call(url, "read", call, SegmentRows, ASK_S)
        except (TimeoutError, SeaweedqError) as error:
            if type(error) in (TimeoutError, Unavailable, NotReady, Overloaded):
                now_s = self._clock.monotonic_s()
                self._away_s = {one: s for one, s in self._away_s.items() if s > now_s} | {broker: now_s + AWAY_S}
            return None

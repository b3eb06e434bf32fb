"""Entries without rows for idle segments, so that retention can take the ones before, and for segments without any, so
that it can take their predecessors' last ones: asked for by the leader, put by the owners (broker/log/marker)."""

import logging
from collections.abc import Sequence

from seaweedq.broker.log.marker import Marker
from seaweedq.broker.rpc.client import Peers
from seaweedq.broker.rpc.messages import MarkCall
from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.topics.cluster_view import ClusterView
from seaweedq.broker.topics.ownership import Ownership
from seaweedq.concurrency.gather import gather_bounded
from seaweedq.errors import NotOwner, Unavailable

MARKED = 16  # segments at a time
logger = logging.getLogger(__name__)


class SegmentMarks:
    """Marks segments, those of this broker here, and the others at their owners. `timeout_s` bounds each."""

    def __init__(self, view: ClusterView, ownership: Ownership, marker: Marker, peers: Peers, timeout_s: float) -> None:
        self._catalog = view.catalog
        self._roster = view.roster
        self._broker = view.membership.broker
        self._ownership = ownership
        self._marker = marker
        self._peers = peers
        self._timeout_s = timeout_s

    async def mark(self, topic: Topic, segments: Sequence[int]) -> bool:
        """Gives each of these segments one more entry. Returns False where some owner did not: those of the others have
        theirs all the same."""
        owners: dict[str | None, list[int]] = {}
        for number in segments:
            owners.setdefault(self._catalog.segment(topic, number).record.owner, []).append(number)
        return all(await gather_bounded(MARKED, lambda owner: self._try(topic, owner, owners[owner]), owners))

    async def here(self, topic: Topic, segments: Sequence[int]) -> bool:
        """Gives each of these segments, of this broker, one more entry, unless it has a tail: that becomes one by
        itself. Raises Unavailable."""
        await gather_bounded(MARKED, lambda number: self._mark(topic, number), segments)
        return True

    async def _try(self, topic: Topic, owner: str | None, segments: Sequence[int]) -> bool:
        try:
            return await self._ask(topic, owner, segments)
        except Unavailable as error:
            logger.warning(
                "%d idle segments of %s keep their newest files for now: %s", len(segments), topic.name, error
            )
            return False

    async def _ask(self, topic: Topic, owner: str | None, segments: Sequence[int]) -> bool:
        if owner == self._broker:
            return await self.here(topic, segments)
        url = self._roster.url(owner)
        if url is None:
            raise NotOwner(f"broker {owner}, which owns segments of {topic.name!r}, no longer lives", owner=owner)
        call = MarkCall(topic.name, topic.record.incarnation, tuple(segments))
        return await self._peers.call(url, "mark", call, bool, self._timeout_s)

    async def _mark(self, topic: Topic, number: int) -> None:
        segment = await self._ownership.opened(topic, number)
        if not segment.tail:
            await self._marker.mark(segment, self._timeout_s)

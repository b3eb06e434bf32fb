"""Empty entries, which have no rows: for idle segments, so that retention can take the entries before, and for segments
without any, so that it can take their predecessors' last ones. The leader asks for them, the owners put them.

Order of writes: 1. the owner journals a frame that names the sequence of the entry to come; 2. any entry of that
sequence is put, with the rows that have come meanwhile, or with none; it has the producer table and the running maximum
of `_timestamp`; 3. the journal lets go of the frame. A crash behind 1 leaves the frame: a recovery puts the entry
before it hands the segment over, so a put of a dead owner that lands late finds its name taken
(broker/recovery/replay).
"""

import asyncio
import logging
from collections.abc import Sequence

from seaweedq.broker.context import ClusterView
from seaweedq.broker.log.flusher import Flusher
from seaweedq.broker.log.group_commit import GroupCommit
from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.broker.rpc.client import Peers
from seaweedq.broker.rpc.messages import MarkCall
from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.topics.ownership import Ownership
from seaweedq.concurrency.gather import gather_bounded
from seaweedq.errors import NotOwner, Unavailable
from seaweedq.failpoints import reach
from seaweedq.segments.frames import empty_entry_frame

SEGMENTS = 16  # segments at a time
logger = logging.getLogger(__name__)


class EmptyEntries:
    """Appends empty entries, to segments of this broker here, and to the others at their owners. `timeout_s` bounds
    each."""

    def __init__(
        self,
        view: ClusterView,
        ownership: Ownership,
        commit: GroupCommit,
        flusher: Flusher,
        peers: Peers,
        timeout_s: float,
    ) -> None:
        self._catalog = view.catalog
        self._roster = view.roster
        self._broker = view.membership.broker
        self._clock = view.clock
        self._ownership = ownership
        self._commit = commit
        self._flusher = flusher
        self._peers = peers
        self._timeout_s = timeout_s

    async def append(self, topic: Topic, segments: Sequence[int]) -> bool:
        """Gives each of these segments one more entry. Returns False if some owner did not: those of the others have
        theirs all the same."""
        owners: dict[str | None, list[int]] = {}
        for number in segments:
            owners.setdefault(self._catalog.segment(topic, number).record.owner, []).append(number)
        return all(await gather_bounded(SEGMENTS, lambda owner: self._ask(topic, owner, owners[owner]), owners))

    async def append_here(self, topic: Topic, segments: Sequence[int]) -> bool:
        """Gives each of these segments, of this broker, one more entry, unless it has a tail: that becomes one by
        itself. Raises Unavailable."""
        await gather_bounded(SEGMENTS, lambda number: self._append(topic, number), segments)
        return True

    async def _ask(self, topic: Topic, owner: str | None, segments: Sequence[int]) -> bool:
        try:
            if owner == self._broker:
                return await self.append_here(topic, segments)
            url = self._roster.url(owner)
            if url is None:
                raise NotOwner(f"broker {owner}, which owns segments of {topic.name!r}, no longer lives", owner=owner)
            call = MarkCall(topic.name, topic.record.incarnation, tuple(segments))
            return await self._peers.call(url, "mark", call, bool, self._timeout_s)
        except Unavailable as error:
            logger.warning(
                "%d idle segments of %s keep their newest files for now: %s", len(segments), topic.name, error
            )
            return False

    async def _append(self, topic: Topic, number: int) -> None:
        """Raises NotOwner, NotReady, JournalUnavailable, StoreUnavailable, Fenced."""
        segment = await self._ownership.opened(topic, number)
        if segment.tail:
            return
        segment.check_open()
        sequence = segment.chain.next.sequence
        if segment.empty_entry is None:  # a pause of the segment waits for the commit, and flushes behind it
            frame = empty_entry_frame(segment.topic, segment.id, sequence, self._clock.now_us())
            durable = self._commit.append_frame(frame)
            durable.add_done_callback(lambda number: _record(segment, sequence, number))
            await asyncio.shield(durable)
            reach("mark.durable")
        await self._flusher.flush(segment, self._timeout_s)


def _record(segment: OpenSegment, sequence: int, durable: asyncio.Future[int]) -> None:
    if not durable.cancelled() and durable.exception() is None:
        segment.owe_entry(sequence, durable.result())

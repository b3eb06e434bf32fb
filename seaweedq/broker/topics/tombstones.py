"""Tombstones: what coordination remembers of segments that retention has removed. broker/retention/segment_removal
writes them.

They are no part of the catalog's view, since nobody needs them but readers that were away for long: each question costs
a request to coordination.
"""

from seaweedq.broker.topics.catalog import Topic
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Coordination, read_all
from seaweedq.coordination.records import TombstoneRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import BelowRetention, OffsetOutOfRange, SegmentNotFound


class Tombstones:
    """Reads tombstones."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination

    async def require(self, topic: Topic, segment: int) -> TombstoneRecord:
        """Returns the tombstone of a segment. Raises SegmentNotFound where there is none, NeedsNewerBroker."""
        if segment < keys.ID_BOUND:
            there = await self._coordination.get(keys.TOMBSTONES.key(topic.name, topic.record.incarnation, segment))
            if there:
                return keys.TOMBSTONES.require(there).record
        raise SegmentNotFound(f"topic {topic.name!r} has no segment {segment}", topic=topic.name, segment=segment)

    async def all(self, topic: Topic) -> dict[int, TombstoneRecord]:
        """Returns the tombstones of a topic by segment, apart from those that cannot be read."""
        prefix = keys.TOMBSTONES.prefix(topic.name, topic.record.incarnation)
        entries, _ = await read_all(self._coordination, prefix)
        found = {int(keys.TOMBSTONES.parse(entry.key)[2]): keys.TOMBSTONES.read(entry) for entry in entries}
        return {number: held.record for number, held in found.items() if isinstance(held, Versioned)}


def check_at_end(segment: int, end: int, offset: int) -> None:
    """Raises unless an offset is the end of a segment that retention has removed: BelowRetention below it, since a
    reader must know that it has lost messages, OffsetOutOfRange beyond it."""
    if offset < end:
        raise BelowRetention(
            f"retention has removed offset {offset} of segment {segment}, and all others up to its end, {end}",
            offset=offset,
            start_offset=end,
            segment=segment,
        )
    if offset > end:
        raise OffsetOutOfRange(
            f"offset {offset} is beyond the end of segment {segment}, which is {end}", offset=offset, end_offset=end
        )

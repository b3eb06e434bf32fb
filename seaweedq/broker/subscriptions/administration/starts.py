"""The offsets at which a new subscription, or one that is sought, begins in each segment."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from seaweedq.broker.read.remote_reader import ReadableSegments
from seaweedq.broker.read.topic_positions import TopicPositions
from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.topics.tombstones import Tombstones
from seaweedq.coordination.records.seek_plan import Sought
from seaweedq.errors import OffsetOutOfRange

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """The offset to go on at, by segment."""

    offsets: Mapping[int, int]


Place: TypeAlias = str | dict[str, str] | AtOffsets


class Starts:
    """Finds where to begin, in all segments of now. Segments that are created later begin at 0, so no message is missed
    or delivered twice where a segment is replaced meanwhile."""

    def __init__(self, readables: ReadableSegments, positions: TopicPositions, tombstones: Tombstones) -> None:
        self._readables = readables
        self._positions = positions
        self._tombstones = tombstones

    async def find(self, topic: Topic, start: str | dict[str, str]) -> list[Sought]:
        """Returns where `earliest`, `latest` or a time is. Raises NeedsNewerBroker where that offset is not known of a
        segment."""
        if start != "earliest":
            self._readables.check_whole(topic)
        ends = await self._ends(topic)
        offsets = await self._offsets(topic, start, ends)
        return [Sought(number, ends[number], offsets[number]) for number in sorted(offsets)]

    async def at(self, topic: Topic, offsets: Mapping[int, int]) -> tuple[list[Sought], list[int]]:
        """Returns all segments with these offsets, and the numbers of those whose start is above theirs, at which they
        begin; of a segment that retention has removed that is the end. Raises SegmentNotFound, and OffsetOutOfRange
        beyond an end."""
        ends = await self._ends(topic)
        unknown = offsets.keys() - ends.keys()
        removed = {number: (await self._tombstones.require(topic, number)).end_offset for number in sorted(unknown)}
        for number, offset in offsets.items():
            end = removed[number] if number in removed else ends[number]
            if offset > end:
                detail = f"offset {offset} is beyond the end of segment {number}, which is {end}"
                raise OffsetOutOfRange(detail, segment=number, offset=offset, end_offset=end)
        begin = {**self._readables.start_offsets(topic), **removed}
        moved = sorted(number for number, offset in offsets.items() if offset < begin.get(number, 0))
        to = {number: max(offset, begin.get(number, 0)) for number, offset in offsets.items()}
        return [Sought(number, ends[number], to.get(number)) for number in sorted(ends)], moved

    async def _ends(self, topic: Topic) -> dict[int, int]:
        return {number: position.end for number, position in (await self._positions.positions(topic)).items()}

    async def _offsets(self, topic: Topic, start: str | dict[str, str], ends: dict[int, int]) -> dict[int, int]:
        if start == "earliest":
            begin = self._readables.start_offsets(topic)
            return {number: begin.get(number, 0) for number in ends}
        if start == "latest":
            return ends
        assert isinstance(start, dict)
        timestamp_us = (datetime.fromisoformat(start["timestamp"]) - EPOCH) // timedelta(microseconds=1)
        return await self._readables.find(topic, ends, timestamp_us)

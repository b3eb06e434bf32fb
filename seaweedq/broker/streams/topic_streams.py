"""Opens readers of whole topics where a client says: at the first message, at the end, at a time, at positions."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from seaweedq.broker.read.positions import TopicPositions
from seaweedq.broker.read.readable_segments import ReadableSegments
from seaweedq.broker.streams.feeds import Feeds
from seaweedq.broker.streams.positions import Positions, resumed
from seaweedq.broker.streams.topic_reader import TopicReader, check_end
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.topics.tombstones import Tombstones
from seaweedq.errors import BelowRetention


@dataclass(frozen=True, slots=True)
class StartTime:
    """The first message whose timestamp reaches this, and all after it."""

    timestamp_us: int


Start = Literal["earliest", "latest"] | StartTime | Positions


@dataclass(frozen=True)
class TopicStreams:
    """The readers of this broker, and what wakes them."""

    catalog: Catalog
    readables: ReadableSegments
    positions: TopicPositions
    tombstones: Tombstones
    feeds: Feeds

    async def open(self, topic: Topic, start: Start) -> TopicReader:
        """Returns a reader. Raises InvalidPositions, OffsetOutOfRange, BelowRetention, and Unavailable where an end
        must be known and its owner does not answer."""
        if isinstance(start, Positions):
            return await self._resume(topic, start)
        return self._reader(topic, await self._starts(topic, start))

    async def _resume(self, topic: Topic, start: Positions) -> TopicReader:
        """Asks nobody who must answer: a client that comes back after the death of an owner must not be sent away."""
        if start.offsets.keys() - self.catalog.records(topic).keys():
            await self.catalog.reread(topic)
        if start.offsets.keys() - self.catalog.records(topic).keys():
            graves = await self.tombstones.all(topic)
            start = replace(start, offsets=resumed(start.offsets, self.catalog.records(topic), graves))
        self.catalog.check(topic)
        records, begin = self.catalog.records(topic), self.catalog.start_offsets(topic)
        start.check(topic.record.incarnation, records)
        for segment, offset in start.offsets.items():
            check_end(segment, offset, records[segment].record.end_offset)
            _check_start(segment, offset, begin.get(segment, 0))
        reader = self._reader(topic, start.offsets)
        await reader.check_ends()
        return reader

    def _reader(self, topic: Topic, at: Mapping[int, int]) -> TopicReader:
        return TopicReader(self.catalog, self.readables, self.tombstones, topic, at)

    async def _starts(self, topic: Topic, start: Literal["earliest", "latest"] | StartTime) -> dict[int, int]:
        """Returns the first offset of each segment of now; of later ones it is 0."""
        if start == "earliest":
            await self.catalog.whole(topic)
            begin = self.catalog.start_offsets(topic)
            return {number: begin.get(number, 0) for number in self.catalog.records(topic)}
        self.catalog.check_whole(topic)
        ends = {number: one.end for number, one in (await self.positions.positions(topic)).items()}
        return ends if start == "latest" else await self.readables.find(topic, ends, start.timestamp_us)


def _check_start(segment: int, offset: int, start: int) -> None:
    """Raises BelowRetention where a client has not read what is gone: it must know that it has lost messages."""
    if offset < start:
        raise BelowRetention(
            f"retention has removed offset {offset} of segment {segment}, which begins at {start}",
            offset=offset,
            start_offset=start,
            segment=segment,
        )

"""A reader of a whole topic from some positions on, over all splits, merges and rolls.

A segment is read once all its predecessors were read to their ends, so that the messages of each key come in their
order (broker/subscriptions/frontier). The positions are all that a reader has: it can be made again from them,
at any broker.
"""

from collections.abc import Mapping

from seaweedq.broker.read.readable_segments import Readable, ReadableSegments
from seaweedq.broker.streams.positions import MAX_CHARACTERS, Positions, ancestors, descendants, resumed
from seaweedq.broker.subscriptions.frontier import Frontier
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.topics.tombstones import Tombstones
from seaweedq.errors import InvalidRequest, OffsetOutOfRange


class TopicReader:
    """One reader. `at` has the next offset of each segment that its positions name; `missing` says that some segment
    could not be read at the last look."""

    def __init__(
        self,
        catalog: Catalog,
        readables: ReadableSegments,
        tombstones: Tombstones,
        topic: Topic,
        at: Mapping[int, int],
    ) -> None:
        self.topic = topic
        self.at = dict(at)
        self.missing = False
        self._catalog = catalog
        self._readables = readables
        self._tombstones = tombstones
        self._turn = 0
        self._build()

    @property
    def positions(self) -> str:
        """The positions now, as text. Raises InvalidRequest where the topic has too many segments for one."""
        text = str(Positions(self.at, self.topic.record.incarnation))
        if len(text) > MAX_CHARACTERS:
            raise InvalidRequest(
                f"the topic has {len(self.at)} segments, whose positions take over {MAX_CHARACTERS} characters; "
                "read it with a subscription",
                value=len(self.at),
                bound=MAX_CHARACTERS,
            )
        return text

    async def due(self) -> list[Readable]:
        """Returns the segments that have messages to be read, as far as is known here, another one first each time.
        Raises OffsetOutOfRange, TopicBeingDeleted, NeedsNewerBroker, BelowRetention where retention has removed a
        segment that was not read to its end."""
        self._catalog.check(self.topic)
        await self._advance()
        found, missing = await self._readables.available(self.topic, tuple(self._frontier.open))
        self.missing = bool(missing)
        for segment in found:
            if segment.certain:
                check_end(segment.id, self._next(segment.id), segment.end)
        due = [segment for segment in found if self._next(segment.id) < segment.end]
        self._turn += 1
        first = self._turn % len(due) if due else 0
        return due[first:] + due[:first]

    def offset(self, segment: Readable) -> int:
        """Returns the offset of the next message of a segment that is due."""
        return self._next(segment.id)

    def advance_to(self, segment: Readable, offset: int) -> None:
        """Notes that everything below an offset was read."""
        self.at[segment.id] = offset

    async def check_ends(self) -> None:
        """Raises OffsetOutOfRange where a position is beyond its segment's end, as far as the owners answer."""
        found, _ = await self._readables.available(self.topic, tuple(self._frontier.open))
        known = {one.id for one in found if one.certain}
        if doubtful := [one.id for one in found if not one.certain and self._next(one.id) > one.end]:
            known |= await self._readables.refresh(self.topic, doubtful)
        for one in found:
            if one.id in known:
                check_end(one.id, self._next(one.id), one.end)

    def _next(self, number: int) -> int:
        return self.at.get(number, 0)

    def _build(self) -> None:
        """Makes the frontier from the positions and all records."""
        records = self._catalog.records(self.topic)
        self._unreadable = set(self._catalog.unreadable_of(self.topic))
        done = ancestors(records, self.at) - self.at.keys()
        self._frontier = Frontier(records, self._next, done, self._unreadable)
        self._name()

    async def _advance(self) -> None:
        """Goes on with the successors of segments that were read to their ends."""
        records = self._catalog.records(self.topic)
        if self._unreadable != self._catalog.unreadable_of(self.topic).keys():
            self._build()
        if not self._frontier.has_ended(records, self._next):
            return
        if self._frontier.advance(records, self._next):
            self._name()
        else:
            await self._catalog.reread(self.topic)
            await self._leave_removed()
            self._build()

    async def _leave_removed(self) -> None:
        """Goes on behind segments that retention has removed meanwhile."""
        records = self._catalog.records(self.topic)
        if self.at.keys() - records.keys() - self._catalog.unreadable_of(self.topic).keys():
            self.at = resumed(self.at, records, await self._tombstones.all(self.topic))

    def _name(self) -> None:
        """Names those segments of which the positions consist, and forgets all others."""
        frontier, records = self._frontier, self._catalog.records(self.topic)
        waiting = descendants(records, frontier.open) | frontier.hidden
        before = {
            number
            for number in frontier.done & records.keys()
            if not records[number].record.successors or waiting.intersection(records[number].record.successors)
        }
        self.at = {number: self._next(number) for number in frontier.open} | {
            number: records[number].record.end_offset or 0 for number in before
        }
        frontier.done &= before | self._unreadable


def check_end(segment: int, offset: int, end: int | None) -> None:
    """Raises OffsetOutOfRange where an offset is beyond the end of its segment, if that is known."""
    if end is not None and offset > end:
        raise OffsetOutOfRange(
            f"offset {offset} is beyond the end of segment {segment}, which is {end}", offset=offset, end_offset=end
        )

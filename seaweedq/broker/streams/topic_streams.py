"""Readers of whole topics: from the first message, the end, a time, or positions on, over all splits, merges and rolls.

A segment is read once all its predecessors were read to their ends, so that the messages of each key come in their
order (broker/subscriptions/frontier). A reader consists of its positions: it can be made again from them, at any
broker. Its client keeps them as a text:

`{incarnation}:{segment}-{offset},...`: the offset of the next message in each segment that is read now, and in each one
that was read to its end while some of its successors wait for other predecessors. So the named segments cover all keys,
their ancestors were read to their ends, and their descendants are to come. The incarnation tells a topic from earlier
ones of the same name; positions that a person writes may go without.

Readers that wait for messages are woken by one task a topic. The topic's own signal comes for much else, acks among it;
the task listens to it for all readers, looks at the ends of the open segments, those of other brokers too, and wakes
the readers once one has risen or a segment's record has changed. It ends with the last reader.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

from seaweedq.broker.read.positions import TopicPositions
from seaweedq.broker.read.readable_segments import Readable, ReadableSegments
from seaweedq.broker.subscriptions.frontier import Frontier
from seaweedq.broker.topics.catalog import Catalog, Topic, check_at_end
from seaweedq.broker.topics.segment_index import Records
from seaweedq.concurrency.futures import Signal
from seaweedq.coordination.records import TombstoneRecord
from seaweedq.errors import BelowRetention, InvalidPositions, InvalidRequest, OffsetOutOfRange, SeaweedqError
from seaweedq.segments.keyrange import KeyRange, missing_ranges

LOOK_S = 5.0  # below LINGER_S of readable_segments: its long polls must not end
FAILED_S = 0.2
logger = logging.getLogger(__name__)
MAX_CHARACTERS = 48 * 1024  # a client sends them back in a header, or in the query of a URL
SHOWN = 100
_NUMBER = "(?:0|[1-9][0-9]{0,17})"
_TEXT = re.compile(rf"(?:(?P<incarnation>{_NUMBER}):)?(?P<segments>{_NUMBER}-{_NUMBER}(?:,{_NUMBER}-{_NUMBER})*)")


@dataclass(eq=False)
class TailWatch:
    """The readers of one topic; `signal` wakes them."""

    topic: Topic
    signal: Signal = field(default_factory=Signal)
    readers: int = 0
    task: asyncio.Task[None] | None = None

    async def wait(self, seen: int, timeout_s: float) -> None:
        """Returns once the signal's count is no longer `seen`, or after `timeout_s`."""
        if self.signal.count == seen:
            await self.signal.wait(timeout_s)


class TailWatches:
    """The watches of one broker, by topic. `ended` is set once all streams have to end, since the broker leaves."""

    def __init__(self, catalog: Catalog, readables: ReadableSegments) -> None:
        self.ended = asyncio.Event()
        self._catalog = catalog
        self._readables = readables
        self._watches: dict[Topic, TailWatch] = {}

    def __len__(self) -> int:
        return sum(watch.readers for watch in self._watches.values())

    def end(self) -> None:
        """Ends all streams, also those that come later."""
        self.ended.set()
        for watch in self._watches.values():
            watch.signal.wake()

    @contextmanager
    def following(self, topic: Topic) -> Iterator[TailWatch]:
        """Gives a reader its watch for as long as the block runs."""
        watch = self._watches.get(topic)
        if watch is None:
            watch = self._watches[topic] = TailWatch(topic)
            watch.task = asyncio.create_task(self._follow(watch), name=f"tail watch of {topic.name}")
        watch.readers += 1
        try:
            yield watch
        finally:
            watch.readers -= 1
            if not watch.readers:
                del self._watches[topic]
                if watch.task:
                    watch.task.cancel()

    async def _follow(self, watch: TailWatch) -> None:
        topic, known = watch.topic, None
        while True:
            seen, pause_s = topic.signal.count, LOOK_S
            try:
                self._catalog.check(topic)
                records = self._readables.records(topic)
                numbers = [number for number, one in records.items() if one.record.state == "open"]
                found, _ = await self._readables.available(topic, numbers)
                now = topic.moved.count, {segment.id: segment.end for segment in found}
            except SeaweedqError:
                now, pause_s = None, FAILED_S  # its readers find the reason themselves
            except Exception:
                logger.exception("the end offsets of topic %s could not be read; trying again", topic.name)
                now, pause_s = None, LOOK_S
            if now != known or now is None:
                known = now
                watch.signal.wake()
            if topic.signal.count == seen:
                await topic.signal.wait(pause_s)
            else:
                await asyncio.sleep(0)


@dataclass(frozen=True, slots=True)
class Positions:
    """The next offset of each named segment; `incarnation` is that of the topic, if it is known."""

    offsets: Mapping[int, int]
    incarnation: int | None = None

    @staticmethod
    def parse(text: str) -> "Positions":
        """Returns the positions in a text. Raises InvalidPositions."""
        found = _TEXT.fullmatch(text) if len(text) <= MAX_CHARACTERS else None
        if found is None:
            raise InvalidPositions(
                f"{text[:SHOWN]!r} is not a valid list of positions; list SEGMENT-OFFSET for each segment, with the "
                "segment's next offset, such as 0-17,1-5",
                value=text[:SHOWN],
            )
        pairs = [one.split("-") for one in found["segments"].split(",")]
        offsets = {int(segment): int(offset) for segment, offset in pairs}
        if len(offsets) < len(pairs):
            raise InvalidPositions(f"{text[:SHOWN]!r} lists a segment twice", value=text[:SHOWN])
        return Positions(offsets, int(found["incarnation"]) if found["incarnation"] else None)

    def __str__(self) -> str:
        named = ",".join(f"{segment}-{offset}" for segment, offset in sorted(self.offsets.items()))
        return named if self.incarnation is None else f"{self.incarnation}:{named}"

    def check(self, incarnation: int, records: Records) -> None:
        """Raises InvalidPositions if they are not of this topic, or leave out some of its keys."""
        if self.incarnation not in (None, incarnation):
            raise InvalidPositions(
                "the positions belong to a deleted topic that had the same name", value=str(self)[:SHOWN]
            )
        if unknown := sorted(self.offsets.keys() - records.keys()):
            raise InvalidPositions(f"the topic has no segment {unknown[0]}", value=str(self)[:SHOWN])
        covered = [KeyRange(records[n].record.low, records[n].record.high) for n in self.offsets]
        if missing_ranges(covered):
            raise InvalidPositions(
                f"{str(self)[:SHOWN]!r} omits some segments; give a position for each segment, or for "
                "the segments that replaced it",
                value=str(self)[:SHOWN],
            )


def resumed(at: Mapping[int, int], records: Records, tombstones: Mapping[int, TombstoneRecord]) -> dict[int, int]:
    """Returns positions without the segments that retention has removed: their successors take their places, each from
    0, unless the positions are behind those already. Raises BelowRetention if a removed one was not read to its end,
    OffsetOutOfRange beyond it."""
    left = dict(at)
    while gone := sorted(left.keys() & tombstones.keys() - records.keys()):
        number = gone[0]
        check_at_end(number, tombstones[number].end_offset, left.pop(number))
        passed = left.keys() | _reached(left, lambda n: _predecessors(records, tombstones, n))
        left |= dict.fromkeys(set(tombstones[number].successors) - passed, 0)
    return left


def _predecessors(records: Records, tombstones: Mapping[int, TombstoneRecord], number: int) -> tuple[int, ...]:
    if number in records:
        return records[number].record.predecessors
    return tombstones[number].predecessors if number in tombstones else ()


def ancestors(records: Records, numbers: Iterable[int]) -> set[int]:
    """Returns all predecessors of some segments, and theirs, as far as they are known; those that are among them only
    if they precede another one."""
    return _reached(numbers, lambda n: records[n].record.predecessors if n in records else ())


def descendants(records: Records, numbers: Iterable[int]) -> set[int]:
    """Returns all successors of some segments, and theirs, as far as they are known."""
    return _reached(numbers, lambda n: records[n].record.successors if n in records else ())


def _reached(numbers: Iterable[int], neighbours: Callable[[int], Collection[int]]) -> set[int]:
    found: set[int] = set()
    left = list(numbers)
    while left:
        for number in neighbours(left.pop()):
            if number not in found:
                found.add(number)
                left.append(number)
    return found


class TopicReader:
    """One reader. `at` has the next offset of each segment that its positions name; `missing` says that some segment
    could not be read at the last look."""

    def __init__(
        self,
        catalog: Catalog,
        readables: ReadableSegments,
        topic: Topic,
        at: Mapping[int, int],
    ) -> None:
        self.topic = topic
        self.at = dict(at)
        self.missing = False
        self._catalog = catalog
        self._readables = readables
        self._turn = 0
        self._build()

    @property
    def positions(self) -> str:
        """The positions now, as text. Raises InvalidRequest if the topic has too many segments for one."""
        text = str(Positions(self.at, self.topic.record.incarnation))
        if len(text) > MAX_CHARACTERS:
            raise InvalidRequest(
                f"the positions of the topic's {len(self.at)} segments need more than "
                f"{MAX_CHARACTERS} characters, so a stream cannot resume from them; use a "
                "subscription instead",
                value=len(self.at),
                bound=MAX_CHARACTERS,
            )
        return text

    async def due(self) -> list[Readable]:
        """Returns the segments that have messages to be read, as far as is known here, another one first each time.
        Raises OffsetOutOfRange, TopicBeingDeleted, NeedsNewerBroker, BelowRetention if retention has removed a
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
        """Raises OffsetOutOfRange if a position is beyond its segment's end, as far as the owners answer; Unavailable
        if this broker's lease has ended, since others may have appended behind an end by now."""
        found, _ = await self._readables.available(self.topic, tuple(self._frontier.open))
        known = {one.id for one in found if one.certain}
        if doubtful := [one.id for one in found if not one.certain and self._next(one.id) > one.end]:
            known |= await self._readables.refresh(self.topic, doubtful)
        for one in found:
            if one.id in known and self._next(one.id) > one.end:
                await self._readables.check_lives()
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
            await self._catalog.reload_segments(self.topic)
            records = self._catalog.records(self.topic)
            if self.at.keys() - records.keys() - self._catalog.unreadable_of(self.topic).keys():
                self.at = resumed(
                    self.at, records, await self._catalog.tombstones(self.topic)
                )  # behind removed segments
            self._build()

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
    """Raises OffsetOutOfRange if an offset is beyond the end of its segment, if that is known."""
    if end is not None and offset > end:
        raise OffsetOutOfRange(
            f"offset {offset} is beyond the end of segment {segment}, which ends at offset {end}",
            offset=offset,
            end_offset=end,
        )


@dataclass(frozen=True, slots=True)
class StartTime:
    """The first message whose timestamp reaches this, and all after it."""

    timestamp_us: int


Start = Literal["earliest", "latest"] | StartTime | Positions


@dataclass(frozen=True)
class TopicStreams:
    """The readers of this broker, and the watches that wake them."""

    catalog: Catalog
    readables: ReadableSegments
    positions: TopicPositions
    watches: TailWatches

    async def open(self, topic: Topic, start: Start) -> TopicReader:
        """Returns a reader. Raises InvalidPositions, OffsetOutOfRange, BelowRetention, and Unavailable if an end
        must be known and its owner does not answer."""
        if isinstance(start, Positions):
            return await self._resume(topic, start)
        return self._reader(topic, await self._starts(topic, start))

    async def _resume(self, topic: Topic, start: Positions) -> TopicReader:
        """Needs no owner's answer: a client that comes back after the death of an owner must not be sent away."""
        if start.offsets.keys() - self.catalog.records(topic).keys():
            await self.catalog.reload_segments(topic)
        if start.offsets.keys() - self.catalog.records(topic).keys():
            tombstones = await self.catalog.tombstones(topic)
            start = replace(start, offsets=resumed(start.offsets, self.catalog.records(topic), tombstones))
        self.catalog.check(topic)
        records, begin = self.catalog.records(topic), self.catalog.start_offsets(topic)
        start.check(topic.record.incarnation, records)
        for segment, offset in start.offsets.items():
            check_end(segment, offset, records[segment].record.end_offset)
            if offset < (first := begin.get(segment, 0)):  # the client must know that it has lost messages
                raise BelowRetention(
                    f"retention has removed offset {offset} of segment {segment}, which now begins at offset {first}",
                    offset=offset,
                    start_offset=first,
                    segment=segment,
                )
        reader = self._reader(topic, start.offsets)
        await reader.check_ends()
        return reader

    def _reader(self, topic: Topic, at: Mapping[int, int]) -> TopicReader:
        return TopicReader(self.catalog, self.readables, topic, at)

    async def _starts(self, topic: Topic, start: Literal["earliest", "latest"] | StartTime) -> dict[int, int]:
        """Returns the first offset of each segment of now; of later ones it is 0."""
        if start == "earliest":
            await self.catalog.load_topic(topic)
            begin = self.catalog.start_offsets(topic)
            return {number: begin.get(number, 0) for number in self.catalog.records(topic)}
        self.catalog.check_whole(topic)
        ends = {number: one.end for number, one in (await self.positions.positions(topic)).items()}
        return ends if start == "latest" else await self.readables.find(topic, ends, start.timestamp_us)

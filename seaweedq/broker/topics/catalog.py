"""This broker's view of the topics: records of coordination, kept current by watches, and the segments it has open.

A topic whose record cannot be read (coordination/versioned) is unknown to all work of this broker: it answers 503, and
its open segments stay as they were until the record can be read again. A segment whose record cannot be read has a
place in the key space that nobody here knows: the ranges that no readable segment has are gaps, which take nothing.

Every transaction that writes records of topics or segments goes through `commit`, which takes it into the view at once,
so that its writer sees it.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import UNSET

from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.broker.topics.invariants import check_writes
from seaweedq.broker.topics.segment_index import (
    GAP,
    NO_RECORDS,
    NO_STARTS,
    Records,
    Routing,
    SegmentIndex,
    StartOffsets,
    start_name,
)
from seaweedq.concurrency.futures import Signal, gather_bounded
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Change, Compare, Coordination, Delete, Entry, Put, read_all
from seaweedq.coordination.records import SegmentRecord, TombstoneRecord, TopicRecord
from seaweedq.coordination.versioned import Unreadable, Versioned
from seaweedq.coordination.view import View
from seaweedq.errors import (
    BelowRetention,
    NotOwner,
    NotReady,
    OffsetOutOfRange,
    SegmentNotFound,
    TopicBeingDeleted,
    TopicNotFound,
)
from seaweedq.segments.entry import EntryName
from seaweedq.segments.keyrange import KEY_SPACE, KeyRange, missing_ranges, tiles_key_space
from seaweedq.segments.layout import Format, Layout
from seaweedq.segments.schema import decode_fields, parse_schema
from seaweedq.segments.terms import FIRST_GENERATION

PREFIXES = ("topics/", "segments/", "starts/")
IN_A_PAGE = 40  # records that cost as much as one that is read alone
READS = 16
KEPT = 50  # layouts of a topic, of up to half a MB each
_NONE_UNREADABLE: Mapping[int, Unreadable] = {}
SHOWN = 5  # segments that an error names
REREADS = 3  # of many segments, which come in pages, some may change in between


@dataclass(eq=False)
class Topic:
    """A topic's record as it was `held` last, and what this broker has open of the topic. `routing` is made when first
    needed. `place` is the name and the incarnation, under which the records of segments are indexed. `layout` is that
    of the newest version of the schema, `layouts` has the last ones that were needed here, by their ids."""

    name: str
    held: Versioned[TopicRecord]
    layout: Layout
    layouts: dict[int, Layout] = field(default_factory=dict)
    signal: Signal = field(default_factory=Signal)
    opened: dict[int, OpenSegment] = field(default_factory=dict)
    deleting: asyncio.Lock = field(default_factory=asyncio.Lock)
    routing: Routing | None = None
    moved: Signal = field(default_factory=Signal)  # a segment's record has changed
    risen: int = 0  # how often a start offset has risen
    removed: set[int] = field(default_factory=set)  # segments that retention removed, as far as this broker met them
    place: str = field(init=False)
    record: TopicRecord = field(init=False)
    revision: int = field(init=False)

    def __post_init__(self) -> None:
        self.place = f"{self.name}/{self.held.record.incarnation}"
        self.update(self.held)

    def update(self, held: Versioned[TopicRecord]) -> None:
        """Replaces the record by a newer one of the same incarnation. Open segments go on with its schema."""
        if self.held.record.config.columns != held.record.config.columns:
            self.layout = layout_of(held.record)
            for opened in self.opened.values():
                opened.layout = self.layout
        self.keep(self.layout)
        self.held, self.record, self.revision = held, held.record, held.revision

    def keep(self, layout: Layout) -> None:
        """Notes the layout of a version, and forgets the one that was noted first beside KEPT others."""
        self.layouts.pop(layout.schema_id, None)
        self.layouts[layout.schema_id] = layout
        if len(self.layouts) > KEPT:
            del self.layouts[next(iter(self.layouts))]

    def add_opened(self, segment: OpenSegment) -> None:
        """Takes in a segment that was opened; a version may have begun meanwhile."""
        segment.layout = self.layout
        self.opened[segment.id] = segment

    def regroup(self, segment: int, now: Versioned[SegmentRecord] | None) -> None:
        """Reacts to a changed segment record: discards the routing, and closes a segment that has another owner, or
        has had one since it was opened."""
        self.routing = None
        opened = self.opened.get(segment)
        if opened and now and (now.record.owner, now.record.term) != (opened.owner, opened.source.term):
            del self.opened[segment]
            fate = f"is owned by {now.record.owner}" if now.record.owner else "is sealed"
            opened.close(NotOwner(f"segment {segment} of {self.name!r} {fate}", owner=now.record.owner))
        self.moved.wake()
        self.signal.wake()

    def remove(self, segment: int) -> None:
        """Notes that retention has removed a sealed segment."""
        self.removed.add(segment)
        if opened := self.opened.pop(segment, None):
            opened.close(NotOwner(f"retention has removed segment {segment} of topic {self.name!r}"))

    @staticmethod
    def from_record(name: str, held: Versioned[TopicRecord]) -> "Topic":
        """Returns a topic without open segments."""
        return Topic(name, held, layout_of(held.record))


def layout_of(record: TopicRecord) -> Layout:
    """Returns the record layout of a topic."""
    fields = decode_fields(record.config.columns) if record.config.columns else None
    return Layout.from_format(Format(record.config.format), fields)


class Catalog:
    """Topics and their segments."""

    def __init__(self, coordination: Coordination, closed: Callable[[Topic], None]) -> None:
        self._coordination = coordination
        self._closed = closed  # told of a topic that is gone or being deleted
        self.generation = FIRST_GENERATION  # of the cluster, as this broker has joined it
        self._topics: dict[str, Topic] = {}
        self._segments = index = SegmentIndex()
        self.owners, self.owned_by = index.owners, index.owned_by
        self.locked, self.promised, self.locking = index.locked, index.promised, index.locking
        self._unreadable_topics: dict[str, Unreadable] = {}
        self._doomed: set[str] = set()
        self.limited: dict[str, Topic] = {}  # those that have limits
        self.pending: dict[str, Topic] = {}  # those whose schema has a version that does not count yet
        self.starts = StartOffsets(self._raise_start)
        self._view = View(coordination, PREFIXES, self._apply)
        self.load = self._view.load
        self.follow = self._view.follow

    def names(self) -> list[str]:
        """Returns the names of all topics that can be read, also of those being deleted, sorted."""
        return sorted(self._topics.keys() - self._unreadable_topics.keys())

    def unreadable_names(self) -> list[str]:
        """Returns the names of the topics whose records cannot be read, sorted."""
        return sorted(self._unreadable_topics)

    def counts(self) -> tuple[int, int]:
        """Returns the numbers of topics, and of segments, in any state, also of topics that are not known yet."""
        return len(self._topics), len(self._segments)

    def created_by(self, creator: str) -> list[Topic]:
        """Returns the topics, in any state, whose records name this creator."""
        return [topic for topic in self._topics.values() if topic.record.creator == creator]

    def get(self, name: str) -> Topic | None:
        """Returns the topic, in any state, or None if there is none, or its record cannot be read."""
        return None if name in self._unreadable_topics else self._topics.get(name)

    def check_readable(self, name: str) -> None:
        """Raises NeedsNewerBroker if the topic's record cannot be read."""
        if name in self._unreadable_topics:
            raise self._unreadable_topics[name].error()

    def topic(self, name: str) -> Topic:
        """Returns an active topic. Raises TopicNotFound, TopicBeingDeleted, NeedsNewerBroker."""
        if name in self._unreadable_topics:
            raise self._unreadable_topics[name].error()
        topic = self._topics.get(name)
        if topic is None:
            raise TopicNotFound(f"topic {name!r} does not exist", topic=name)
        if topic.record.state == "deleting":
            raise TopicBeingDeleted(f"topic {name!r} is being deleted", topic=name)
        return topic

    def check(self, topic: Topic) -> None:
        """Raises TopicBeingDeleted unless this very topic still exists, and is active; NeedsNewerBroker if that
        cannot be read any more."""
        if topic.name in self._unreadable_topics:
            raise self._unreadable_topics[topic.name].error()
        if self._topics.get(topic.name) is not topic or topic.record.state == "deleting":
            raise TopicBeingDeleted(f"topic {topic.name!r} is being deleted", topic=topic.name)

    def segments(self, topic: Topic) -> dict[int, SegmentRecord]:
        """Returns the topic's segments by id."""
        known = self.records(topic)
        return {segment: known[segment].record for segment in sorted(known)}

    def records(self, topic: Topic) -> Records:
        """Returns the topic's segments by id, each with its revision."""
        return self._segments.records.get(topic.place, NO_RECORDS)

    def is_open(self, topic: Topic, segment: int) -> bool:
        """Returns whether a segment is known, and takes messages."""
        known = self.records(topic).get(segment)
        return known is not None and known.record.state == "open"

    def unreadable_of(self, topic: Topic) -> Mapping[int, Unreadable]:
        """Returns the segments of a topic whose records cannot be read, by id."""
        return self._segments.unreadable.get(topic.place, _NONE_UNREADABLE)

    def has_unreadable(self, name: str, incarnation: int) -> bool:
        """Tells whether a topic, which need not be known, has segments whose records cannot be read."""
        return f"{name}/{incarnation}" in self._segments.unreadable

    def is_readable(self, name: str) -> bool:
        """Tells whether the topic, and all of its segments, have records that can be read, or none."""
        return name not in self._unreadable_topics and self._segments.is_readable(name)

    def check_whole(self, topic: Topic) -> None:
        """Raises NeedsNewerBroker if a segment of the topic cannot be read: then its segments are not replaced, and
        no decision concerns all segments."""
        for found in self.unreadable_of(topic).values():
            raise found.error()

    def being_deleted(self) -> list[Topic]:
        """Returns the topics that are being deleted."""
        return [self._topics[name] for name in sorted(self._doomed) if name not in self._unreadable_topics]

    async def require(self, name: str) -> Topic:
        """Returns an active topic as `topic` does, but reads the record of an unknown one: another broker may just have
        created it."""
        topic = self._topics.get(name)
        if topic is None or topic.record.state == "deleting":
            await self._view.refresh(keys.TOPICS.key(name))
        elif name not in self._unreadable_topics:
            return topic
        return self.topic(name)

    async def layout(self, topic: Topic, schema_id: int) -> Layout:
        """Returns the layout of a version of a topic's schema, which is read unless it was needed before. Raises
        NotReady for one that no broker may have rows of yet, as far as is known here."""
        if schema_id > topic.layout.schema_id:
            await self.refresh(topic.name)
        known = topic.layout if schema_id == topic.layout.schema_id else topic.layouts.get(schema_id)
        if known is None and schema_id < topic.layout.schema_id:
            key = keys.SCHEMAS.key(topic.name, topic.record.incarnation, schema_id)
            if there := await self._coordination.get(key):
                fields = parse_schema(keys.SCHEMAS.require(there).record.schema)
                known = Layout.from_format(topic.layout.format, fields)
                topic.keep(known)
        if known is None:
            raise NotReady(
                f"this broker does not know version {schema_id} of the schema of topic {topic.name!r} yet; try again"
            )
        return known

    async def reload_segments(self, topic: Topic) -> None:
        """Reads the records of a topic's segments again."""
        await self._view.reread(keys.SEGMENTS.prefix(topic.name, topic.record.incarnation))

    async def load_topic(self, topic: Topic) -> None:
        """Ensures that all segments of a topic are known: the watch of topics may be ahead of that of segments. If
        some cannot be read, all others are known. Raises NotReady, TopicBeingDeleted."""
        for _ in range(REREADS):
            if self._is_whole(topic):
                self.check(topic)
                return
            await self.reload_segments(topic)
        self.check(topic)
        if not self._is_whole(topic):
            raise NotReady(f"this broker does not know all open segments of topic {topic.name!r} yet; try again")

    def _is_whole(self, topic: Topic) -> bool:
        known = self.records(topic).values()
        ranges = [KeyRange(one.low, one.high) for held in known if (one := held.record).state == "open"]
        if not self.unreadable_of(topic):
            return tiles_key_space(ranges)
        return sum(map(len, [*ranges, *missing_ranges(ranges)])) == KEY_SPACE  # gaps, and no overlaps

    async def load_predecessors(self, topic: Topic) -> None:
        """Reads the topic's records again if a known segment has an unknown predecessor: the watch may be behind the
        look-ups of single segments. Retention has removed one that is unknown even then, since its record is
        older than that of the known one."""
        if unknown := self._unknown_predecessors(topic):
            await self.reload_segments(topic)
            topic.removed |= unknown & self._unknown_predecessors(topic)

    def _unknown_predecessors(self, topic: Topic) -> set[int]:
        records, unreadable = self.records(topic), self.unreadable_of(topic)
        named = {before for known in records.values() for before in known.record.predecessors if before not in records}
        return named - topic.removed - unreadable.keys()

    def segment(self, topic: Topic, segment: int) -> Versioned[SegmentRecord]:
        """Returns a segment's record and its revision. Raises SegmentNotFound, NeedsNewerBroker."""
        known = self.records(topic)
        if segment not in known:
            if segment == GAP or segment in self.unreadable_of(topic):
                self.check_whole(topic)
            raise _no_segment(topic, segment, self.records(topic))
        return known[segment]

    def start(self, topic: Topic, segment: int) -> EntryName:
        """Returns the first entry of a segment that counts: retention has removed those before it. Raises
        NeedsNewerBroker."""
        return self.starts.start(topic.name, topic.record.incarnation, segment)

    def is_emptied(self, topic: Topic, segment: int) -> bool:
        """Tells whether retention has taken all entries of a sealed segment, as far as is known here."""
        return self.starts.is_emptied(topic.name, topic.record.incarnation, segment)

    def is_gone(self, topic: Topic, segment: int) -> bool:
        """Tells whether retention has taken all of a sealed segment, or removed it, too: it has no record then."""
        has_record = segment in self.records(topic) or segment in self.unreadable_of(topic)
        return self.is_emptied(topic, segment) or not has_record

    def start_offsets(self, topic: Topic) -> dict[int, int]:
        """Returns the start offsets of the segments that do not begin at 0."""
        known = self.starts.by_place.get(topic.place, NO_STARTS)
        return {segment: known[segment].record.offset for segment in sorted(known)}

    def start_names(self, topic: Topic) -> dict[int, EntryName]:
        """Returns the first entries that count, of the segments of which retention has taken any."""
        known = self.starts.by_place.get(topic.place, NO_STARTS)
        return {segment: start_name(known[segment].record) for segment in sorted(known)}

    async def require_segment(self, topic: Topic, segment: int) -> SegmentRecord:
        """Returns a segment's record, read again if it is not known: another broker may just have made the segment.
        Raises SegmentNotFound."""
        if segment not in self.records(topic):
            await self.refresh(topic.name, segment)
        return self.segment(topic, segment).record

    async def tombstone(self, topic: Topic, segment: int) -> TombstoneRecord:
        """Returns the tombstone of a segment that retention has removed (broker/retention/segment_removal), which is
        read from coordination. Raises SegmentNotFound if there is none, NeedsNewerBroker."""
        if segment < keys.ID_BOUND:
            there = await self._coordination.get(keys.TOMBSTONES.key(topic.name, topic.record.incarnation, segment))
            if there:
                return keys.TOMBSTONES.require(there).record
        raise _no_segment(topic, segment, self.records(topic))

    async def tombstones(self, topic: Topic) -> dict[int, TombstoneRecord]:
        """Returns the tombstones of a topic by segment, apart from those that cannot be read. They are no part of the
        view, since only readers that were away for long need them: each call costs a request to coordination."""
        entries, _ = await read_all(self._coordination, keys.TOMBSTONES.prefix(topic.name, topic.record.incarnation))
        found = {int(keys.TOMBSTONES.parse(entry.key)[2]): keys.TOMBSTONES.read(entry) for entry in entries}
        return {number: held.record for number, held in found.items() if isinstance(held, Versioned)}

    async def delivered(self, topic: Topic) -> dict[int, int]:
        """Returns the highest offset of each segment to which a cursor was delivered; cursors that cannot be read are
        left out. Raises CoordinationUnavailable."""
        found: dict[int, int] = {}
        entries, _ = await read_all(self._coordination, keys.CURSORS.prefix(topic.name, topic.record.incarnation))
        for entry in entries:
            number, held = int(keys.CURSORS.parse(entry.key)[3]), keys.CURSORS.read(entry)
            if isinstance(held, Versioned):
                found[number] = max(found.get(number, 0), held.record.delivered_to)
        return found

    def end_of(self, topic: Topic, segment: int) -> int | None:
        """Returns where a segment that is sealed ends, None if that is not known."""
        known = self.records(topic).get(segment)
        return known.record.end_offset if known else None

    def apply(self, changes: Sequence[Change]) -> None:
        """Applies changes, unless a newer one of the same key is known."""
        self._view.take(changes)

    async def commit(
        self, compares: Sequence[Compare], writes: Sequence[Put | Delete], proven: int | None = None
    ) -> int | None:
        """Commits a transaction, and applies its writes of topics and segments to this view. Returns the new revision,
        None if a comparison did not hold. A seal has `proven` that the intent with that id was committed.

        Raises InvariantViolated if it would break an invariant: then nothing is written. Raises
        CoordinationUnavailable: then it may have been applied, and comes by the watch.
        """
        check_writes(compares, writes, self._topic_of, self._segments.records_of, proven)
        revision = await self._coordination.commit(compares, writes)
        if revision:
            known = [write for write in writes if write.key.startswith(PREFIXES)]
            self.apply([Change(w.key, w.value if isinstance(w, Put) else None, revision) for w in known])
        return revision

    def _topic_of(self, name: str) -> Versioned[TopicRecord] | None:
        topic = self._topics.get(name)
        return topic.held if topic else None

    async def refresh_segments(self, topic: Topic, segments: Iterable[int]) -> None:
        """Reads the records of some segments again, one after another."""
        for segment in segments:
            await self.refresh(topic.name, segment)

    async def refresh(self, name: str, segment: int | None = None) -> None:
        """Reads a topic's record again, or that of one of its segments, since the watch may be behind."""
        topic = self._topics.get(name)
        if segment is None or topic is None:
            await self._view.refresh(keys.TOPICS.key(name))
        topic = self._topics.get(name)
        if segment is not None and segment < keys.ID_BOUND and topic is not None:
            await self._view.refresh(keys.SEGMENTS.key(name, topic.record.incarnation, segment))

    async def reload(self, name: str, segments: Collection[int]) -> None:
        """Reads the record of a topic again, and the records and starts of some of its segments: all if they are so
        many that pages take fewer requests."""
        await self._view.refresh(keys.TOPICS.key(name))
        if (topic := self._topics.get(name)) is None:
            return
        place = (name, topic.record.incarnation)
        kinds = (keys.SEGMENTS, keys.STARTS)
        if IN_A_PAGE * len(segments) >= len(self.records(topic)):
            await asyncio.gather(*(self._view.reread(kind.prefix(*place)) for kind in kinds))
        else:
            paths = [kind.key(*place, segment) for segment in segments for kind in kinds]
            await gather_bounded(READS, self._view.refresh, paths)

    def _apply(self, change: Change) -> None:
        if keys.TOPICS.matches(change.key):
            self._apply_topic(change)
        elif keys.SEGMENTS.matches(change.key):
            self._apply_segment(change)
        elif keys.STARTS.matches(change.key):
            self.starts.apply(change)

    def _apply_topic(self, change: Change) -> None:
        (name,) = keys.TOPICS.parse(change.key)
        before = self._topics.get(name)
        self._doomed.discard(name)
        self.limited.pop(name, None)
        self.pending.pop(name, None)
        self._unreadable_topics.pop(name, None)
        if change.value is None:
            self._topics.pop(name, None)
            if before:
                self._closed(before)
            return
        held = keys.TOPICS.read(Entry(change.key, change.value, change.revision))
        if isinstance(held, Unreadable):
            self._unreadable_topics[name] = held
            if before:  # those who wait for it are told that it cannot be read any more
                before.routing = None
                before.moved.wake()
                before.signal.wake()
            return
        record = held.record
        if record.state == "deleting":
            self._doomed.add(name)
        if before is None or before.record.incarnation != record.incarnation:
            if before:
                self._closed(before)
            self._topics[name] = Topic.from_record(name, held)
        else:
            before.update(held)
        if record.config.limits:
            self.limited[name] = self._topics[name]
        if record.pending is not UNSET and record.state == "active":
            self.pending[name] = self._topics[name]
        if before is None or self._topics[name] is not before:
            return
        if record.state == "deleting":
            self._closed(before)

    def _apply_segment(self, change: Change) -> None:
        name, incarnation, segment = keys.SEGMENTS.parse(change.key)
        before = self._segments.records_of(name, incarnation).get(segment)
        self._segments.apply(change)
        if (topic := self._topics.get(name)) and topic.record.incarnation == incarnation:
            if change.value is None and before and before.record.state == "sealed":
                topic.remove(segment)
            topic.regroup(segment, self._segments.records_of(name, incarnation).get(segment))

    def _raise_start(self, name: str, incarnation: int, segment: int, start: EntryName) -> None:
        topic = self._topics.get(name)
        if topic is None or topic.record.incarnation != incarnation:
            return
        topic.risen += 1
        if opened := topic.opened.get(segment):
            opened.chain.raise_start(start)


def _no_segment(topic: Topic, segment: int, known: Collection[int]) -> SegmentNotFound:
    some = ", ".join(map(str, sorted(known)[-SHOWN:]))
    its = f"; its newest segments are {some}" if len(known) > SHOWN else f"; it has {some}" if known else ""
    return SegmentNotFound(f"topic {topic.name!r} has no segment {segment}{its}", topic=topic.name, segment=segment)


def check_at_end(segment: int, end: int, offset: int) -> None:
    """Raises unless an offset is the end of a segment that retention has removed: BelowRetention below it, since a
    reader must know that it has lost messages, OffsetOutOfRange beyond it."""
    if offset < end:
        raise BelowRetention(
            f"retention has removed offset {offset} of segment {segment}, and all later offsets "
            f"of the segment up to its end, {end}",
            offset=offset,
            start_offset=end,
            segment=segment,
        )
    if offset > end:
        raise OffsetOutOfRange(
            f"offset {offset} is beyond the end of segment {segment}, which ends at offset {end}",
            offset=offset,
            end_offset=end,
        )

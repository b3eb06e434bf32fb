"""This broker's view of the topics: records of coordination, kept current by watches, and the segments it has open.

Own changes are applied at once (`apply`), so that whoever made them sees them.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from seaweedq.broker.open_segment import OpenSegment
from seaweedq.broker.signal import Signal
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Change, Coordination
from seaweedq.coordination.records import SegmentRecord, TopicRecord
from seaweedq.coordination.view import View
from seaweedq.errors import NotOwner, SegmentNotFound, TopicBeingDeleted, TopicNotFound
from seaweedq.segments.layout import Format, Layout
from seaweedq.segments.schema import decode_fields

PREFIXES = ("topics/", "segments/")


@dataclass(frozen=True, slots=True)
class Routing:
    """A topic's open segments by their sorted lower ends `bounds`; `opened` has None where another broker owns one."""

    ids: list[int]
    bounds: np.ndarray
    opened: list[OpenSegment | None]


@dataclass(eq=False)
class Topic:
    """A topic as of some revision, and what this broker has open of it. `routing` is made when first needed."""

    name: str
    record: TopicRecord
    revision: int
    layout: Layout
    signal: Signal = field(default_factory=Signal)
    opened: dict[int, OpenSegment] = field(default_factory=dict)
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    deleting: asyncio.Lock = field(default_factory=asyncio.Lock)
    leaving: set[int] = field(default_factory=set)  # segments on their way to another broker
    routing: Routing | None = None
    moved: Signal = field(default_factory=Signal)  # a segment's record has changed

    def regroup(self, segment: int, now: tuple[SegmentRecord, int] | None) -> None:
        """A segment's record has changed: routes are looked up anew, and one that another broker has is let go."""
        self.routing = None
        opened = self.opened.get(segment)
        if opened and now and now[0].owner != opened.owner:
            del self.opened[segment]
            opened.close(NotOwner(f"segment {segment} of {self.name!r} belongs to {now[0].owner}", owner=now[0].owner))
        self.moved.wake()
        self.signal.wake()

    @staticmethod
    def of(name: str, record: TopicRecord, revision: int) -> "Topic":
        """A topic with nothing open."""
        return Topic(name, record, revision, layout_of(record))


def layout_of(record: TopicRecord) -> Layout:
    """The record layout of a topic."""
    fields = decode_fields(record.config.columns) if record.config.columns else None
    return Layout.of(Format(record.config.format), fields)


class Catalog:
    """Topics and their segments."""

    def __init__(self, coordination: Coordination, closed: Callable[[Topic], None]) -> None:
        self._closed = closed  # told of a topic that is gone or being deleted
        self._topics: dict[str, Topic] = {}
        self._segments: dict[str, dict[int, tuple[SegmentRecord, int]]] = {}  # by topic/incarnation
        self._view = View(coordination, PREFIXES, self._apply)
        self.load = self._view.load
        self.follow = self._view.follow

    def names(self) -> list[str]:
        """All topics, also those being deleted, sorted."""
        return sorted(self._topics)

    def find(self, name: str) -> Topic | None:
        """The topic, whatever its state."""
        return self._topics.get(name)

    def topic(self, name: str) -> Topic:
        """An active topic. Raises TopicNotFound, TopicBeingDeleted."""
        topic = self._topics.get(name)
        if topic is None:
            raise TopicNotFound(f"there is no topic {name!r}", topic=name)
        if topic.record.state == "deleting":
            raise TopicBeingDeleted(f"topic {name!r} is being deleted", topic=name)
        return topic

    def check(self, topic: Topic) -> None:
        """Raises TopicBeingDeleted unless the topic is still there, this very one, and active."""
        if self._topics.get(topic.name) is not topic or topic.record.state == "deleting":
            raise TopicBeingDeleted(f"topic {topic.name!r} is being deleted", topic=topic.name)

    def segments(self, topic: Topic) -> dict[int, SegmentRecord]:
        """The topic's segments by id."""
        known = self._segments.get(f"{topic.name}/{topic.record.incarnation}", {})
        return {segment: record for segment, (record, _) in sorted(known.items())}

    def records(self, topic: Topic) -> Mapping[int, tuple[SegmentRecord, int]]:
        """The topic's segments by id, each with its revision."""
        return self._segments.get(f"{topic.name}/{topic.record.incarnation}", {})

    def owned_by(self, broker: str) -> int:
        """How many segments a broker owns."""
        return sum(record.owner == broker for known in self._segments.values() for record, _ in known.values())

    def segment(self, topic: Topic, segment: int) -> tuple[SegmentRecord, int]:
        """A segment's record and its revision. Raises SegmentNotFound."""
        known = self._segments.get(f"{topic.name}/{topic.record.incarnation}", {})
        if segment not in known:
            raise SegmentNotFound(f"topic {topic.name!r} has no segment {segment}", topic=topic.name, segment=segment)
        return known[segment]

    def apply(self, changes: Sequence[Change]) -> None:
        """Work changes in, unless a newer one of the same key is known."""
        self._view.take(changes)

    async def look(self, name: str, segment: int | None = None) -> None:
        """Read a topic's record again, or that of one of its segments: the watch may be behind."""
        topic = self._topics.get(name)
        if segment is None or topic is None:
            await self._view.refresh(keys.TOPICS.key(name))
        topic = self._topics.get(name)
        if segment is not None and topic is not None:
            await self._view.refresh(keys.SEGMENTS.key(name, topic.record.incarnation, segment))

    def _apply(self, change: Change) -> None:
        if change.key.startswith("topics/"):
            self._apply_topic(change)
        else:
            self._apply_segment(change)

    def _apply_topic(self, change: Change) -> None:
        (name,) = keys.TOPICS.parse(change.key)
        before = self._topics.get(name)
        if change.value is None:
            self._topics.pop(name, None)
            if before:
                self._closed(before)
            return
        record = keys.TOPICS.decode(change.value)
        if before is None or before.record.incarnation != record.incarnation:
            if before:
                self._closed(before)
            self._topics[name] = Topic.of(name, record, change.revision)
            return
        before.record, before.revision = record, change.revision
        if record.state == "deleting":
            self._closed(before)

    def _apply_segment(self, change: Change) -> None:
        name, incarnation, segment = keys.SEGMENTS.parse(change.key)
        known = self._segments.setdefault(f"{name}/{incarnation}", {})
        if change.value is None:
            known.pop(segment, None)
        else:
            known[segment] = (keys.SEGMENTS.decode(change.value), change.revision)
        if (topic := self._topics.get(name)) and topic.record.incarnation == incarnation:
            topic.regroup(segment, known.get(segment))

"""This broker's view of the topics: records of coordination, kept current by watches, and the segments it has open.

A view, never the truth: whatever decides goes through a transaction that compares revisions. Own changes are applied at
once (`apply`), so that whoever made them sees them; the watch brings them again, and an older revision never overwrites
a newer one.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from seaweedq.broker.open_segment import OpenSegment
from seaweedq.broker.signal import Signal
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Change, Coordination, WatchLost
from seaweedq.coordination.records import SegmentRecord, TopicRecord
from seaweedq.coordination.transactions import read_all
from seaweedq.errors import CoordinationUnavailable, SegmentNotFound, TopicBeingDeleted, TopicNotFound
from seaweedq.segments.layout import Format, Layout
from seaweedq.segments.schema import decode_fields

logger = logging.getLogger(__name__)
RETRY_S = 1.0
PREFIXES = ("topics/", "segments/")


@dataclass(eq=False)
class Topic:
    """A topic as of some revision. `routing` is made when first needed: the open segments by their sorted lower
    ends."""

    name: str
    record: TopicRecord
    revision: int
    layout: Layout
    signal: Signal = field(default_factory=Signal)
    opened: dict[int, OpenSegment] = field(default_factory=dict)
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    deleting: asyncio.Lock = field(default_factory=asyncio.Lock)
    routing: tuple[list[OpenSegment], np.ndarray] | None = None

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
        self._coordination = coordination
        self._closed = closed  # told of a topic that is gone or being deleted
        self._topics: dict[str, Topic] = {}
        self._segments: dict[str, dict[int, tuple[SegmentRecord, int]]] = {}  # by topic/incarnation
        self._seen: dict[str, int] = {}  # revision of each key, gone ones too

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

    def segment(self, topic: Topic, segment: int) -> tuple[SegmentRecord, int]:
        """A segment's record and its revision. Raises SegmentNotFound."""
        known = self._segments.get(f"{topic.name}/{topic.record.incarnation}", {})
        if segment not in known:
            raise SegmentNotFound(f"topic {topic.name!r} has no segment {segment}", topic=topic.name, segment=segment)
        return known[segment]

    async def load(self) -> int:
        """Read everything; gives the revision from which a watch must go on."""
        revisions = []
        for prefix in PREFIXES:
            entries, revision = await read_all(self._coordination, prefix)
            revisions.append(revision)
            here = {entry.key for entry in entries}
            gone = [key for key in self._seen if key.startswith(prefix) and key not in here]
            self.apply([Change(key, None, revision) for key in gone])
            self.apply([Change(entry.key, entry.value, entry.revision) for entry in entries])
        return min(revisions)

    async def follow(self, revision: int) -> None:
        """Watch for ever; a watch that was lost reads everything again."""
        while True:
            try:
                async with asyncio.TaskGroup() as group:
                    for prefix in PREFIXES:
                        group.create_task(self._watch(prefix, revision))
            except* (WatchLost, CoordinationUnavailable):
                logger.warning("the watch of topics was lost, reading everything again")
                revision = await self._load_again()

    def apply(self, changes: Sequence[Change]) -> None:
        """Work changes in, unless a newer one of the same key is known."""
        for change in changes:
            if change.revision > self._seen.get(change.key, 0):
                self._seen[change.key] = change.revision
                if change.key.startswith("topics/"):
                    self._apply_topic(change)
                else:
                    self._apply_segment(change)

    async def _load_again(self) -> int:
        while True:
            try:
                return await self.load()
            except CoordinationUnavailable:
                await asyncio.sleep(RETRY_S)

    async def _watch(self, prefix: str, revision: int) -> None:
        async for changes in self._coordination.watch(prefix, revision):
            self.apply(changes)

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
        if topic := self._topics.get(name):
            topic.routing = None

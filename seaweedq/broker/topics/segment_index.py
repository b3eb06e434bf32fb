"""The index of all segments, as the last change of each record says: by topic, by owner and by intent, where their rows
start, and which keys they take. A part of the catalog's view (broker/topics/catalog); nothing is read or written.

A segment whose record cannot be read (coordination/versioned) is known as such, and has no owner and no intent. A
start whose record cannot be read stays as it was known before. To be behind with starts is safe: between the raise of a
start and the deletion of files lies the grace (docs/internals/protocol.md, "Retention"), in which a broker that cannot
hear of it loses its lease.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.concurrency.futures import Signal
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Change, Entry
from seaweedq.coordination.records import SegmentRecord, StartRecord
from seaweedq.coordination.versioned import Unreadable, Versioned
from seaweedq.segments.entry import EntryName
from seaweedq.segments.keyrange import KeyRange, missing_ranges

Records = Mapping[int, Versioned[SegmentRecord]]  # by segment
SegmentKey = tuple[str, int, int]  # topic, incarnation, id
NO_RECORDS: Records = {}
GAP = -1  # in place of a segment: no segment whose record can be read has these keys
NO_START = Versioned.new(StartRecord(0, 0))
NO_STARTS: Mapping[int, Versioned[StartRecord]] = {}
Raised = Callable[[str, int, int, EntryName], None]  # topic, incarnation, segment, start


def starts_at(records: Records, ends: Mapping[int, int], found: Mapping[int, int]) -> dict[int, int]:
    """Returns the start offset in each segment, given the first offset `found` there that reaches a time, and its end.

    From the first message that reaches the time on, all later messages count, whatever their own times are: a segment
    begins at 0 if one of its predecessors has such a message.
    """
    starts: dict[int, int] = {}
    reached: set[int] = set()
    for number in sorted(found):
        behind = any(before in reached for before in records[number].record.predecessors)
        starts[number] = 0 if behind else found[number]
        if behind or starts[number] < ends[number]:
            reached.add(number)
    return starts


class SegmentIndex:
    """Records of segments, also of topics that are not known yet."""

    def __init__(self) -> None:
        self.records: dict[str, dict[int, Versioned[SegmentRecord]]] = {}  # by place: topic/incarnation
        self.unreadable: dict[str, dict[int, Unreadable]] = {}  # by place
        self._owners: dict[str | None, dict[SegmentKey, None]] = {}  # open segments by owner
        self._locked: dict[SegmentKey, None] = {}  # those with an intent
        self.locking = Signal()  # a segment has got an intent, or another one

    def __len__(self) -> int:
        return sum(map(len, self.records.values()))

    def records_of(self, name: str, incarnation: int) -> Records:
        """Returns the segments of a topic, by id, each with its revision."""
        return self.records.get(f"{name}/{incarnation}", NO_RECORDS)

    def is_readable(self, name: str) -> bool:
        """Tells whether the segments of a topic, of any incarnation, have records that can be read."""
        return not any(one.startswith(f"{name}/") for one in self.unreadable)

    def owners(self) -> list[str | None]:
        """Returns all brokers that some segment's record names as its owner."""
        return list(self._owners)

    def owned_by(self, broker: str | None) -> Collection[SegmentKey]:
        """Returns topic, incarnation and id of each open segment of a broker."""
        return self._owners.get(broker, ())

    def locked(self) -> Collection[SegmentKey]:
        """Returns the segments that have an intent."""
        return self._locked

    def promised(self, *of: str | int) -> int:
        """Returns how many segments intents will make, in the cluster or of one topic, by its name and incarnation."""
        found: set[tuple[str, int]] = set()
        for topic, incarnation, segment in self._locked:
            if of not in ((), (topic, incarnation)):
                continue
            intent = self.records_of(topic, incarnation)[segment].record.intent
            found |= {(f"{topic}/{incarnation}", one.id) for one in (intent.successors if intent else ())}
        return len(found)

    def apply(self, change: Change) -> None:
        """Applies a change of a segment's record."""
        name, incarnation, segment = key = keys.SEGMENTS.parse(change.key)
        topic = f"{name}/{incarnation}"
        known = self.records.setdefault(topic, {})
        self._forget(key)
        if change.value is not None:
            held = keys.SEGMENTS.read(Entry(change.key, change.value, change.revision))
            if isinstance(held, Unreadable):
                self.unreadable.setdefault(topic, {})[segment] = held
            else:
                known[segment] = held
                if held.record.state == "open":
                    self._owners.setdefault(held.record.owner, {})[key] = None
                if held.record.intent:
                    self._locked[key] = None
                    self.locking.wake()
        if not known:
            del self.records[topic]

    def _forget(self, key: SegmentKey) -> None:
        name, incarnation, segment = key
        topic = f"{name}/{incarnation}"
        self._locked.pop(key, None)
        before = self.records[topic].pop(segment, None)
        if before and before.record.state == "open":
            owned = self._owners[before.record.owner]
            del owned[key]
            if not owned:
                del self._owners[before.record.owner]
        hidden = self.unreadable.get(topic)
        if hidden and hidden.pop(segment, None) and not hidden:
            del self.unreadable[topic]


@dataclass(frozen=True)
class Routing:
    """The parts of a topic's open segments: the low end of each (sorted, int32), its segment, or GAP, and that segment
    as this broker has it open: None if another broker owns it, or it was not needed yet."""

    lows: np.ndarray
    ids: Sequence[int]
    opened: list[OpenSegment | None] = field(default_factory=list)

    @cached_property
    def starts(self) -> list[int]:
        """Returns the low ends as a list, in which one hash is found faster than in an array."""
        return list(map(int, self.lows))

    @staticmethod
    def from_records(records: Records, opened: Mapping[int, OpenSegment]) -> "Routing":
        """Returns the routing that these records imply."""
        open_ = [(number, known.record) for number, known in records.items() if known.record.state == "open"]
        parts = [(low, number) for number, record in open_ for low in record.parts]
        gaps = missing_ranges(KeyRange(record.low, record.high) for _, record in open_)
        parts = sorted([*parts, *((gap.low, GAP) for gap in gaps)])
        lows = np.array([low for low, _ in parts], dtype=np.int32)
        return Routing(lows, [number for _, number in parts], [opened.get(number) for _, number in parts])

    def add_opened(self, segment: OpenSegment) -> None:
        """Adds a segment that was opened."""
        for at, number in enumerate(self.ids):
            if number == segment.id:
                self.opened[at] = segment


class StartOffsets:
    """The records of starts by topic, incarnation and segment. `raised` is told of each that has risen."""

    def __init__(self, raised: Raised) -> None:
        self._raised = raised
        self.by_place: dict[str, dict[int, Versioned[StartRecord]]] = {}  # topic/incarnation
        self._unreadable: dict[str, Unreadable] = {}

    def held(self, topic: str, incarnation: int, segment: int) -> Versioned[StartRecord]:
        """Returns the record of a segment's start, with revision 0 if there is none. Raises NeedsNewerBroker."""
        if found := self._unreadable.get(keys.STARTS.key(topic, incarnation, segment)):
            raise found.error()
        return self.known(topic, incarnation).get(segment, NO_START)

    def start(self, topic: str, incarnation: int, segment: int) -> EntryName:
        """Returns the first entry of a segment that counts, as it was known last. Raises NeedsNewerBroker if it
        never was."""
        known = self.known(topic, incarnation).get(segment)
        return start_name((known or self.held(topic, incarnation, segment)).record)

    def is_emptied(self, topic: str, incarnation: int, segment: int) -> bool:
        """Tells whether retention has taken all entries of a sealed segment, as far as is known here."""
        known = self.known(topic, incarnation).get(segment)
        return known is not None and known.record.emptied

    def known(self, topic: str, incarnation: int) -> Mapping[int, Versioned[StartRecord]]:
        """Returns the records of a topic's starts by segment, as they were known last."""
        return self.by_place.get(f"{topic}/{incarnation}", NO_STARTS)

    def apply(self, change: Change) -> None:
        """Applies a change of a start's key."""
        topic, incarnation, segment = keys.STARTS.parse(change.key)
        self._unreadable.pop(change.key, None)
        if change.value is None:
            known = self.by_place.get(f"{topic}/{incarnation}", {})
            if known.pop(segment, None) and not known:
                del self.by_place[f"{topic}/{incarnation}"]
            return
        held = keys.STARTS.read(Entry(change.key, change.value, change.revision))
        if isinstance(held, Unreadable):
            self._unreadable[change.key] = held
            return
        self.by_place.setdefault(f"{topic}/{incarnation}", {})[segment] = held
        self._raised(topic, incarnation, segment, start_name(held.record))


def start_name(record: StartRecord) -> EntryName:
    """Returns the name of the first entry that counts."""
    return EntryName(record.sequence, record.offset)

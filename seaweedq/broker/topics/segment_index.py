"""The index of all segments by topic, by owner and by intent, as the last change of each record says, and facts that
follow from a topic's records alone. Nothing is read or written.

A segment whose record cannot be read (coordination/versioned) is known as such, and has no owner and no intent.
"""

from collections.abc import Collection, Mapping

from seaweedq.concurrency.futures import Signal
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Change, Entry
from seaweedq.coordination.records import SegmentRecord
from seaweedq.coordination.versioned import Unreadable, Versioned

Records = Mapping[int, Versioned[SegmentRecord]]  # by segment


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


SegmentKey = tuple[str, int, int]  # topic, incarnation, id


class SegmentIndex:
    """Records of segments, also of topics that are not known yet."""

    def __init__(self) -> None:
        self._records: dict[str, dict[int, Versioned[SegmentRecord]]] = {}  # by topic/incarnation
        self._unreadable: dict[str, dict[int, Unreadable]] = {}  # by topic/incarnation
        self._owners: dict[str | None, set[SegmentKey]] = {}  # open segments by owner
        self._locked: set[SegmentKey] = set()  # those with an intent
        self.locking = Signal()  # a segment has got an intent, or another one

    def __len__(self) -> int:
        return sum(map(len, self._records.values()))

    def records(self, name: str, incarnation: int) -> Records:
        """Returns the segments of a topic, by id, each with its revision."""
        return self._records.get(f"{name}/{incarnation}", {})

    def unreadable(self, name: str, incarnation: int) -> Mapping[int, Unreadable]:
        """Returns the segments of a topic whose records cannot be read, by id."""
        return self._unreadable.get(f"{name}/{incarnation}", {})

    def is_readable(self, name: str) -> bool:
        """Tells whether the segments of a topic, of any incarnation, have records that can be read."""
        return not any(one.startswith(f"{name}/") for one in self._unreadable)

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
            intent = self.records(topic, incarnation)[segment].record.intent
            found |= {(f"{topic}/{incarnation}", one.id) for one in (intent.successors if intent else ())}
        return len(found)

    def apply(self, change: Change) -> None:
        """Applies a change of a segment's record."""
        name, incarnation, segment = key = keys.SEGMENTS.parse(change.key)
        topic = f"{name}/{incarnation}"
        known = self._records.setdefault(topic, {})
        self._forget(key)
        if change.value is not None:
            held = keys.SEGMENTS.read(Entry(change.key, change.value, change.revision))
            if isinstance(held, Unreadable):
                self._unreadable.setdefault(topic, {})[segment] = held
            else:
                known[segment] = held
                self._note(key, held.record)
        if not known:
            del self._records[topic]

    def _forget(self, key: SegmentKey) -> None:
        name, incarnation, segment = key
        topic = f"{name}/{incarnation}"
        self._locked.discard(key)
        before = self._records[topic].pop(segment, None)
        if before and before.record.state == "open":
            self._disown(before.record.owner, key)
        hidden = self._unreadable.get(topic)
        if hidden and hidden.pop(segment, None) and not hidden:
            del self._unreadable[topic]

    def _note(self, key: SegmentKey, record: SegmentRecord) -> None:
        if record.state == "open":
            self._owners.setdefault(record.owner, set()).add(key)
        if record.intent:
            self._locked.add(key)
            self.locking.wake()

    def _disown(self, owner: str | None, segment: SegmentKey) -> None:
        owned = self._owners[owner]
        owned.remove(segment)
        if not owned:
            del self._owners[owner]

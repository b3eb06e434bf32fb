"""Locks on segments that are about to leave this broker, or to end: one holder per segment.

A move takes a lock for as long as it runs, and an intent from the time before it is committed until its successors
exist. Each of them relies on the segment not being moved or ended by the other meanwhile. While a segment is locked:
- another holder does not get it: a move is refused, an intent is retried later;
- this broker does not open it, and drops what it has just read of its chain;
- an open segment keeps accepting messages until its holder holds it (`OpenSegment.hold`).

A move that is cancelled keeps its lock: its transaction may still be applied, so the owner of the segment is unknown.
Taking and releasing never waits, so that a check and the lock that follows from it are one step.
"""

from collections.abc import Collection
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from seaweedq.broker.topics.catalog import Topic


@dataclass(frozen=True, eq=False, slots=True)
class Holder:
    """A holder of locks; `why` states the purpose. Two holders are never equal."""

    why: str


class SegmentLocks:
    """The locks on the segments of one broker."""

    def __init__(self) -> None:
        self._holders: WeakKeyDictionary[Topic, dict[int, Holder]] = WeakKeyDictionary()

    def take(self, topic: Topic, segments: Collection[int], holder: Holder) -> bool:
        """Locks all of these segments, or none of them; those that the holder has already stay locked. False: another
        holder has one."""
        locked = self._holders.setdefault(topic, {})
        if any(locked.get(segment, holder) is not holder for segment in segments):
            return False
        locked.update(dict.fromkeys(segments, holder))
        return True

    def release(self, topic: Topic, segments: Collection[int], holder: Holder) -> None:
        """Unlocks those of the segments that the holder has; the locks of others stay."""
        locked = self._holders.get(topic, {})
        for segment in segments:
            if locked.get(segment) is holder:
                del locked[segment]

    def holder(self, topic: Topic, segment: int) -> Holder | None:
        """Returns the holder of a segment's lock, None if it is not locked."""
        return self._holders.get(topic, {}).get(segment)

    def held(self, holder: Holder | None = None) -> list[tuple[Topic, int]]:
        """Returns all segments that are locked, or those that a holder has locked."""
        held = [(topic, number, who) for topic, locked in self._holders.items() for number, who in locked.items()]
        return [(topic, number) for topic, number, who in held if holder in (None, who)]

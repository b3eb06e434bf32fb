"""The observations of `topic watch`: rates from the differences of snapshots if the map has none, and moves.

Pure: the time comes with each snapshot.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from seaweedq.cli.topic.last_hour import LastHour
from seaweedq.cli.topic.lineage import Segment, changes

WINDOW_S = 10.0
MOVES = 100


@dataclass(frozen=True, slots=True)
class Look:
    """The segment map by id at one moment, by the monotonic clock and as a date; and what the leader has recorded,
    where it was asked for that."""

    monotonic_s: float
    at: datetime
    segments: Mapping[int, Segment]
    hour: LastHour | None = None


class Watched:
    """The snapshots of the last seconds, the newest last, and all observed moves."""

    def __init__(self, first: Look) -> None:
        self.hour = first.hour
        self._looks = deque([first])
        self._moves: deque[tuple[datetime, str]] = deque(maxlen=MOVES)

    @property
    def now(self) -> Look:
        """Returns the newest snapshot."""
        return self._looks[-1]

    def see(self, look: Look) -> None:
        """Adds a snapshot."""
        self.hour = look.hour or self.hour
        self._moves.extend((look.at, said) for said in moves(self.now.segments, look.segments))
        self._looks.append(look)
        while look.monotonic_s - self._looks[0].monotonic_s > WINDOW_S and len(self._looks) > 2:
            self._looks.popleft()

    def rates(self) -> dict[int, float | None]:
        """Returns messages per second of each open segment over the last seconds; None if that is not known yet."""
        return {segment.id: self._rate(segment) for segment in self.now.segments.values() if segment.is_open}

    def log(self) -> list[tuple[datetime, str]]:
        """Returns the events, the oldest first: all replacements, and the observed moves."""
        replaced = [(change.at, str(change)) for change in changes(self.now.segments.values())]
        return sorted([*replaced, *self._moves], key=lambda entry: entry[0])

    def _rate(self, segment: Segment) -> float | None:
        if segment.messages_per_s:
            return segment.messages_per_s[0]
        for look in self._looks:
            passed_s = self.now.monotonic_s - look.monotonic_s
            then = look.segments.get(segment.id)
            if then and passed_s > 0:
                return max(0, segment.end_offset - then.end_offset) / passed_s
        if len(self._looks) == 1:
            return None
        return segment.end_offset / (self.now.monotonic_s - self._looks[-2].monotonic_s)  # it is new


def moves(before: Mapping[int, Segment], after: Mapping[int, Segment]) -> list[str]:
    """Returns the open segments that have another owner than before."""
    both = [(before[number], now) for number, now in after.items() if now.is_open and number in before]
    return [
        f"move {now.id}: {then.owner or 'nobody'} → {now.owner or 'nobody'}"
        for then, now in both
        if then.owner != now.owner
    ]

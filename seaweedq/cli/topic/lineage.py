"""A topic's segments over time, parsed from `GET .../segments` and `GET .../history`: which segment replaced which and
when, and how many messages each received in the last hour. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

KEY_SPACE = 2**31 - 1


@dataclass(frozen=True, slots=True)
class NextSplit:
    """The average that is closest to the limit at which the segment would be split."""

    measure: str
    window_s: float
    splits_at: float
    now: float
    held_by: str | None

    @staticmethod
    def from_answer(answer: Mapping[str, Any]) -> "NextSplit":
        """Parses the value of one segment in the answer."""
        return NextSplit(*(answer[name] for name in ("measure", "window_s", "splits_at", "now", "held_by")))

    @property
    def nearness(self) -> float:
        """Returns the average as a share of the limit."""
        return self.now / self.splits_at

    def __str__(self) -> str:
        if self.measure == "messages_per_s":
            bound, now = f"{self.splits_at:,.0f}", f"{int(self.now):,}"
        else:
            bound, now = f"{self.splits_at / 1e6:,.1f} MB/s", f"{self.now / 1e6:,.1f}"
        window = f"{self.window_s:.0f} s" if self.window_s < 60 else f"{self.window_s / 60:.0f} min"
        held = f", held by {self.held_by}" if self.held_by else ""
        return f"splits at {bound}, now {now} ({window}){held}"


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment of the map. `messages_per_s` and `bytes_per_s` have the averages over 10 s, 1, 10 and 20 minutes, or
    are empty if the broker does not report them. `hot_key` has the hash that prevents a split, and its share of the
    messages."""

    id: int
    low: int
    high: int
    is_open: bool
    owner: str | None
    end_offset: int
    created_at: datetime
    sealed_at: datetime | None = None
    predecessors: tuple[int, ...] = ()
    successors: tuple[int, ...] = ()
    messages_per_s: tuple[float, ...] = ()
    bytes_per_s: tuple[float, ...] = ()
    hot_key: tuple[int, float] | None = None
    next_split: NextSplit | None = None

    @staticmethod
    def from_answer(answer: Mapping[str, Any]) -> "Segment":
        """Parses a segment of the answer. Raises KeyError if the broker is older than this command."""
        rates, hot = answer.get("rates") or {}, answer.get("hot_key")
        sealed_at = answer["sealed_at"]
        return Segment(
            id=answer["id"],
            low=answer["low"],
            high=answer["high"],
            is_open=answer["state"] == "open",
            owner=answer["owner"],
            end_offset=answer["end_offset"],
            created_at=datetime.fromisoformat(answer["created_at"]),
            sealed_at=datetime.fromisoformat(sealed_at) if sealed_at else None,
            predecessors=tuple(answer["predecessors"]),
            successors=tuple(answer["successors"]),
            messages_per_s=tuple(rates.get("messages_per_s") or ()),
            bytes_per_s=tuple(rates.get("bytes_per_s") or ()),
            hot_key=(hot["hash"], hot["share"]) if hot else None,
            next_split=NextSplit.from_answer(split) if (split := answer.get("next_split")) else None,
        )

    def lived_s(self, now: datetime) -> float:
        """Returns the seconds from the segment's creation until it was sealed, or until now."""
        return max(0.0, ((self.sealed_at or now) - self.created_at).total_seconds())

    def mean_rate(self, now: datetime) -> float:
        """Returns the segment's mean rate in messages per second, since its creation."""
        lived_s = self.lived_s(now)
        return self.end_offset / lived_s if lived_s else 0.0


@dataclass(frozen=True, slots=True)
class Change:
    """A replacement of segments by other segments, at one moment."""

    at: datetime
    sealed: tuple[int, ...]
    successors: tuple[int, ...]

    @property
    def kind(self) -> str:
        """Returns split, merge or roll, or recut if several segments replaced several segments."""
        if len(self.sealed) == 1:
            return "roll" if len(self.successors) == 1 else "split"
        return "merge" if len(self.successors) == 1 else "recut"

    def __str__(self) -> str:
        return f"{self.kind} {_listed(self.sealed)} → {_listed(self.successors)}"


def changes(segments: Iterable[Segment]) -> list[Change]:
    """Returns every replacement in the map, oldest first."""
    known = {segment.id: segment for segment in segments}
    told: set[int] = set()
    found = []
    for segment in known.values():
        if segment.sealed_at is None or segment.id in told:
            continue
        sealed, successors = _replacement(segment, known)
        told |= sealed
        found.append(Change(segment.sealed_at, _by_range(sealed, known), _by_range(successors, known)))
    return sorted(found, key=lambda change: (change.at, change.sealed))


def by_range(segments: Iterable[Segment]) -> list[Segment]:
    """Returns the open segments in the order of their key ranges."""
    return sorted((segment for segment in segments if segment.is_open), key=lambda segment: segment.low)


def share(key_hash: int) -> str:
    """Returns a hash's position in the key space as a percentage."""
    return f"{100 * key_hash / KEY_SPACE:.1f}%"


def _replacement(segment: Segment, known: Mapping[int, Segment]) -> tuple[set[int], set[int]]:
    """Returns the segments that were sealed together with a segment, and the segments that replaced them."""
    sealed, successors = {segment.id}, set[int]()
    while True:
        after = successors.union(*(known[one].successors for one in sealed))
        before = sealed.union(*(known[one].predecessors for one in after & known.keys())) & known.keys()
        if (before, after) == (sealed, successors):
            return sealed, successors
        sealed, successors = before, after


def _by_range(ids: set[int], known: Mapping[int, Segment]) -> tuple[int, ...]:
    return tuple(sorted(ids, key=lambda one: (known[one].low if one in known else KEY_SPACE, one)))


def _listed(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids))


@dataclass(frozen=True, slots=True)
class Cell:
    """The inbound messages per second of a key range from `begin` to `end`. `segment` is None if the range spans
    several segments."""

    begin: datetime
    end: datetime
    low: int
    high: int
    segment: int | None
    rate: float
    hot_key: tuple[int, float] | None = None

    @property
    def messages(self) -> float:
        """Returns the approximate number of messages."""
        return self.rate * (self.end - self.begin).total_seconds()


@dataclass(frozen=True, slots=True)
class Intake:
    """A segment's mean and highest rate, and the hot key that prevented a split."""

    mean: float
    highest: float
    hot_key: tuple[int, float] | None


@dataclass(frozen=True, slots=True)
class LastHour:
    """The cells, and the time since which the leader has recorded all cells."""

    begin: datetime
    cells: tuple[Cell, ...]

    @staticmethod
    def from_answer(answer: Mapping[str, Any]) -> "LastHour":
        """Parses an answer."""
        return LastHour(datetime.fromisoformat(answer["from"]), tuple(map(_cell, answer["cells"])))

    def intake(self, segment: Segment, now: datetime) -> Intake | None:
        """Returns a segment's rates since the leader began its record; None if the segment was sealed before."""
        lived = (segment.sealed_at or now) - max(segment.created_at, self.begin)
        if lived <= timedelta(0):
            return None
        cells = [cell for cell in self.cells if cell.segment == segment.id]
        hot = [cell.hot_key for cell in cells if cell.hot_key]
        highest = max((cell.rate for cell in cells), default=0.0)
        return Intake(sum(c.messages for c in cells) / lived.total_seconds(), highest, hot[-1] if hot else None)

    def rates(self, since: datetime, until: datetime, lines: int, columns: int) -> list[list[float]]:
        """Returns a picture with this many lines (oldest first) and columns of the key space: the highest rate at each
        position."""
        found = [[0.0] * columns for _ in range(lines)]
        for cell in self.cells:
            first, last = ((at - since) / (until - since) * lines for at in (cell.begin, cell.end))
            left, right = (key * columns // KEY_SPACE for key in (cell.low, cell.high - 1))
            for line in range(max(0, int(first)), min(lines, max(int(first) + 1, round(last)))):
                for column in range(left, right + 1):
                    found[line][column] = max(found[line][column], cell.rate)
        return found


def _cell(answer: Mapping[str, Any]) -> Cell:
    begin, hot = datetime.fromisoformat(answer["time"]), answer.get("hot_key")
    return Cell(
        begin,
        begin + timedelta(seconds=answer["seconds"]),
        answer["low"],
        answer["high"],
        answer["segment"],
        answer["messages_per_s"],
        (hot["hash"], hot["share"]) if hot else None,
    )

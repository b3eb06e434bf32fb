"""A topic's segments in the answer of `GET .../segments`, as facts over time: which segment replaced which, when.
Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

KEY_SPACE = 2**31 - 1


@dataclass(frozen=True, slots=True)
class NextSplit:
    """The average by which a segment is nearest to a split."""

    measure: str
    window_s: float
    splits_at: float
    now: float
    held_by: str | None

    @staticmethod
    def of(answer: Mapping[str, Any]) -> "NextSplit":
        """Parses that of one of the answer's segments."""
        return NextSplit(*(answer[name] for name in ("measure", "window_s", "splits_at", "now", "held_by")))

    @property
    def nearness(self) -> float:
        """Returns the share of the bound that is reached."""
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
    """A segment of the map. `messages_per_s` and `bytes_per_s` are over 10 s, 1, 10 and 20 minutes; empty if the broker
    does not report them. `hot_key` is the hash that prevents a split, and its share of the messages."""

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
    def of(answer: Mapping[str, Any]) -> "Segment":
        """Parses one of the answer's segments. Raises KeyError for a broker that is older than this command."""
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
            next_split=NextSplit.of(split) if (split := answer.get("next_split")) else None,
        )

    def lived_s(self, now: datetime) -> float:
        """Returns the seconds from its creation to its seal, or until now."""
        return max(0.0, ((self.sealed_at or now) - self.created_at).total_seconds())

    def mean_rate(self, now: datetime) -> float:
        """Returns messages per second over its life."""
        lived_s = self.lived_s(now)
        return self.end_offset / lived_s if lived_s else 0.0


@dataclass(frozen=True, slots=True)
class Change:
    """Segments that others replaced at one moment."""

    at: datetime
    sealed: tuple[int, ...]
    successors: tuple[int, ...]

    @property
    def kind(self) -> str:
        """Returns split, merge, roll, or recut if several segments replaced several."""
        if len(self.sealed) == 1:
            return "roll" if len(self.successors) == 1 else "split"
        return "merge" if len(self.successors) == 1 else "recut"

    def __str__(self) -> str:
        return f"{self.kind} {_listed(self.sealed)} → {_listed(self.successors)}"


def changes(segments: Iterable[Segment]) -> list[Change]:
    """Returns every replacement in the map, the oldest first."""
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
    """Returns all segments that were sealed together with a segment, and all that replaced them."""
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

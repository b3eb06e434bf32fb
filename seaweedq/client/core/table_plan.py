"""The plan of a read of a topic: which rows come from files, and which from brokers. Pure.

Brokers state, for each segment, the offset up to which all rows are in files, and its end. The first is the segment's
*pin*: rows below it come from files, rows from it up to the end from brokers. Files are never rewritten, and only
offsets decide, so no row is missing or doubled, whatever brokers flush, split or merge meanwhile. The files must be
listed after the pins were stated.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeGuard, get_args

from seaweedq.client.core.calls import Expired, TopicFile


@dataclass(frozen=True, slots=True)
class Rows:
    """A half-open range of a segment's offsets."""

    segment: int
    start: int
    end: int

    def __len__(self) -> int:
        return max(0, self.end - self.start)

    def cut(self, most: int) -> list["Rows"]:
        """Returns the range in pieces of at most `most` rows."""
        return [Rows(self.segment, at, min(at + most, self.end)) for at in range(self.start, self.end, most)]


@dataclass(frozen=True, slots=True)
class TablePlan:
    """The rows that come from files, and those that come from brokers. Empty ranges are left out."""

    files: tuple[Rows, ...]
    tail: tuple[Rows, ...]


@dataclass(frozen=True, slots=True)
class FilePart:
    """The rows of [start, end) of a file."""

    file: TopicFile
    start: int
    end: int

    @property
    def is_whole(self) -> bool:
        """Tells whether these are all of the file's rows."""
        return (self.start, self.end) == (self.file.first_offset, self.file.next_offset)


def parts(files: Iterable[TopicFile], wanted: Iterable[Rows]) -> list[FilePart]:
    """Returns the parts of files that have these rows. There is at most one range a segment."""
    ranges = {rows.segment: rows for rows in wanted}
    found = []
    for file in files:
        rows = ranges.get(file.segment, Rows(file.segment, 0, 0))
        start, end = max(file.first_offset, rows.start), min(file.next_offset, rows.end)
        if start < end:
            found.append(FilePart(file, start, end))
    return found


def uncovered(found: Iterable[FilePart], wanted: Iterable[Rows]) -> list[Rows]:
    """Returns those of the wanted rows that are in none of the parts found."""
    by_segment: dict[int, list[FilePart]] = {}
    for part in sorted(found, key=lambda one: one.start):
        by_segment.setdefault(part.file.segment, []).append(part)
    gaps = []
    for rows in wanted:
        at = rows.start
        for part in by_segment.get(rows.segment, ()):
            gaps.append(Rows(rows.segment, at, part.start))
            at = part.end
        gaps.append(Rows(rows.segment, at, rows.end))
    return [gap for gap in gaps if len(gap)]


def plan(
    known: Sequence[Mapping[str, Any]],
    starting: Mapping[int, int] | None = None,
    ending: Mapping[int, int] | None = None,
    only: Collection[int] | None = None,
    *,
    tail: bool = True,
) -> TablePlan:
    """Plans a read of the segments that brokers listed (`Client.segments`).

    `starting` and `ending` are offsets by segment; those that they do not name are read from their start, to their end.
    `only` leaves out all other segments. Rows that retention has taken are left out. Raises ValueError for an unknown
    segment, and for an offset beyond a segment's end.
    """
    starting, ending = dict(starting or {}), dict(ending or {})
    ends = {each["id"]: each["end_offset"] for each in known}
    _check("segments", dict.fromkeys(ends if only is None else only, 0), ends)
    _check("starting", starting, ends)
    _check("ending", ending, ends)
    files, rest = [], []
    for each in sorted(known, key=lambda one: int(one["id"])):
        number = each["id"]
        if only is not None and number not in only:
            continue
        start = max(starting.get(number, 0), each["start_offset"])
        end = ending.get(number, each["end_offset"])
        files.append(Rows(number, start, min(each["flushed_offset"], end)))
        rest.append(Rows(number, max(start, each["flushed_offset"]), end))
    return TablePlan(tuple(filter(len, files)), tuple(filter(len, rest)) if tail else ())


def check_order(starting: object, ending: object, names: tuple[str, str] = ("starting", "ending")) -> None:
    """Raises ValueError for a start that is above its end: two offsets of a segment, or two times."""
    start, end = names
    if isinstance(starting, Mapping) and isinstance(ending, Mapping):
        for segment in starting.keys() & ending.keys():
            first, last = starting[segment], ending[segment]
            if isinstance(first, int) and isinstance(last, int) and first > last:
                raise ValueError(
                    f"{start} has offset {first} for segment {segment}; it must be at most that of "
                    f"{end}, which is {last}"
                )
    elif _is_time(starting) and _is_time(ending) and starting > ending:
        raise ValueError(f"{start} is {starting.isoformat()}; it must be at most {end}, which is {ending.isoformat()}")


def _is_time(bound: object) -> TypeGuard[datetime]:
    return isinstance(bound, datetime) and bound.tzinfo is not None


def check_expired(expired: object) -> None:
    """Raises ValueError for what `expired` cannot be."""
    if expired not in get_args(Expired):
        raise ValueError(f"expired is {expired!r}; it must be one of {', '.join(map(repr, get_args(Expired)))}")


def _check(option: str, stated: Mapping[int, int], ends: Mapping[int, int]) -> None:
    for segment, offset in stated.items():
        if segment not in ends:
            raise ValueError(f"{option} names segment {segment!r}; the topic's segments are {_some(sorted(ends))}")
        if not isinstance(offset, int) or not 0 <= offset <= ends[segment]:
            raise ValueError(
                f"{option} has offset {offset!r} for segment {segment}; it must be between 0 and its end, "
                f"{ends[segment]}"
            )


def _some(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:10]))
    return f"{shown}, ... {numbers[-1]}" if len(numbers) > 10 else shown

"""The positions of a reader of a whole topic, as a text that its client keeps. Pure.

`{incarnation}:{segment}-{offset},...`: the offset of the next message in each segment that is read now, and in each one
that was read to its end while some of its successors wait for other predecessors. So the named segments cover all keys,
their ancestors were read to their ends, and their descendants are to come. The incarnation tells a topic from earlier
ones of the same name; positions that a person writes may go without.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from seaweedq.broker.topics.segment_index import Records
from seaweedq.broker.topics.tombstones import check_at_end
from seaweedq.coordination.records.topics import TombstoneRecord
from seaweedq.errors import InvalidPositions
from seaweedq.segments.keyrange import KeyRange, missing_ranges

MAX_CHARACTERS = 48 * 1024  # a client sends them back in a header, or in the query of a URL
SHOWN = 100
_NUMBER = "(?:0|[1-9][0-9]{0,17})"
_TEXT = re.compile(rf"(?:(?P<incarnation>{_NUMBER}):)?(?P<segments>{_NUMBER}-{_NUMBER}(?:,{_NUMBER}-{_NUMBER})*)")


@dataclass(frozen=True, slots=True)
class Positions:
    """The next offset of each named segment; `incarnation` is that of the topic, if it is known."""

    offsets: Mapping[int, int]
    incarnation: int | None = None

    @staticmethod
    def parse(text: str) -> "Positions":
        """Returns the positions in a text. Raises InvalidPositions."""
        found = _TEXT.fullmatch(text) if len(text) <= MAX_CHARACTERS else None
        if found is None:
            raise InvalidPositions(
                f"{text[:SHOWN]!r} is none of a stream's positions, such as 0-17,1-5: the next offset of each segment",
                value=text[:SHOWN],
            )
        pairs = [one.split("-") for one in found["segments"].split(",")]
        offsets = {int(segment): int(offset) for segment, offset in pairs}
        if len(offsets) < len(pairs):
            raise InvalidPositions(f"{text[:SHOWN]!r} names a segment twice", value=text[:SHOWN])
        return Positions(offsets, int(found["incarnation"]) if found["incarnation"] else None)

    def __str__(self) -> str:
        named = ",".join(f"{segment}-{offset}" for segment, offset in sorted(self.offsets.items()))
        return named if self.incarnation is None else f"{self.incarnation}:{named}"

    def check(self, incarnation: int, records: Records) -> None:
        """Raises InvalidPositions where they are not of this topic, or leave out some of its keys."""
        if self.incarnation not in (None, incarnation):
            raise InvalidPositions("the positions are those of an earlier topic of this name", value=str(self)[:SHOWN])
        if unknown := sorted(self.offsets.keys() - records.keys()):
            raise InvalidPositions(f"the topic has no segment {unknown[0]}", value=str(self)[:SHOWN])
        covered = [KeyRange(records[n].record.low, records[n].record.high) for n in self.offsets]
        if missing_ranges(covered):
            raise InvalidPositions(
                f"{str(self)[:SHOWN]!r} leaves out some segments: each needs a position, or those that replaced it",
                value=str(self)[:SHOWN],
            )


def resumed(at: Mapping[int, int], records: Records, graves: Mapping[int, TombstoneRecord]) -> dict[int, int]:
    """Returns positions without the segments that retention has removed: their successors take their places, each from
    0, unless the positions are behind those already. Raises BelowRetention where a removed one was not read to its end,
    OffsetOutOfRange beyond it."""
    left = dict(at)
    while gone := sorted(left.keys() & graves.keys() - records.keys()):
        number = gone[0]
        check_at_end(number, graves[number].end_offset, left.pop(number))
        passed = left.keys() | _reached(left, lambda n: _predecessors(records, graves, n))
        left |= dict.fromkeys(set(graves[number].successors) - passed, 0)
    return left


def _predecessors(records: Records, graves: Mapping[int, TombstoneRecord], number: int) -> tuple[int, ...]:
    if number in records:
        return records[number].record.predecessors
    return graves[number].predecessors if number in graves else ()


def ancestors(records: Records, numbers: Iterable[int]) -> set[int]:
    """Returns all predecessors of some segments, and theirs, as far as they are known; those that are among them only
    where they precede another one."""
    return _reached(numbers, lambda n: records[n].record.predecessors if n in records else ())


def descendants(records: Records, numbers: Iterable[int]) -> set[int]:
    """Returns all successors of some segments, and theirs, as far as they are known."""
    return _reached(numbers, lambda n: records[n].record.successors if n in records else ())


def _reached(numbers: Iterable[int], neighbours: Callable[[int], Collection[int]]) -> set[int]:
    found: set[int] = set()
    left = list(numbers)
    while left:
        for number in neighbours(left.pop()):
            if number not in found:
                found.add(number)
                left.append(number)
    return found

"""The offsets of a stream: which rows of which segments the next batch has. Pure.

Offsets are a map of segment to next offset. A segment that is not in it is either *read*, and then segments of the map
descend from it, or it *waits*, and then it descends from segments of the map. So the map alone says what was read.

| at the start of a batch | the batch |
| --- | --- |
| a segment is open, or not read to its end | reads on, up to the segment's end at most |
| one is read to its end, and so are all with its successors | they leave the map, the successors come in, from 0 |
| it is read to its end, another predecessor is not | keeps it as it is |

So a successor is read only in batches after the one that ended its last predecessor, and a batch's rows are known from
its two maps alone: of each segment of the second map, from where the first map has it, else from 0. A batch that is
repeated after a crash has the same rows. The map has at most as many segments as were open at a time, and those that
wait at their ends for others.

Where retention took rows of which the stream has not read all, that is a *loss*: of a segment that begins above its
offset, of one that retention removed and whose end is above its offset, and of one that nobody remembers though later
ones exist. `advance` goes on behind the losses and names them; its caller decides whether they end the query.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Offsets = Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment as brokers know it; one that has `ended` gets no more rows. Rows below `start` are gone."""

    id: int
    start: int
    end: int
    ended: bool
    predecessors: tuple[int, ...] = ()
    successors: tuple[int, ...] = ()


Known = Mapping[int, Segment]


def segments_of(known: Sequence[Mapping[str, Any]], tail: bool = True) -> Known:
    """Returns the segments of a map; without their tails, they end where their files do."""
    ends = "end_offset" if tail else "flushed_offset"
    return {
        each["id"]: Segment(
            each["id"],
            each["start_offset"],
            each[ends],
            each["state"] != "open",
            tuple(each["predecessors"]),
            tuple(each["successors"]),
        )
        for each in known
    }


@dataclass(frozen=True, slots=True)
class Loss:
    """Rows [first, end) of a segment that are gone; `end` is None if nobody knows it."""

    segment: int
    first: int
    end: int | None

    def __str__(self) -> str:
        if self.end is None:
            return f"segment {self.segment} from offset {self.first} on, which brokers no longer know"
        if self.end < self.first:
            return f"segment {self.segment} ends at {self.end}, although it was read up to {self.first}"
        return f"segment {self.segment}, offsets {self.first} to {self.end}"


@dataclass(frozen=True, slots=True)
class Step:
    """The offsets at the end of a batch, and the losses before it."""

    offsets: dict[int, int]
    losses: tuple[Loss, ...]


def initial(known: Known, named: Offsets) -> dict[int, int]:
    """Returns where a stream begins that has named the offsets of some segments.

    What precedes a named segment counts as read, what follows it waits. All others begin at their starts, behind those
    of which retention has taken all: that is no loss to a stream that begins. Without names that is the beginning of
    the topic.
    """
    read = _finished(known, lambda one: one.ended and one.start >= one.end, ancestors(known, named))
    waiting = descendants(known, named)
    rest = known.keys() - named.keys() - read - waiting
    return _sorted({**named, **{number: known[number].start for number in _roots(known, rest)}})


def latest(known: Known) -> dict[int, int]:
    """Returns the ends of all segments that are open: everything before counts as read."""
    return {number: known[number].end for number in sorted(known) if not known[number].ended}


def from_time(known: Known, found: Offsets) -> dict[int, int]:
    """Returns where a stream begins, given the first offset of a time in each segment, or its end: what comes behind a
    segment with such a row waits for it, and is read from 0."""
    read = _finished(known, lambda one: one.ended and found.get(one.id, one.end) >= one.end)
    begin = {number: known[number] for number in _roots(known, known.keys() - read)}
    return _sorted({number: min(max(found.get(number, one.end), one.start), one.end) for number, one in begin.items()})


def starts(known: Known, offsets: Offsets) -> dict[int, int]:
    """Returns for all segments where a batch read begins: at these offsets, behind what precedes them, and at the start
    of all that waits."""
    read = ancestors(known, offsets)
    return {
        number: offsets.get(number, one.end if number in read else one.start) for number, one in sorted(known.items())
    }


def needed(offsets: Offsets, known: Known) -> set[int]:
    """Returns the segments that are not among the known ones, and without which the next batch cannot be decided: those
    of the map, the successors of what is read to its end, and what precedes these, as far as it may descend from the
    map, whose segments have lower numbers."""
    wanted = set(offsets)
    for number, offset in offsets.items():
        one = known.get(number)
        if one and one.ended and max(offset, one.start) >= one.end:
            wanted.update(one.successors)
            wanted.update(each for each in _before(known, one.successors) if each > min(offsets))
    return wanted - known.keys()


def advance(offsets: Offsets, known: Known, most: int | None = None, target: Offsets | None = None) -> Step:
    """Returns the end of the batch that begins at these offsets.

    `known` has the segments of the map, and of those that retention removed what `needed` names; one that is missing
    there is remembered by nobody. The batch has at most `most` rows, shared in proportion to what is to be read of each
    segment. With a `target`, which are the ends that all segments of a moment had, nothing beyond it is read, and no
    segment comes in that was made later: one with a number above all of them.
    """
    losses: list[Loss] = []
    newest = max(known, default=-1)
    forgotten = {number for number in offsets if number not in known and number < newest}
    losses += [Loss(number, offsets[number], None) for number in sorted(forgotten)]
    at = {number: offset for number, offset in offsets.items() if number not in forgotten}
    if forgotten:
        read = ancestors(known, {*at, *forgotten})
        rest = known.keys() - at.keys() - read - descendants(known, at)
        at |= {number: 0 for number in _roots(known, rest) if _is_in(target, number)}
    at = _skip_lost(at, known, losses)
    at = _skip_lost(_replace_read(at, known, target), known, losses)
    ends = {number: _end(number, offset, known, target) for number, offset in at.items()}
    return Step(_sorted(_apportion(at, ends, most)), tuple(losses))


def ranges(start: Offsets, end: Offsets) -> dict[int, tuple[int, int]]:
    """Returns the half-open range of offsets that a batch has of each segment."""
    found = {number: (start.get(number, 0), offset) for number, offset in end.items()}
    return {number: bounds for number, bounds in found.items() if bounds[0] < bounds[1]}


def backlog(offsets: Offsets, known: Known, target: Offsets | None = None) -> int:
    """Returns how many rows of the map's segments are to be read."""
    return sum(max(0, _end(number, offset, known, target) - offset) for number, offset in offsets.items())


def ancestors(known: Known, of: Iterable[int]) -> set[int]:
    """Returns the known segments that precede some of these."""
    found: set[int] = set()
    wanted = {*of}
    for number in sorted(known, reverse=True):  # a successor has a higher number
        if any(one in wanted or one in found for one in known[number].successors):
            found.add(number)
    return found - wanted


def descendants(known: Known, of: Iterable[int]) -> set[int]:
    """Returns the known segments that follow some of these."""
    found: set[int] = set()
    wanted = {*of}
    after = {one for number in wanted if number in known for one in known[number].successors}
    for number in sorted(known):
        if number in after or any(one in wanted or one in found for one in known[number].predecessors):
            found.add(number)
    return found - wanted


def _before(known: Known, of: Iterable[int]) -> set[int]:
    """Returns all predecessors of some segments, and theirs, as far as they are known."""
    found: set[int] = set()
    left = [*of]
    while left:
        one = known.get(left.pop())
        new = {*one.predecessors} - found if one else set()
        found |= new
        left += new
    return found


def _finished(known: Known, is_read: Callable[[Segment], bool], read: Collection[int] = ()) -> set[int]:
    """Returns the segments that are read and of which all predecessors are: those in `read`, and what follows."""
    found = {*read}
    for number, one in sorted(known.items()):
        if is_read(one) and all(each in found or each not in known for each in one.predecessors):
            found.add(number)
    return found


def _roots(known: Known, among: Collection[int]) -> list[int]:
    return [number for number in sorted(among) if not any(one in among for one in known[number].predecessors)]


def _skip_lost(at: Offsets, known: Known, losses: list[Loss]) -> dict[int, int]:
    """Returns the offsets behind rows that are gone, which it adds to the losses."""
    found = dict(at)
    for number, offset in at.items():
        one = known.get(number)
        if one and offset < one.start:
            losses.append(Loss(number, offset, one.start))
            found[number] = one.start
        elif one and offset > one.end:
            losses.append(Loss(number, offset, one.end))
            found[number] = one.end
    return found


def _replace_read(at: Offsets, known: Known, target: Offsets | None) -> dict[int, int]:
    """Returns the map after all groups of segments that are read to their ends were replaced by their successors. One
    of a group that is not in the map was read before, or removed before the stream began, unless it waits."""
    found = dict(at)
    waiting = descendants(known, at)
    waiting |= {each for number in (*at, *waiting) if number in known for each in known[number].successors}
    for number in sorted(at):
        one = known.get(number)
        if number not in found or one is None or not one.successors or not _is_read(number, at, known):
            continue
        there = [known[each] for each in one.successors if each in known]
        if len(there) < len(one.successors) or not all(_is_in(target, each) for each in one.successors):
            continue
        group = {number}.union(*(each.predecessors for each in there))
        if all(_is_read(each, at, known) if each in at else each not in waiting for each in group):
            found = {each: offset for each, offset in found.items() if each not in group}
            found |= dict.fromkeys(one.successors, 0)
    return found


def _is_in(target: Offsets | None, number: int) -> bool:
    return target is None or number <= max(target, default=-1)


def _is_read(number: int, at: Offsets, known: Known) -> bool:
    one = known.get(number)
    return one is not None and one.ended and at[number] >= one.end


def _end(number: int, offset: int, known: Known, target: Offsets | None) -> int:
    end = known[number].end if number in known else offset  # its broker knows of it, this map does not yet
    if target is not None:
        end = min(end, target.get(number, offset))
    return max(end, offset)


def _apportion(at: Offsets, ends: Offsets, most: int | None) -> dict[int, int]:
    """Returns how far each segment is read: `most` rows together, each by its share of what there is."""
    left = {number: ends[number] - offset for number, offset in at.items()}
    total = sum(left.values())
    if most is None or total <= most:
        return dict(ends)
    given = {number: most * rows // total for number, rows in left.items()}
    rest = most - sum(given.values())
    by_remainder = sorted(left, key=lambda number: (-(most * left[number] % total), number))
    for number in by_remainder[:rest]:
        given[number] += 1
    return {number: offset + given[number] for number, offset in at.items()}


def _sorted(offsets: Offsets) -> dict[int, int]:
    return dict(sorted(offsets.items()))

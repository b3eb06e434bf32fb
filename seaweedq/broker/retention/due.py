"""Which files are due: a pure function of the policy, the files of a topic, and the acks of its subscriptions.

Whole files, the oldest ones of each segment first, and never an open segment's newest one: a chain goes on from its
last entry. An idle segment, whose newest file is due too, gets an empty entry first. A sealed one keeps its last
entry, with the table of its producers, until each successor has an entry of its own; a successor without any gets an
empty one, too. An age counts from the store's own time of a file, and SLACK_US later: an owner states an append time
that may be ahead of the store's by SLACK_US, and an excess beyond that does not count. So an owner's clock has no part.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

from seaweedq.coordination.records import RetentionPolicy
from seaweedq.segments.entry import EntryName

SLACK_US = 60_000_000
IDLE_US = 3600 * 1_000_000  # so long a segment's newest file stays its newest


@dataclass(frozen=True, slots=True)
class File:
    """An entry that counts: the offset behind its rows, its stored bytes, and the store's own time of it."""

    name: EntryName
    end: int
    size: int
    modified_us: int


@dataclass(frozen=True, slots=True)
class SegmentFiles:
    """The files of a segment from its start on. Each subscription has acked all below `acked_to`; None: there is no
    subscription. A `sealed` one `awaits` the first entry of these successors."""

    files: Sequence[File]
    acked_to: int | None = None
    sealed: bool = False
    awaits: tuple[int, ...] = ()

    @property
    def removable(self) -> Sequence[File]:
        """Returns the files that may go at all."""
        return self.files if self.sealed and not self.awaits else self.files[:-1]

    def acked(self) -> int:
        """Counts the removable files of which all subscriptions have acked all rows."""
        acked_to = self.acked_to
        return 0 if acked_to is None else _leading([file.end <= acked_to for file in self.removable])


def due(policy: RetentionPolicy, segments: Mapping[int, SegmentFiles], now_us: int) -> dict[int, int]:
    """Returns how many files of each segment are due, of those of which some are."""
    bounds = {number: _bound(policy, one) for number, one in segments.items()}
    counts = {number: _aged(policy, one, bounds[number], now_us) for number, one in segments.items()}
    _trim(policy, segments, bounds, counts)
    if policy.delete_read:
        counts = {number: max(count, segments[number].acked()) for number, count in counts.items()}
    return {number: count for number, count in counts.items() if count}


def with_empty_entries(
    segments: Mapping[int, SegmentFiles], ends: Mapping[int, int], now_us: int
) -> dict[int, SegmentFiles]:
    """Returns the segments as they would be if each idle one, and each successor without an entry, had one more entry
    without rows. `ends` has the offset behind the last file of each open segment."""
    found = {number: replace(one, awaits=()) for number, one in segments.items()}
    for number, end in ends.items():
        one = segments.get(number)
        newest = one.files[-1] if one and one.files else None
        if one and newest and newest.name.first_offset < end and newest.modified_us <= now_us - IDLE_US:
            last = File(newest.name, end, newest.size, newest.modified_us)
            empty = File(EntryName(newest.name.sequence + 1, end), end, 0, now_us)
            found[number] = replace(one, files=[*one.files[:-1], last, empty])
    return found


def wants_empty_entries(
    policy: RetentionPolicy, segments: Mapping[int, SegmentFiles], ends: Mapping[int, int], now_us: int
) -> list[int]:
    """Returns the open segments that want an entry without rows: those whose newest file has rows, is old, and would be
    due if it were not the newest, and those without any whose predecessor's last file would be due if they had one.
    `ends` has the offset behind the last file of each open segment."""
    after = with_empty_entries(segments, ends, now_us)
    counts = due(policy, after, now_us)
    idle = {n for n in ends if n in after and len(after[n].files) > len(segments[n].files) == counts.get(n)}
    taken = [number for number, one in segments.items() if one.awaits and counts.get(number) == len(one.files)]
    return sorted(idle.union(*(segments[number].awaits for number in taken)) & ends.keys())


def _bound(policy: RetentionPolicy, segment: SegmentFiles) -> int:
    """Returns how many files age and size may take."""
    unbound = not policy.keep_unread or segment.acked_to is None
    return len(segment.removable) if unbound else segment.acked()


def _aged(policy: RetentionPolicy, segment: SegmentFiles, bound: int, now_us: int) -> int:
    if policy.max_age_s is None:
        return 0
    newest_us = now_us - SLACK_US - int(policy.max_age_s * 1e6)
    return _leading([file.modified_us <= newest_us for file in segment.removable[:bound]])


def _trim(
    policy: RetentionPolicy, segments: Mapping[int, SegmentFiles], bounds: Mapping[int, int], counts: dict[int, int]
) -> None:
    """Adds files to `counts`, the oldest of all segments first, until the others are within `max_bytes`."""
    if policy.max_bytes is None:
        return
    left = sum(file.size for number, one in segments.items() for file in one.files[counts[number] :])
    heap = [(segments[n].files[count].modified_us, n) for n, count in counts.items() if count < bounds[n]]
    heapify(heap)
    while left > policy.max_bytes and heap:
        _, number = heappop(heap)
        files = segments[number].files
        left -= files[counts[number]].size
        counts[number] += 1
        if counts[number] < bounds[number]:
            heappush(heap, (files[counts[number]].modified_us, number))


def _leading(held: Sequence[bool]) -> int:
    """Counts the leading true ones."""
    return next((at for at, one in enumerate(held) if not one), len(held))

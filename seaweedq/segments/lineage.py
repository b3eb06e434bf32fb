"""Lineage: checks which segments replaced which, in a topic's files and in a broker's map of it. Pure.

In files, a seal names successors whose ranges cover all of the segment's, and a successor's files have the range that
the seal states. A segment was sealed before any later segment with some of its keys appended a row. In a map, the open
segments cover every key once, and predecessor and successor name each other.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from seaweedq.segments.audit import Bounds, Finding
from seaweedq.segments.entry import EntryMetadata, Seal, segment_folder
from seaweedq.segments.keyrange import KeyRange, tiles_key_space

Lasts = Mapping[int, EntryMetadata]  # of each segment, what its last entry says


def seal_findings(topic: str, lasts: Lasts) -> Iterator[Finding]:
    """Checks each seal by itself and against the files of the successors that it names."""
    for number, last in lasts.items():
        if last.seal is None:
            continue
        where = segment_folder(topic, number)
        if not _covers(last, last.seal):
            yield Finding(
                where,
                f"has the key range [{last.low}, {last.high}), but its seal names the successors {_listed(last.seal)}",
            )
        for successor, (low, high) in zip(last.seal.successors, last.seal.ranges, strict=False):
            there = lasts.get(successor)
            if there and (there.low, there.high) != (low, high):
                stated = f"has the key range [{there.low}, {there.high}), but the seal of segment {number} states"
                yield Finding(segment_folder(topic, successor), f"{stated} [{low}, {high})")


def unended(lasts: Lasts) -> dict[int, int]:
    """Returns the segments without a seal of whose keys a later one has files: by id, with the smallest of those.

    This happens for a moment if files are listed while a segment is replaced: its seal exists soon after.
    """
    ended = sorted((last.low, last.high, number) for number, last in lasts.items() if last.seal is None)
    found: dict[int, int] = {}
    for number, last in sorted(lasts.items()):
        at = max(0, bisect_left(ended, (last.low, 0, 0)) - 1)
        while at < len(ended) and ended[at][0] < last.high:
            if ended[at][1] > last.low and ended[at][2] < number:
                found.setdefault(ended[at][2], number)
            at += 1
    return found


def map_findings(topic: str, known: Mapping[int, Bounds]) -> Iterator[Finding]:
    """Checks a broker's map of all segments for contradictions."""
    try:
        whole = tiles_key_space(KeyRange(b.low, b.high) for b in known.values() if b.state == "open")
    except ValueError:
        whole = False
    if not whole:
        yield Finding(
            f"topics/{topic}/", "has open segments, according to the broker, that do not cover every key exactly once"
        )
    for number, bounds in known.items():
        where = segment_folder(topic, number)
        if (bounds.state == "sealed") != bool(bounds.successors):
            yield Finding(
                where, f"is {bounds.state} according to the broker, but has the successors {list(bounds.successors)}"
            )
        for successor in bounds.successors:
            if successor not in known or number not in known[successor].predecessors:
                yield Finding(
                    where, f"has the successor {successor} according to the broker, but not the other way round"
                )
        for before in bounds.predecessors:
            if before in known and number not in known[before].successors:
                yield Finding(
                    where, f"has the predecessor {before} according to the broker, but not the other way round"
                )


def _covers(last: EntryMetadata, seal: Seal) -> bool:
    """Tells whether the successors' ranges, each clipped to the segment's, cover all its keys once."""
    ranges: Sequence[tuple[int, int]] = sorted(seal.ranges)
    at = last.low
    for low, high in ranges:
        if max(low, last.low) != at or low >= high:
            return False
        at = min(high, last.high)
    return at == last.high and len(seal.successors) == len(ranges) and min(seal.successors) > last.segment


def _listed(seal: Seal) -> str:
    pairs = zip(seal.successors, seal.ranges, strict=False)
    return ", ".join(f"{number} [{low}, {high})" for number, (low, high) in pairs) or "none"

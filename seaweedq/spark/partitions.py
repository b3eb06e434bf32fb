"""The partitions of a read: parts of files and ranges of tails, each with what an executor needs to read it. Pure.

Files are cut at row groups, which all have ROW_GROUP_ROWS rows but a file's last, so that no footer is read for it.
Small parts share a partition.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from seaweedq.client.core.table_plan import FilePart, Rows
from seaweedq.segments.entry import ROW_GROUP_ROWS

TASK_ROWS = 200_000  # of a tail, that one task fetches
OPEN_BYTES = 1024 * 1024  # what it costs to open a file, as bytes


@dataclass(frozen=True, slots=True)
class Work:
    """The share of one task."""

    files: tuple[FilePart, ...] = ()
    tail: tuple[Rows, ...] = ()


def divided(parts: Sequence[FilePart], tail: Sequence[Rows], most_bytes: int, least: int | None = None) -> list[Work]:
    """Returns the work of tasks that read about `most_bytes` of files at most, and at least `least` of them where there
    is as much to cut."""
    if least:
        most_bytes = max(1, min(most_bytes, sum(map(_bytes, parts)) // least))
    cut = [piece for part in parts for piece in _cut(part, most_bytes)]
    found = [Work(files=files) for files in _shared(cut, most_bytes, least or 1)]
    return found + [Work(tail=(piece,)) for rows in tail for piece in rows.cut(TASK_ROWS)]


def _bytes(part: FilePart) -> int:
    rows = part.file.next_offset - part.file.first_offset
    return part.file.bytes * (part.end - part.start) // rows


def _cut(part: FilePart, most_bytes: int) -> Iterator[FilePart]:
    rows = part.file.next_offset - part.file.first_offset
    groups = max(1, most_bytes * rows // max(1, part.file.bytes) // ROW_GROUP_ROWS)
    step, first = groups * ROW_GROUP_ROWS, part.file.first_offset
    at = part.start
    while at < part.end:
        behind = min(first + ((at - first) // step + 1) * step, part.end)
        yield FilePart(part.file, at, behind)
        at = behind


def _shared(parts: Sequence[FilePart], most_bytes: int, least: int) -> Iterator[tuple[FilePart, ...]]:
    """Shares parts among as few tasks as there must be, all alike: the last one would get what the others could not
    take. A task has half a part more or less than its share of what is left."""
    costs = [_bytes(part) + min(OPEN_BYTES, most_bytes // 4) for part in parts]
    left, tasks = sum(costs), max(-(-sum(costs) // most_bytes), least)
    held: list[FilePart] = []
    size = 0
    for number, (part, cost) in enumerate(zip(parts, costs, strict=True)):
        if held and (size + cost / 2 > left / tasks or len(parts) - number < tasks):
            yield tuple(held)
            left, tasks = left - size, tasks - 1
            held, size = [], 0
        held.append(part)
        size += cost
    if held:
        yield tuple(held)

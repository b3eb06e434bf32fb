"""A topic's segment records, and facts that follow from them alone. Pure."""

from collections.abc import Mapping

from seaweedq.coordination.records.topics import SegmentRecord
from seaweedq.coordination.records.versioned import Versioned

Records = Mapping[int, Versioned[SegmentRecord]]  # by segment


def starts_at(records: Records, ends: Mapping[int, int], found: Mapping[int, int]) -> dict[int, int]:
    """Returns the start offset in each segment, given the first offset `found` there that reaches a time, and its end.

    From the first message that reaches the time on, all later messages count, whatever their own times are: a segment
    begins at 0 if one of its predecessors has such a message.
    """
    starts: dict[int, int] = {}
    reached: set[int] = set()
    for number in sorted(found):
        behind = any(before in reached for before in records[number].record.predecessors)
        starts[number] = 0 if behind else found[number]
        if behind or starts[number] < ends[number]:
            reached.add(number)
    return starts

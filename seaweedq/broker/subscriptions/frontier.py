"""The frontier: which segments of a topic a subscription reads now, over all splits, merges and rolls.

Pure. A segment is open to a subscription once all its predecessors are done; it is *done* when it is sealed, all of it
is acked, and all its predecessors are done too. So a key's messages come in the order in which they were acknowledged,
and what is done costs nothing any more. Ids rise along the lineage: a successor's is above its predecessors'.

A record that is not there any more, of a segment that retention has removed, counts as done; so whoever makes a
frontier must know all the records that there are.
"""

from collections.abc import Callable, Collection

from seaweedq.broker.topics.segment_records import Records
from seaweedq.coordination.records import SegmentRecord

AckedTo = Callable[[int], int]  # everything below this offset of a segment is acked


class Frontier:
    """`open` segments in the order in which they came to be so, and those that are `done`."""

    def __init__(self, records: Records, acked_to: AckedTo, done: Collection[int] = ()) -> None:
        self.done = {number for number in done if number in records}
        for number in sorted(records):
            if is_acked(records[number].record, acked_to(number)) and self._is_due(records, number):
                self.done.add(number)
        self.open = {n: None for n in sorted(records) if n not in self.done and self._is_due(records, n)}

    def advance(self, records: Records, acked_to: AckedTo) -> bool:
        """Take in what was acked and sealed. False: the records of some segments are not known here; they are to be
        read again, and then another frontier is to be made."""
        complete = True
        reached = [number for number in self.open if _has_ended(records, number, acked_to)]
        while reached:
            number = reached.pop()
            successors = records[number].record.successors if number in records else ()
            if number not in records or any(successor not in records for successor in successors):
                complete = False
                continue
            del self.open[number]
            self.done.add(number)
            for successor in successors:
                if successor not in self.done and self._is_due(records, successor):
                    self.open[successor] = None
                    if _has_ended(records, successor, acked_to):
                        reached.append(successor)
        return complete

    def _is_due(self, records: Records, number: int) -> bool:
        return all(before in self.done or before not in records for before in records[number].record.predecessors)

    def has_ended(self, records: Records, acked_to: AckedTo) -> bool:
        """Whether `advance` has something to take in."""
        return any(_has_ended(records, number, acked_to) for number in self.open)


def _has_ended(records: Records, number: int, acked_to: AckedTo) -> bool:
    return number not in records or is_acked(records[number].record, acked_to(number))


def is_acked(record: SegmentRecord, acked_to: int) -> bool:
    """Whether a segment is sealed, and acked to its end."""
    return record.state == "sealed" and acked_to >= (record.end_offset or 0)

"""The frontier: the segments of a topic that a subscription reads now, over all splits, merges and rolls.

Pure. A segment is open to a subscription once all its predecessors are done. It is *done* when it is sealed, all of it
is acked, and all its predecessors are done too. So the messages of a key come in the order in which they were
acknowledged, and done segments cost nothing. Ids rise along the lineage: a successor's id is above those of its
predecessors.

If no order is wanted (`shared`), each segment is open from the beginning, and done once it is sealed and all of it
is acked: nothing waits for its predecessors. A cursor has the acks of its own segment alone, so nothing is stored
that depends on this: after a crash the frontier comes from the records and the cursors, and a successor that was acked
before its predecessors is done again, while these are open.

A segment whose record is gone, since retention has removed it, counts as done. So a frontier must be made with all
records that exist, and is made anew if it goes on to a segment with a predecessor that it does not know. One whose
record or cursor cannot be read is `hidden`: neither open nor done, so that it is not skipped, and its successors wait.
One that was done before stays done.
"""

from collections.abc import Callable, Collection

from seaweedq.broker.topics.segment_index import Records

AckedTo = Callable[[int], int]  # everything below this offset of a segment is acked


class Frontier:
    """`open` segments in the order in which they became open, those that are `done`, and the `hidden` ones."""

    def __init__(
        self,
        records: Records,
        acked_to: AckedTo,
        done: Collection[int] = (),
        hidden: Collection[int] = (),
        in_order: bool = True,
    ) -> None:
        self.in_order = in_order
        self.done = {number for number in done if number in records or number in hidden}
        self.hidden = {number for number in hidden if number not in self.done}
        for number in sorted(records.keys() - self.hidden):
            if _has_ended(records, number, acked_to) and self._is_due(records, number):
                self.done.add(number)
        others = sorted(records.keys() - self.hidden - self.done)
        self.open = {number: None for number in others if self._is_due(records, number)}
        self._gone = {n for number in self.open for n in _successors(records, number) if n not in records}

    def advance(self, records: Records, acked_to: AckedTo) -> bool:
        """Takes in new acks and seals. Returns False if the records of some segments are not known here: the caller
        reads them again, and makes another frontier."""
        complete = self.in_order or self._open_successors(records)
        reached = [number for number in self.open if _has_ended(records, number, acked_to)]
        while reached:
            number = reached.pop()
            successors = _successors(records, number)
            if number not in records or not self._know(records, successors):
                complete = False
                continue
            del self.open[number]
            self.done.add(number)
            for successor in successors:
                if successor in self.open:  # without order it was before
                    continue
                if successor not in self.done | self.hidden and self._is_due(records, successor):
                    self.open[successor] = None
                    if _has_ended(records, successor, acked_to):
                        reached.append(successor)
        return complete

    def _know(self, records: Records, successors: tuple[int, ...]) -> bool:
        """Tells whether the records of successors are known, and in order those of their predecessors: one that is not
        was removed, or is new, since single records are looked up ahead of the watch."""
        if any(n not in records for n in successors):
            return False
        before = (b for n in successors for b in records[n].record.predecessors) if self.in_order else ()
        return all(b in records or b in self.done or b in self.hidden for b in before)

    def _open_successors(self, records: Records) -> bool:
        """Opens the successors of open segments. Returns False if some are not known here."""
        left, complete = list(self.open), True
        while left:
            for successor in self._unopened(records, left.pop()):
                if successor in records:
                    self.open[successor] = None
                    left.append(successor)
                else:
                    complete = False
        return complete

    def _unopened(self, records: Records, number: int) -> list[int]:
        known = (self.open, self.done, self.hidden, self._gone)
        return [n for n in _successors(records, number) if not any(n in some for some in known)]

    def _is_due(self, records: Records, number: int) -> bool:
        if not self.in_order:
            return True
        before = records[number].record.predecessors
        return all(n in self.done or not (n in records or n in self.hidden) for n in before)

    def has_ended(self, records: Records, acked_to: AckedTo) -> bool:
        """Whether `advance` would change anything."""
        if any(_has_ended(records, number, acked_to) for number in self.open):
            return True
        return not self.in_order and any(self._unopened(records, number) for number in self.open)


def _successors(records: Records, number: int) -> tuple[int, ...]:
    return records[number].record.successors if number in records else ()


def _has_ended(records: Records, number: int, acked_to: AckedTo) -> bool:
    """Tells whether a segment is sealed, and acked to its end, or was removed."""
    known = records.get(number)
    return known is None or (known.record.state == "sealed" and acked_to(number) >= (known.record.end_offset or 0))

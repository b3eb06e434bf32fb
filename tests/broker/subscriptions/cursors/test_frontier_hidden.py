"""Segments whose records or cursors cannot be read: a subscription neither skips them nor forgets that it was done."""

from seaweedq.broker.subscriptions.frontier import Frontier
from seaweedq.coordination.records.topics import SegmentRecord
from seaweedq.coordination.records.versioned import Versioned

OPEN = SegmentRecord(0, 10, "open", (), (), "b", None, 0)
SEALED = SegmentRecord(0, 10, "sealed", (), (1, 2), None, 5, 0, sealed_us=1)
AFTER = SegmentRecord(0, 5, "open", (0,), (), "b", None, 0)
RECORDS = {n: Versioned(one, 1) for n, one in enumerate((SEALED, AFTER, AFTER, OPEN))}
LEFT = {n: one for n, one in RECORDS.items() if n}


def test_what_follows_a_hidden_segment_waits() -> None:
    frontier = Frontier(LEFT, lambda _: 0, hidden={0})
    assert (list(frontier.open), frontier.hidden) == ([3], {0})
    assert frontier.advance(LEFT, lambda _: 0)
    assert list(frontier.open) == [3]
    assert list(Frontier(RECORDS, lambda _: 5, frontier.done).open) == [1, 2, 3], "it is readable again, and acked"


def test_a_segment_whose_cursor_is_hidden_is_neither_open_nor_done() -> None:
    frontier = Frontier(RECORDS, lambda n: 5 if n == 0 else 0, hidden={0})
    assert (list(frontier.open), frontier.done) == ([3], set())
    assert not frontier.has_ended(RECORDS, lambda _: 0)


def test_what_was_done_stays_done_while_it_is_hidden_and_after() -> None:
    done = Frontier(RECORDS, lambda n: 5 if n == 0 else 0)
    hidden = Frontier(LEFT, lambda _: 0, done.done, {0})
    assert (list(hidden.open), hidden.done, hidden.hidden) == ([1, 2, 3], {0}, set())
    assert list(Frontier(RECORDS, lambda _: 0, hidden.done).open) == [1, 2, 3], "nothing comes again"


def test_a_predecessor_that_is_not_known_yet_is_asked_for_before_its_successor_opens() -> None:
    """A successor that was looked up ahead of the watch opened before its other predecessor was read."""
    before, beside = (SegmentRecord(0, 5, "sealed", (), (2,), None, 5, 0, sealed_us=1) for _ in range(2))
    merged = SegmentRecord(0, 10, "open", (0, 1), (), "b", None, 0)
    known = {0: Versioned(before, 1), 2: Versioned(merged, 1)}
    acked = {0: 0}.get
    frontier = Frontier(known, lambda n: acked(n, 0))
    acked = {0: 5}.get
    assert not frontier.advance(known, lambda n: acked(n, 0)), "the caller reads all records again"
    found = Frontier(known | {1: Versioned(beside, 1)}, lambda n: acked(n, 0), frontier.done)
    assert list(found.open) == [1]
    removed = Frontier(known, lambda n: acked(n, 0), frontier.done)
    assert list(removed.open) == [2]

"""The frontier of a subscription over random lineages, acks and late news, against its definition. Segments that
cannot be read are neither skipped nor forgotten.
"""

from hypothesis import given
from hypothesis import strategies as st

from seaweedq.broker.subscriptions.frontier import Frontier
from seaweedq.broker.topics.segment_index import starts_at
from seaweedq.coordination.records import SegmentRecord
from seaweedq.coordination.versioned import Versioned

REPLACE = st.tuples(st.just("replace"), st.integers(0, 9), st.integers(1, 3), st.integers(1, 3), st.integers(0, 2))
STEPS = st.lists(
    st.one_of(
        REPLACE,
        st.tuples(st.just("ack"), st.integers(0, 9), st.integers(1, 2)),
        st.tuples(st.just("see"), st.integers(0, 30)),
        st.tuples(st.just("see all")),
        st.tuples(st.just("look")),
    ),
    max_size=40,
)
OPEN = SegmentRecord(0, 10, "open", (), (), "b", None, 0)
SEALED = SegmentRecord(0, 10, "sealed", (), (1, 2), None, 5, 0, sealed_us=1)
AFTER = SegmentRecord(0, 5, "open", (0,), (), "b", None, 0)
RECORDS = {n: Versioned(one, 1) for n, one in enumerate((SEALED, AFTER, AFTER, OPEN))}
LEFT = {n: one for n, one in RECORDS.items() if n}


class Lineage:
    """A topic's records as they come to be; `seen` are those that a broker knows."""

    def __init__(self, roots: int, in_order: bool = True) -> None:
        self.in_order = in_order
        self.records = {n: Versioned(_open(()), 1) for n in range(roots)}
        self.order = list(range(roots))  # the open ones by their ranges
        self.acked: dict[int, int] = {}
        self.seen = dict(self.records)

    def replace(self, at: int, count: int, parts: int, end: int) -> None:
        """Some neighbours, each with `end` messages, give way to some parts."""
        at %= len(self.order)
        sealed = self.order[at : at + count]
        fresh = [len(self.records) + n for n in range(parts)]
        for number in sealed:
            before = self.records[number].record.predecessors
            self.records[number] = Versioned(SegmentRecord(0, 1, "sealed", before, tuple(fresh), None, end, 0), 2)
        for number in fresh:
            self.records[number] = Versioned(_open(tuple(sealed)), 1)
        self.order[at : at + count] = fresh

    def acked_to(self, number: int) -> int:
        return self.acked.get(number, 0)

    def before(self, number: int) -> tuple[int, ...]:
        """The segments that must be done before."""
        return self.records[number].record.predecessors if self.in_order else ()

    def done(self) -> set[int]:
        """What is done, by the definition."""
        found: set[int] = set()
        for number, record in sorted((n, known.record) for n, known in self.records.items()):
            ended = record.state == "sealed" and self.acked_to(number) >= (record.end_offset or 0)
            if ended and found.issuperset(self.before(number)):
                found.add(number)
        return found


def _open(predecessors: tuple[int, ...]) -> SegmentRecord:
    return SegmentRecord(0, 1, "open", predecessors, (), "b", None, 0)


@given(st.integers(1, 3), STEPS, st.booleans())
def test_what_is_open_is_what_comes_behind_all_that_is_done(
    roots: int, steps: list[tuple[str, int]], in_order: bool
) -> None:
    lineage = Lineage(roots, in_order)
    frontier = Frontier(lineage.seen, lineage.acked_to, in_order=in_order)
    for what, *numbers in steps:
        if what == "replace":
            lineage.replace(*numbers)
        elif what == "ack" and frontier.open:
            number = list(frontier.open)[numbers[0] % len(frontier.open)]
            lineage.acked[number] = lineage.acked_to(number) + numbers[1]
        elif what == "see" and (number := numbers[0]) in lineage.records:
            lineage.seen[number] = lineage.records[number]
        elif what == "see all":
            lineage.seen = dict(lineage.records)
        elif what == "look" and not frontier.advance(lineage.seen, lineage.acked_to):
            lineage.seen = dict(lineage.records)
            frontier = Frontier(lineage.seen, lineage.acked_to, frontier.done, in_order=in_order)
        for number in frontier.open:
            assert frontier.done.issuperset(lineage.before(number))
        assert frontier.done <= lineage.done()
    if not frontier.advance(lineage.records, lineage.acked_to):
        raise AssertionError("all records are known")
    done = lineage.done()
    assert frontier.done == done
    due = {n for n in lineage.records if n not in done and done.issuperset(lineage.before(n))}
    assert {*frontier.open} == due
    assert not frontier.has_ended(lineage.records, lineage.acked_to)
    fresh = Frontier(lineage.records, lineage.acked_to, in_order=in_order)
    assert (fresh.done, {*fresh.open}) == (done, due)


@given(st.integers(1, 3), st.lists(REPLACE, max_size=8), st.data())
def test_records_that_retention_has_removed_hold_nothing_up(
    roots: int, steps: list[tuple[str, int]], data: st.DataObject
) -> None:
    lineage = Lineage(roots)
    for _, *numbers in steps:
        lineage.replace(*numbers)
    frontier = Frontier(lineage.records, lineage.acked_to)
    gone: set[int] = set()
    for number, record in sorted((n, known.record) for n, known in lineage.records.items()):
        if record.state == "sealed" and gone.issuperset(record.predecessors) and data.draw(st.booleans()):
            gone.add(number)
    left = {n: known for n, known in lineage.records.items() if n not in gone}
    if not frontier.advance(left, lineage.acked_to):
        frontier = Frontier(left, lineage.acked_to, frontier.done)
    assert {n for n in left if gone.issuperset(left[n].record.predecessors)} <= {*frontier.open} | frontier.done
    assert not gone & {*frontier.open}


@given(st.integers(1, 3), st.lists(REPLACE, max_size=10), st.data())
def test_behind_the_first_message_that_reaches_a_time_all_counts(
    roots: int, steps: list[tuple[str, int]], data: st.DataObject
) -> None:
    lineage = Lineage(roots)
    for _, *numbers in steps:
        lineage.replace(*numbers)
    ends = {n: known.record.end_offset for n, known in lineage.records.items()}
    ends = {n: 2 if end is None else end for n, end in ends.items()}
    found = {n: data.draw(st.integers(0, end)) for n, end in ends.items()}
    starts = starts_at(lineage.records, ends, found)
    behind: set[int] = set()
    for number, record in sorted((n, known.record) for n, known in lineage.records.items()):
        if behind & {*record.predecessors}:
            assert starts[number] == 0
            behind.add(number)
        else:
            assert starts[number] == found[number]
            if found[number] < ends[number]:
                behind.add(number)


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


def test_an_unknown_predecessor_is_asked_for_before_its_successor_opens() -> None:
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

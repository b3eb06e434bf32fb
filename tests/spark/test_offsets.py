"""The offsets of a stream over any history of its topic: each row once, predecessors first, a bounded map."""

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from seaweedq.spark.offsets import (
    Loss,
    Segment,
    Step,
    advance,
    ancestors,
    backlog,
    from_time,
    initial,
    latest,
    needed,
    ranges,
    starts,
)
from tests.support.tiers import examples


class Topic:
    """Segments as brokers have them: `known` is the map, `removed` what retention has left of others."""

    def __init__(self, count: int) -> None:
        self.known = {number: Segment(number, 0, 0, False) for number in range(count)}
        self.removed: dict[int, Segment] = {}
        self.newest = count

    @property
    def open(self) -> list[int]:
        return [one.id for one in self.known.values() if not one.ended]

    def change(self, number: int, **what: object) -> None:
        old = self.known[number]
        facts = {name: getattr(old, name) for name in Segment.__slots__}
        self.known[number] = Segment(**(facts | what))

    def publish(self, number: int, count: int) -> None:
        self.change(number, end=self.known[number].end + count)

    def replace(self, numbers: list[int], count: int) -> None:
        made = tuple(range(self.newest, self.newest + count))
        self.newest += count
        for number in numbers:
            self.change(number, ended=True, successors=made)
        for number in made:
            self.known[number] = Segment(number, 0, 0, False, tuple(numbers))

    def remove(self, number: int) -> None:
        """As retention does once a sealed segment has no rows left: after its predecessors."""
        self.change(number, start=self.known[number].end)
        if self.known.keys().isdisjoint(self.known[number].predecessors):
            self.removed[number] = self.known.pop(number)

    def seen_from(self, offsets: Mapping[int, int]) -> dict[int, Segment]:
        """The map, with what is remembered of the removed ones that a reader asks for."""
        found = dict(self.known)
        while asked := {number for number in needed(offsets, found) if number in self.removed}:
            found |= {number: self.removed[number] for number in asked}
        return found


class Histories(RuleBasedStateMachine):
    """A topic that changes, and a stream that reads it, with limits, restarts and repeated batches."""

    @initialize(count=st.integers(1, 3))
    def begin(self, count: int) -> None:
        self.topic = Topic(count)
        self.committed = initial(self.topic.known, {})
        self.logged: dict[int, int] | None = None  # a batch whose end is in the offset log, and that is not committed
        self.target: dict[int, int] | None = None
        self.got: dict[int, int] = {}  # how far each segment was delivered
        self.delivered: set[tuple[int, int]] = set()

    @rule(data=st.data(), count=st.integers(1, 20))
    def publish(self, data: st.DataObject, count: int) -> None:
        self.topic.publish(data.draw(st.sampled_from(self.topic.open)), count)

    @rule(data=st.data(), parts=st.integers(1, 3))
    def split_or_roll(self, data: st.DataObject, parts: int) -> None:
        self.topic.replace([data.draw(st.sampled_from(self.topic.open))], parts)

    @precondition(lambda self: len(self.topic.open) > 1)
    @rule(data=st.data())
    def merge(self, data: st.DataObject) -> None:
        numbers = data.draw(st.lists(st.sampled_from(self.topic.open), min_size=2, max_size=2, unique=True))
        self.topic.replace(sorted(numbers), 1)

    @rule(data=st.data())
    def retain(self, data: st.DataObject) -> None:
        """Takes rows that are read, and segments of which nothing is left."""
        number = data.draw(st.sampled_from(sorted(self.topic.known)))
        one = self.topic.known[number]
        before = ancestors(self.topic.known, {number})
        if any(self.topic.known[each].start < self.topic.known[each].end for each in before):
            return  # retention goes by time
        safe = min(self.got.get(number, 0), self.committed.get(number, one.end if number in self.read() else 0))
        if one.ended and safe == one.end:
            self.topic.remove(number)
        else:
            self.topic.change(number, start=max(one.start, safe))

    def read(self) -> set[int]:
        """The segments that have left the map."""
        return {n for n in self.topic.known if n in self.got or self.topic.known[n].end == 0} - self.committed.keys()

    @precondition(lambda self: self.logged is None and self.target is None)
    @rule(data=st.data(), by_time=st.booleans())
    def begin_anew(self, data: st.DataObject, by_time: bool) -> None:
        """Another stream, from the beginning or from a time; the rows before it count as delivered."""
        known, found, reached = self.topic.known, dict[int, int](), set[int]()
        for number, one in sorted(known.items()):
            behind = not by_time or not reached.isdisjoint(one.predecessors)
            found[number] = one.start if behind else data.draw(st.integers(one.start, one.end))
            if behind or found[number] < one.end:
                reached.add(number)
        self.committed = from_time(known, found) if by_time else initial(known, {})
        self.got = found | {number: one.end for number, one in self.topic.removed.items()}

    @precondition(lambda self: self.logged is None)
    @rule(most=st.none() | st.integers(1, 25))
    def log(self, most: int | None) -> None:
        step = advance(self.committed, self.topic.seen_from(self.committed), most, self.target)
        assert step.losses == ()
        rows = sum(end - start for start, end in ranges(self.committed, step.offsets).values())
        assert most is None or rows <= most
        assert rows == min(rows if most is None else most, rows)
        self.logged = step.offsets

    @precondition(lambda self: self.logged is not None)
    @rule()
    def crash_after_the_log(self) -> None:
        """The batch is planned again, from the two maps."""

    @precondition(lambda self: self.logged is not None)
    @rule()
    def commit(self) -> None:
        assert self.logged is not None
        self.deliver(self.committed, self.logged)
        self.committed, self.logged = self.logged, None

    @precondition(lambda self: self.target is None and self.logged is None)
    @rule()
    def available_now(self) -> None:
        """Reads to the ends of now, whatever is published and replaced meanwhile."""
        self.target = {number: one.end for number, one in self.topic.known.items()}

    @precondition(lambda self: self.target is not None and self.logged is None)
    @rule(data=st.data())
    def available_now_ends(self, data: st.DataObject) -> None:
        assert self.target is not None
        for _ in range(1_000):
            step = advance(self.committed, self.topic.seen_from(self.committed), 30, self.target)
            if step.offsets == self.committed:
                break
            self.deliver(self.committed, step.offsets)
            self.committed = step.offsets
        else:
            raise AssertionError("it goes on for ever")
        for number, end in self.target.items():
            assert self.got.get(number, 0) >= end or end == 0 or number in self.topic.removed
        self.target = None

    def deliver(self, start: Mapping[int, int], end: Mapping[int, int]) -> None:
        before = dict(self.got)
        for number, (first, last) in ranges(start, end).items():
            one = self.topic.known[number]
            assert one.start <= first, "retention has taken what is read"
            assert first == before.get(number, 0), "each row once, in order"
            assert last <= one.end
            assert self.target is None or last <= self.target[number]
            for each in one.predecessors:
                ended = self.topic.known.get(each) or self.topic.removed[each]
                assert before.get(each, 0) == ended.end, "a predecessor was not read to its end by an earlier batch"
            self.got[number] = last

    @invariant()
    def bounded(self) -> None:
        everything = self.topic.known | self.topic.removed
        waiting = [n for n in self.committed if everything[n].ended]
        assert len(self.committed) - len(waiting) <= len(self.topic.open)
        cover = sum(1 for n in self.committed if not everything[n].successors)
        assert cover <= len(self.topic.open)

    def teardown(self) -> None:
        """In the end all is read, and the map has the open segments alone."""
        if not hasattr(self, "topic"):
            return
        if self.logged is not None:
            self.commit()
        self.target = None
        for _ in range(1_000):
            step = advance(self.committed, self.topic.seen_from(self.committed), None)
            assert step.losses == ()
            if step.offsets == self.committed:
                break
            self.deliver(self.committed, step.offsets)
            self.committed = step.offsets
        for number, one in (self.topic.known | self.topic.removed).items():
            assert self.got.get(number, 0) == one.end
        assert sorted(self.committed) == sorted(self.topic.open)


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=examples(80), stateful_step_count=40, deadline=None)


def segments(*given: Segment) -> dict[int, Segment]:
    return {one.id: one for one in given}


SPLIT = segments(
    Segment(0, 0, 10, True, (), (1, 2)),
    Segment(1, 0, 5, False, (0,)),
    Segment(2, 0, 7, False, (0,)),
    Segment(3, 2, 4, False),
)


def test_where_a_stream_begins() -> None:
    assert initial(SPLIT, {}) == {0: 0, 3: 2}
    assert initial(SPLIT, {0: 4}) == {0: 4, 3: 2}
    assert initial(SPLIT, {1: 3}) == {1: 3, 2: 0, 3: 2}, "what precedes it is read, its sibling is not"
    assert latest(SPLIT) == {1: 5, 2: 7, 3: 4}
    assert from_time(SPLIT, {0: 4, 1: 0, 2: 0, 3: 4}) == {0: 4, 3: 4}
    assert from_time(SPLIT, {0: 10, 1: 2, 2: 7, 3: 2}) == {1: 2, 2: 7, 3: 2}
    assert starts(SPLIT, initial(SPLIT, {1: 3})) == {0: 10, 1: 3, 2: 0, 3: 2}
    assert starts(SPLIT, initial(SPLIT, {0: 3})) == {0: 3, 1: 0, 2: 0, 3: 2}


def test_a_successor_waits_for_the_batch_after_its_predecessors_last_one() -> None:
    assert advance({0: 4, 3: 4}, SPLIT).offsets == {0: 10, 3: 4}
    assert advance({0: 10, 3: 4}, SPLIT).offsets == {1: 5, 2: 7, 3: 4}


@given(st.dictionaries(st.integers(0, 9), st.integers(0, 1_000), min_size=1), st.integers(1, 500))
def test_a_limit_is_shared_in_proportion_to_what_there_is(ends: dict[int, int], most: int) -> None:
    known = {number: Segment(number, 0, end, False) for number, end in ends.items()}
    got = advance(dict.fromkeys(ends, 0), known, most).offsets
    total = sum(ends.values())
    assert sum(got.values()) == min(most, total)
    for number, end in ends.items():
        assert got[number] == end or abs(got[number] - most * end / total) < 1


@pytest.mark.parametrize(
    ("offsets", "known", "step"),
    [
        ({0: 3}, segments(Segment(0, 5, 9, False)), Step({0: 9}, (Loss(0, 3, 5),))),
        ({0: 12}, segments(Segment(0, 5, 9, False)), Step({0: 9}, (Loss(0, 12, 9),))),
        ({0: 9}, segments(Segment(0, 9, 9, True, (), (1,)), Segment(1, 0, 2, False, (0,))), Step({1: 2}, ())),
        (
            {0: 8},
            segments(Segment(0, 9, 9, True, (), (1,)), Segment(1, 0, 2, False, (0,))),
            Step({1: 2}, (Loss(0, 8, 9),)),
        ),
        ({0: 9}, segments(Segment(1, 0, 2, False, (0,))), Step({1: 2}, (Loss(0, 9, None),))),
        ({7: 9}, segments(Segment(1, 0, 2, False)), Step({7: 9}, ())),
    ],
    ids=["start above", "end below", "removed and read", "removed and not read", "forgotten", "newer than the map"],
)
def test_losses(offsets: dict[int, int], known: dict[int, Segment], step: Step) -> None:
    assert advance(offsets, known) == step


MERGED = segments(Segment(0, 0, 3, True, (), (2,)), Segment(1, 0, 9, True, (), (2,)), Segment(2, 0, 4, False, (0, 1)))


def test_a_merged_segment_does_not_wait_for_one_removed_before_the_stream() -> None:
    known = {number: MERGED[number] for number in (0, 2)}
    assert initial(known, {}) == {0: 0}
    assert advance({0: 3}, known).offsets == {2: 4}
    assert from_time(MERGED, {0: 1, 1: 9, 2: 0}) == {0: 1}
    assert advance({0: 3}, MERGED).offsets == {2: 4}, "no row of the time was in the other one"
    assert advance({0: 3, 1: 5}, known) == Step({2: 4}, (Loss(1, 5, None),))


def test_a_merged_segment_waits_for_a_removed_one_that_is_yet_to_come() -> None:
    """Of the history 1, 2, 3, 4 all are removed; 4 and 0 were merged to 5, and the stream stands in 1."""
    removed = segments(
        Segment(1, 9, 9, True, (), (2,)),
        Segment(2, 9, 9, True, (1,), (3,)),
        Segment(3, 9, 9, True, (2,), (4,)),
        Segment(4, 9, 9, True, (3,), (5,)),
    )
    known = segments(Segment(0, 0, 3, True, (), (5,)), Segment(5, 0, 4, False, (0, 4)))
    offsets: dict[int, int] = {0: 3, 1: 9}
    seen = []
    for _ in range(5):
        found = dict(known)
        while asked := needed(offsets, found):
            found |= {number: removed[number] for number in asked}
        offsets = advance(offsets, found).offsets
        seen.append(sorted(offsets))
    assert seen == [[0, 2], [0, 3], [0, 4], [5], [5]]


def test_a_stream_begins_behind_what_retention_has_taken() -> None:
    known = segments(Segment(0, 9, 9, True, (), (1,)), Segment(1, 5, 7, False, (0,)))
    assert initial(known, {}) == {1: 5}
    assert from_time(known, {0: 9, 1: 0}) == {1: 5}


def test_a_time_skips_no_empty_segment_between_others() -> None:
    known = segments(
        Segment(0, 0, 3, True, (), (1,)), Segment(1, 0, 0, True, (0,), (2,)), Segment(2, 0, 4, False, (1,))
    )
    assert from_time(known, {0: 1, 1: 0, 2: 0}) == {0: 1}


def test_what_is_needed_of_removed_segments() -> None:
    known = segments(Segment(5, 0, 2, False, (4,)))
    assert needed({0: 9}, known) == {0}
    known |= segments(Segment(0, 9, 9, True, (), (4,)))
    assert needed({0: 9}, known) == needed({0: 3}, known) == {4}, "what is lost ends it, too"
    assert needed({0: 9}, known | segments(Segment(4, 0, 0, True, (0,), (5,)))) == set()


def test_the_backlog() -> None:
    assert backlog({0: 4, 3: 4}, SPLIT) == 6
    assert backlog({0: 4, 3: 2}, SPLIT, {0: 5, 3: 4}) == 3


def test_a_loss_says_what_is_gone() -> None:
    assert str(Loss(3, 4, 9)) == "segment 3, offsets 4 to 9"
    assert str(Loss(3, 4, None)) == "segment 3 from offset 4 on, which brokers no longer know"
    assert str(Loss(3, 9, 4)) == "segment 3 ends at 4, although it was read up to 9"


def test_a_merged_segment_waits_for_both_a_target_for_none_that_came_later() -> None:
    known = MERGED
    assert advance({0: 3, 1: 5}, known, 2).offsets == {0: 3, 1: 7}
    assert advance({0: 3, 1: 7}, known).offsets == {0: 3, 1: 9}
    assert advance({0: 3, 1: 9}, known, target={0: 3, 1: 9}).offsets == {0: 3, 1: 9}
    assert advance({0: 3, 1: 9}, known).offsets == {2: 4}

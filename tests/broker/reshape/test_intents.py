"""Intents as records: what may be planned, what each transaction compares and writes; whoever is behind writes nothing,
and the open ranges tile the key space whatever is planned, undone, committed and finished by whom.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from seaweedq.broker.reshape import intents
from seaweedq.broker.reshape.intents import MAX_PARTS, MAX_SUCCESSORS, Transaction
from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.topics.invariants import broken_by, broken_in_topic
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Put, check_transaction
from seaweedq.coordination.records import Intent, SegmentRecord, Successor, TopicConfig, TopicRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import InvalidRequest, SeaweedqError, SegmentConflict, SegmentNotFound
from seaweedq.segments.keyrange import KEY_SPACE, KeyRange, tile, tiles_key_space
from tests.support.brokers.stored import record_of
from tests.support.tiers import examples

TOPIC = Topic.from_record("t", Versioned(TopicRecord(3, "active", TopicConfig(), 0), 7))
Records = dict[int, Versioned[SegmentRecord]]


def segments(count: int, **more: Any) -> Records:
    """Open segments of one size that tile the key space."""
    return {
        n: Versioned(SegmentRecord(r.low, r.high, "open", (), (), "x", None, 0, **more), 10 + n)
        for n, r in enumerate(tile(count))
    }


def written(transaction: Transaction) -> dict[int, SegmentRecord]:
    """The records that it writes, by segment."""
    found = {}
    for put in transaction.writes:
        name, incarnation, number = keys.SEGMENTS.parse(put.key)
        assert (name, incarnation) == ("t", 3)
        found[number] = record_of(keys.SEGMENTS, put.value)
    return found


def _plain(records: Records) -> list[SegmentRecord]:
    return [known.record for known in records.values()]


def finished(records: Records, intent: Intent, ends: int = 100) -> dict[int, SegmentRecord]:
    successors = {s.id: intents.NewSegment(s.owner or "x", ()) for s in intent.successors}
    ended = intents.Ends(dict.fromkeys(intent.segments, ends), at_us=5)
    return written(intents.finish(TOPIC, records, intent, ended, successors))


def test_a_split_names_the_ranges_and_hints_of_its_successors() -> None:
    whole = segments(1)
    intent = intents.new_intent(whole, [0], [10, 20], 5, ["a", None])
    assert intent == Intent(
        5, "planned", (0,), (Successor(5, 0, 10, "a"), Successor(6, 10, 20), Successor(7, 20, KEY_SPACE))
    )


def test_a_merge_is_in_the_order_of_the_ranges_however_it_was_asked_for() -> None:
    intent = intents.new_intent(segments(4), [3, 1, 2], [], 4)
    assert intent.segments == (1, 2, 3)
    assert [(s.low, s.high) for s in intent.successors] == [(tile(4)[1].low, KEY_SPACE)]


def test_a_roll_has_one_successor_on_the_same_range() -> None:
    (only,) = intents.new_intent(segments(2), [1], [], 2).successors
    assert (only.low, only.high) == (tile(2)[1].low, KEY_SPACE)


def sealed(records: Records) -> None:
    records[1] = Versioned(replace(records[1].record, state="sealed", successors=(7, 8)), 3)


def locked(records: Records) -> None:
    records[1] = Versioned(replace(records[1].record, intent=Intent(9, "planned", (1,), (Successor(9, 0, 1),))), 3)


def committed(records: Records) -> None:
    records[1] = Versioned(replace(records[1].record, intent=Intent(9, "committed", (1,), (Successor(9, 0, 1),))), 3)


def many_parts(records: Records) -> None:
    low = records[1].record.low
    records[1] = Versioned(replace(records[1].record, cuts=tuple(range(low + 1, low + MAX_PARTS + 1))), 3)


@pytest.mark.parametrize(
    ("harm", "wanted", "points", "error", "says"),
    [
        (None, [7], [], SegmentNotFound, "no segment 7"),
        (None, [1, 7], [], SegmentNotFound, "no segment 7"),
        (sealed, [1], [], SegmentConflict, r"was replaced by the segments \[7, 8\]"),
        (sealed, [0, 1], [], SegmentConflict, "was replaced by"),
        (locked, [1], [], SegmentConflict, "already being replaced"),
        (committed, [1], [], SegmentConflict, "already being replaced"),
        (locked, [0, 1], [], SegmentConflict, "already being replaced"),
        (many_parts, [1], [], SegmentConflict, "65 tables of producers' sequence numbers"),
        (many_parts, [0, 1], [], SegmentConflict, "66 tables of producers' sequence numbers"),
        (None, [], [], InvalidRequest, "name 1 to"),
        (None, [1, 1], [], InvalidRequest, "different segments"),
        (None, [0, 2], [], InvalidRequest, "only segments with adjacent"),
        (None, [0, 1, 3], [], InvalidRequest, "only segments with adjacent"),
        (None, [0], [0], InvalidRequest, "must be in ascending order"),
        (None, [0], [tile(4)[0].high], InvalidRequest, "must be in ascending order"),
        (None, [0], [5, 5], InvalidRequest, "must be in ascending order"),
        (None, [0], [6, 5], InvalidRequest, "must be in ascending order"),
        (None, [0], [-1], InvalidRequest, "must be in ascending order"),
        (None, [3], [KEY_SPACE], InvalidRequest, "must be in ascending order"),
        (None, [3], [2**40], InvalidRequest, "must be in ascending order"),
        (None, [0], range(1, MAX_SUCCESSORS + 1), InvalidRequest, "create 33 segments"),
    ],
)
def test_what_can_not_be_planned(
    harm: Any, wanted: Sequence[int], points: Sequence[int], error: type[SeaweedqError], says: str
) -> None:
    records = segments(4)
    if harm:
        harm(records)
    with pytest.raises(error, match=says):
        intents.new_intent(records, wanted, points, 4)


def test_as_many_successors_and_parts_as_are_allowed() -> None:
    assert len(intents.new_intent(segments(1), [0], range(1, MAX_SUCCESSORS), 1).successors) == MAX_SUCCESSORS
    records = segments(1, cuts=tuple(range(1, MAX_PARTS)))
    assert intents.new_intent(records, [0], [], 1).successors


def test_one_hash_can_not_be_split() -> None:
    records = {0: Versioned(SegmentRecord(5, 6, "open", (), (), "x", None, 0), 1)}
    with pytest.raises(InvalidRequest, match="must be in ascending order"):
        intents.new_intent(records, [0], [5], 1)


@pytest.mark.parametrize(("old", "new"), [(1, MAX_SUCCESSORS), (MAX_SUCCESSORS, 1), (25, 25), (MAX_SUCCESSORS, 20)])
def test_the_largest_changes_fit_in_one_transaction(old: int, new: int) -> None:
    """With what its writer adds: that it leads or lives, the counter, and a comparison for each new owner."""
    records = segments(64)
    points = list(range(1, new))
    intent = intents.new_intent(records, range(old), points, 64)
    planned = intents.plan(TOPIC, records, intent)
    successors = {s.id: intents.NewSegment(f"b{s.id}", ()) for s in intent.successors}
    end = intents.finish(TOPIC, records, intent, intents.Ends(dict.fromkeys(range(old), 0), 0), successors)
    check_transaction([*planned.compares, *[Compare("x", 0)] * 2], [*planned.writes, Put("counter", b"")])
    check_transaction([*end.compares, *[Compare("x", 0)] * (1 + len(successors))], end.writes)


def test_what_could_not_be_finished_in_one_transaction_is_not_planned() -> None:
    with pytest.raises(InvalidRequest, match=f"name 1 to {MAX_SUCCESSORS} different segments"):
        intents.new_intent(segments(64), range(64), [], 64)
    with pytest.raises(InvalidRequest, match="cannot be replaced by 26 segments in one step"):
        intents.new_intent(segments(64), range(25), range(1, 26), 64)


def test_what_finishing_writes() -> None:
    records = segments(3)
    bound = tile(3)[1].low
    intent = intents.new_intent(records, [0, 1], [bound - 10, bound + 10], 3, ["a", "b", "c"])
    after = finished(records, intent)
    assert {n: (r.state, r.owner, r.end_offset, r.successors, r.intent, r.sealed_us) for n, r in after.items()} == {
        0: ("sealed", None, 100, (3, 4), None, 5),
        1: ("sealed", None, 100, (4, 5), None, 5),
        3: ("open", "a", None, (), None, None),
        4: ("open", "b", None, (), None, None),
        5: ("open", "c", None, (), None, None),
    }
    assert {n: after[n].predecessors for n in (3, 4, 5)} == {3: (0,), 4: (0, 1), 5: (1,)}


def test_only_what_is_planned_is_undone() -> None:
    records = segments(1)
    with pytest.raises(AssertionError):
        intents.undo(TOPIC, records, replace(intents.new_intent(records, [0], [], 1), state="committed"))


class Coordinated(RuleBasedStateMachine):
    """Writers who saw the records at any time plan, undo, move, commit and finish; coordination compares revisions."""

    @initialize(count=st.integers(1, 4))
    def begin(self, count: int) -> None:
        self.now = segments(count)
        self.revision = 100
        self.next_id = count
        self.views: list[Records] = [dict(self.now)]
        self.ends: dict[int, int] = {}

    def view(self, data: st.DataObject) -> Records:
        """The records as they were for somebody: mostly as they are."""
        return self.views[data.draw(st.sampled_from([-1, -1, -1, 0, len(self.views) // 2]))]

    def commit(self, transaction: Transaction) -> bool:
        for compare in transaction.compares:
            if compare.key == "topics/t":
                continue
            _, _, number = keys.SEGMENTS.parse(compare.key)
            if (self.now[number].revision if number in self.now else 0) != compare.revision:
                return False
        written_now = written(transaction)
        before = {number: self.now[number].record if number in self.now else None for number in written_now}
        assert broken_by(before, written_now, alive=True) == []
        self.revision += 1
        for number, record in written(transaction).items():
            self.now[number] = Versioned(record, self.revision)
        self.views.append(dict(self.now))
        return True

    @rule(data=st.data())
    def plan(self, data: st.DataObject) -> None:
        records = self.view(data)
        known = sorted(records)
        wanted = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=3))
        points = sorted(data.draw(st.sets(st.integers(1, 63).map(lambda n: n * KEY_SPACE // 64), max_size=3)))
        try:
            intent = intents.new_intent(records, wanted, points, self.next_id)
        except SeaweedqError:
            return
        free = all(self.now[n].revision == records[n].revision for n in intent.segments)
        assert self.commit(intents.plan(TOPIC, records, intent)) == free
        self.next_id += len(intent.successors)

    def intents(self, records: Records, state: str) -> list[Intent]:
        """Those of a state that stand in some record."""
        found = {r.intent.id: r.intent for r in _plain(records) if r.intent and r.intent.state == state}
        return [found[id] for id in sorted(found)]

    @rule(data=st.data(), end=st.sampled_from(["undo", "commit"]))
    def decide(self, data: st.DataObject, end: str) -> None:
        records = self.view(data)
        if not (found := self.intents(records, "planned")):
            return
        intent = data.draw(st.sampled_from(found))
        still = intents.locks(self.now, intent)
        unmoved = all(self.now[n].revision == records[n].revision for n in intent.segments)
        done = self.commit(getattr(intents, end)(TOPIC, records, intent))
        assert done == (still and unmoved)

    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        """To another owner; what is planned is undone with it."""
        records = self.view(data)
        number = data.draw(st.sampled_from([n for n, known in records.items() if known.record.state == "open"]))
        record, revision = records[number].record, records[number].revision
        if self.now[number].revision != revision:
            return
        if record.intent and record.intent.state == "planned":
            assert self.commit(intents.undo(TOPIC, records, record.intent))
            record = replace(record, intent=None)
        self.revision += 1
        self.now[number] = Versioned(replace(record, owner=data.draw(st.sampled_from("xyz"))), self.revision)
        self.views.append(dict(self.now))

    @rule(data=st.data(), end=st.integers(0, 1000))
    def finish(self, data: st.DataObject, end: int) -> None:
        records = self.view(data)
        if not (found := self.intents(records, "committed")):
            return
        intent = data.draw(st.sampled_from(found))
        successors = {s.id: intents.NewSegment("x", ()) for s in intent.successors}
        ended = intents.Ends(dict.fromkeys(intent.segments, end), 0)
        if self.commit(intents.finish(TOPIC, records, intent, ended, successors)):
            for number in intent.segments:
                assert number not in self.ends, "it was ended twice"
                self.ends[number] = end

    @invariant()
    def open_ranges_tile_the_key_space(self) -> None:
        if hasattr(self, "now"):
            open_ = [one for one in _plain(self.now) if one.state == "open"]
            assert tiles_key_space(KeyRange(one.low, one.high) for one in open_)
            assert broken_in_topic({number: known.record for number, known in self.now.items()}) == []

    @invariant()
    def an_intent_stands_in_all_its_records_or_in_none(self) -> None:
        for record in _plain(getattr(self, "now", {})):
            if record.intent:
                assert intents.locks(self.now, record.intent)
                assert record.state == "open"

    @invariant()
    def lineage_is_a_graph_without_circles_and_both_ends_agree(self) -> None:
        now = getattr(self, "now", {})
        for number, record in ((number, known.record) for number, known in now.items()):
            assert all(before < number for before in record.predecessors), "ids rise along the lineage"
            assert all(number in now[before].record.successors for before in record.predecessors)
            assert all(number in now[after].record.predecessors for after in record.successors)
            assert (record.state == "sealed") == (record.end_offset is not None) == bool(record.successors)
            if record.end_offset is not None:
                assert record.end_offset == self.ends[number]
                heirs = sorted((now[s].record.low, now[s].record.high) for s in record.successors)
                assert heirs[0][0] <= record.low
                assert heirs[-1][1] >= record.high
                assert all(a[1] == b[0] for a, b in pairwise(heirs))


Coordinated.TestCase.settings = settings(max_examples=examples(80), stateful_step_count=40, deadline=None)
test_coordinated = Coordinated.TestCase

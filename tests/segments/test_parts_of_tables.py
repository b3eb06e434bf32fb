"""Tables by part: what a split clips, what a merge keeps apart, what an encoding carries; where a repeat lies."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seaweedq.broker.publish.batch_split import locate, split, split_again
from seaweedq.broker.rpc.messages import Outcome
from seaweedq.broker.topics.segment_index import Routing
from seaweedq.coordination.records import SegmentRecord
from seaweedq.levels import HIGHEST
from seaweedq.segments.keyrange import KEY_SPACE, KeyRange
from seaweedq.segments.producers import Duplicate, New, OutOfOrder, ProducerTables, inherited_cuts
from tests.support.reshape.lineage_world import Request

POINTS = st.sets(st.integers(1, 99), max_size=6).map(sorted)


def tables(segment: int, low: int, high: int, *cuts: int) -> ProducerTables:
    return ProducerTables.empty(segment, KeyRange(low, high), cuts)


def ranges(found: ProducerTables) -> list[tuple[int, int]]:
    return [(t.key_range.low, t.key_range.high) for t in found.parts]


def heir(segment: int, low: int, high: int, *before: ProducerTables) -> ProducerTables:
    key_range = KeyRange(low, high)
    return ProducerTables.inherited(segment, key_range, inherited_cuts(key_range, before), before)


def test_a_split_gives_the_table_to_both_and_each_goes_on_alone() -> None:
    old = tables(0, 0, 100)
    old.record(0, "p", 0, 4, 7, 5, 1)
    left, right = heir(1, 0, 50, old), heir(2, 50, 100, old)
    assert (ranges(left), ranges(right)) == ([(0, 50)], [(50, 100)])
    assert left.judge(0, "p", 0, 4, 3) == right.judge(50, "p", 0, 4, 2) == Duplicate(0, 7)
    left.record(0, "p", 5, 5, 0, 1, 2)
    assert left.judge(0, "p", 5, 5, 1) == Duplicate(1, 0)
    assert right.judge(50, "p", 5, 5, 1) == New()
    assert old.judge(0, "p", 5, 5, 1) == New()


def test_parts_are_clipped_to_the_range_of_the_heir() -> None:
    old = tables(0, 0, 100, 20, 40, 60)
    for part in (0, 20, 40, 60):
        old.record(part, "p", part, part, part, 1, 1)
    assert ranges(heir(1, 0, 50, old)) == [(0, 20), (20, 40), (40, 50)]
    assert ranges(heir(2, 50, 100, old)) == [(50, 60), (60, 100)]
    assert ranges(heir(3, 20, 40, old)) == [(20, 40)]
    assert heir(2, 50, 100, old).judge(50, "p", 40, 40, 1) == Duplicate(0, 40)
    assert heir(2, 50, 100, old).judge(50, "p", 60, 60, 1) == New()


def test_a_merge_keeps_parts_apart_unless_two_neighbours_know_nobody() -> None:
    left, right = tables(1, 0, 50, 25), tables(2, 50, 100, 75)
    assert ranges(heir(3, 0, 100, left, right)) == [(0, 100)]
    right.record(50, "p", 0, 0, 0, 1, 1)
    merged = heir(3, 0, 100, right, left)
    assert ranges(merged) == [(0, 50), (50, 75), (75, 100)]
    assert merged.judge(0, "p", 0, 0, 1) == New()
    assert merged.judge(50, "p", 0, 0, 1) == Duplicate(2, 0)


def test_both_sides_of_a_merge_may_know_a_request_at_their_own_ids() -> None:
    left, right = tables(1, 0, 50), tables(2, 50, 100)
    left.record(0, "p", 0, 9, 3, 6, 1)
    right.record(50, "p", 0, 9, 8, 4, 1)
    merged = heir(3, 0, 100, left, right)
    assert merged.judge(0, "p", 0, 9, 6) == Duplicate(1, 3)
    assert merged.judge(50, "p", 0, 9, 4) == Duplicate(2, 8)
    rolled = heir(4, 0, 100, merged)
    assert rolled.judge(50, "p", 0, 9, 4) == Duplicate(2, 8)


def test_the_segment_itself_compares_the_count_and_a_later_one_can_not() -> None:
    old = tables(0, 0, 100)
    old.record(0, "p", 0, 9, 0, 6, 1)
    assert old.judge(0, "p", 0, 9, 5) == OutOfOrder(9)
    assert heir(1, 0, 100, old).judge(0, "p", 0, 9, 5) == Duplicate(0, 0)


def test_what_a_part_does_not_know_stays_new_and_older_is_out_of_order() -> None:
    old = tables(0, 0, 100, 50)
    old.record(0, "p", 5, 9, 0, 5, 1)
    merged = heir(1, 0, 100, old)
    assert merged.judge(0, "p", 0, 4, 1) == OutOfOrder(9)
    assert merged.judge(50, "p", 0, 4, 1) == New()


@given(st.data())
def test_an_encoding_carries_every_part(data: st.DataObject) -> None:
    cuts = data.draw(POINTS)
    old = ProducerTables.empty(4, KeyRange(0, 100), cuts)
    parts = [low for low, _ in ranges(old)]
    for at, (part, producer) in enumerate(
        data.draw(st.lists(st.tuples(st.sampled_from(parts), st.sampled_from("ab"))))
    ):
        old.record(part, producer, at, at, at, 1, at)
    again = ProducerTables.decode(old.encode(HIGHEST), 4)
    assert ranges(again) == ranges(old)
    assert again.encode(HIGHEST) == old.encode(HIGHEST)
    assert inherited_cuts(KeyRange(0, 100), [again]) == inherited_cuts(KeyRange(0, 100), [old])
    for part in parts:
        for at in range(5):
            assert again.judge(part, "a", at, at, 1) == old.judge(part, "a", at, at, 1)


def test_idle_producers_and_their_cuts_are_evicted_in_every_part() -> None:
    old = tables(0, 0, 100, 50)
    old.record(0, "p", 0, 0, 0, 1, 0)
    old.record(50, "q", 0, 0, 1, 1, 0)
    assert ranges(heir(1, 0, 100, old)) == [(0, 50), (50, 100)]
    old.expire(0)
    old.expire(25 * 3600)
    assert ranges(heir(1, 0, 100, old)) == [(0, 100)]


@given(
    st.lists(st.integers(0, 99), min_size=1, max_size=30),
    POINTS,
    POINTS,
    st.integers(0, 5),
)
def test_places_of_a_repeat_are_those_of_the_first_time(
    hashes: list[int], cuts: list[int], finer: list[int], first: int
) -> None:
    """A request that one segment took by its parts, found again by finer ones: of a successor, and of its parts."""
    record = SegmentRecord(0, 100, "sealed", (), (1,), None, 10**6, 0, cuts=tuple(cuts))
    ids: dict[int, int] = {}
    known: dict[int, int] = {}
    batch = Request("p", 0, tuple(hashes)).batch()
    for one in split(Routing(np.array(record.parts, np.int32), [0] * len(record.parts)), batch):
        known[one.part] = first
        ids |= {int(i): first + at for at, i in enumerate(one.indexes)}
        first += len(one.indexes) + 3
    again = sorted({*record.parts, *finer})
    found: dict[int, int] = {}
    for one in split(Routing(np.array(again, np.int32), [1] * len(again)), batch):
        held = max(part for part in record.parts if part <= one.part)
        for placed in locate(batch, one, Outcome(0, known[held], True), record):
            assert (placed.segment, placed.duplicate) == (0, True)
            found |= {int(i): placed.first + at for at, i in enumerate(placed.indexes)}
    assert found == ids


def test_rows_between_those_of_a_piece_belong_to_others() -> None:
    """Runs of neighbours are placed together, and others by themselves."""
    batch = Request("p", 0, (10, 60, 10, 10, 60, 60)).batch()
    record = SegmentRecord(0, 100, "sealed", (), (1, 2), None, 6, 0)
    bounds = Routing(np.array([0, 50], np.int32), [1, 2])
    left, right = split(bounds, batch)
    assert [(p.first, list(p.indexes)) for p in locate(batch, left, Outcome(0, 100, True), record)] == [
        (100, [0]),
        (102, [2, 3]),
    ]
    assert [(p.first, list(p.indexes)) for p in locate(batch, right, Outcome(0, 100, True), record)] == [
        (101, [1]),
        (104, [4, 5]),
    ]


@given(st.lists(st.integers(0, 99), min_size=1, max_size=40), POINTS, POINTS, st.data())
def test_pieces_cut_again_hold_the_same_rows_in_order(
    hashes: list[int], before: list[int], after: list[int], data: st.DataObject
) -> None:
    batch = Request("p", 0, tuple(hashes)).batch()
    slices = split(Routing(np.array([0, *before], np.int32), range(len(before) + 1)), batch)
    bounced = data.draw(st.lists(st.sampled_from(slices), min_size=1, unique_by=id))
    again = split_again(Routing(np.array([0, *after], np.int32), range(len(after) + 1)), batch, bounced)
    assert sorted(i for p in again for i in p.indexes) == sorted(i for p in bounced for i in p.indexes)
    for one in again:
        high = next((p for p in after if p > one.part), KEY_SPACE)
        assert all(one.part <= hashes[i] < high for i in one.indexes)
        assert all(a < b for a, b in pairwise(one.indexes))
        assert [v.value for v in one.encoded.rows.column(0)] == [int(i) for i in one.indexes]


@pytest.mark.parametrize("data", [b"", b"no table"])
def test_what_is_no_table_is_refused_whatever_the_parts(data: bytes) -> None:
    with pytest.raises(ValueError, match="producer tables cannot be read"):
        ProducerTables.decode(data, 0)

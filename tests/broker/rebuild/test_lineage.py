"""The segments of a topic from a state that is older than its chains: each decision of a rebuild about segments."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from seaweedq.broker.rebuild.lineage import ChainEnd, Chains, KnownSegments, Lineage, trace
from seaweedq.broker.topics.invariants import broken_in_topic
from seaweedq.coordination.records import Intent, SegmentRecord, StartRecord, Successor, TopicConfig, TopicRecord
from seaweedq.segments.entry import LAST_SEQUENCE, EntryName
from seaweedq.segments.keyrange import KEY_SPACE, KeyRange, tile
from seaweedq.segments.producers import ProducerTables

HALF, QUARTER, NOW_US = KEY_SPACE // 2, KEY_SPACE // 4, 99
TOPIC = TopicRecord(3, "active", TopicConfig(), 7)
SPLIT = Intent(4, "committed", (3,), (Successor(4, 0, HALF), Successor(5, HALF, KEY_SPACE)))
MERGE = Intent(6, "committed", (4, 5), (Successor(6, 0, KEY_SPACE),))
LEFT, RIGHT, WHOLE = (0, HALF), (HALF, KEY_SPACE), (0, KEY_SPACE)
Range = tuple[int, int]


def opened(low: int = 0, high: int = KEY_SPACE, *before: int, **changes: Any) -> SegmentRecord:
    return replace(SegmentRecord(low, high, "open", before, (), None, None, 7), **changes)


def sealed(record: SegmentRecord, end: int, *successors: int) -> SegmentRecord:
    return replace(record, state="sealed", successors=successors, end_offset=end, sealed_us=8)


def end(of: Range = WHOLE, rows: int = 10, seal: Intent | None = None, first: EntryName | None = None) -> ChainEnd:
    tables = ProducerTables.empty(0, KeyRange(*of))
    return ChainEnd(first or EntryName(0, 0), *of, rows, 20, seal, tables)


def traced(
    records: Mapping[int, SegmentRecord],
    ends: Mapping[int, ChainEnd | None],
    topic: TopicRecord = TOPIC,
    **known: Any,
) -> Lineage:
    """The lineage when all that is asked for was read; `ends` has the chains that exist, None for an empty folder."""
    read: dict[int, ChainEnd | None] = {}
    folders = frozenset(number for number, one in ends.items() if one)
    while True:
        found = trace(topic, KnownSegments(records, **known), Chains(folders, read), NOW_US)
        if not found.wanted:
            return found
        assert not found.wanted & read.keys(), "it was read already"
        read |= {number: ends.get(number) for number in found.wanted}


def test_nothing_has_happened() -> None:
    records = {3: opened()}
    found = traced(records, {3: end()})
    assert (found.records, found.damage) == (records, ())


def test_only_open_segments_and_those_behind_them_are_read() -> None:
    records = {3: sealed(opened(), 10, 4, 5), 4: opened(*LEFT, 3), 5: opened(*RIGHT, 3)}
    first = trace(TOPIC, KnownSegments(records), Chains(frozenset({3, 4, 5})), NOW_US)
    assert first.wanted == {4, 5}
    assert traced(records, {3: end(), 4: end(LEFT), 5: end(RIGHT)}).records == records


def test_a_seal_is_carried_out() -> None:
    found = traced({3: opened(owner="x")}, {3: end(rows=12, seal=SPLIT)})
    assert found.records[3] == replace(sealed(opened(), 12, 4, 5), sealed_us=20)
    assert found.records[4] == opened(*LEFT, 3, created_us=20)
    assert found.records[5] == opened(*RIGHT, 3, created_us=20)
    assert (found.ended, found.begun, found.damage) == ((3,), (4, 5), ())


def test_seals_are_carried_out_recursively() -> None:
    ends = {
        3: end(seal=SPLIT),
        4: end(LEFT, 4, MERGE),
        5: end(RIGHT, 5, MERGE),
        6: end(rows=6),
    }
    found = traced({3: opened()}, ends)
    assert {n: r.state for n, r in found.records.items()} == {3: "sealed", 4: "sealed", 5: "sealed", 6: "open"}
    assert found.records[6].predecessors == (4, 5)
    assert broken_in_topic(found.records) == []


def test_a_merge_that_was_sealed_by_half_waits_for_its_next_owner() -> None:
    records = {3: sealed(opened(), 10, 4, 5), 4: opened(*LEFT, 3), 5: opened(*RIGHT, 3, owner="x")}
    found = traced(records, {4: end(LEFT, 4, MERGE), 5: end(RIGHT, 5)})
    assert found.records[4].intent == found.records[5].intent == MERGE
    assert [found.records[n].state for n in (4, 5)] == ["open", "open"]
    assert 6 not in found.records


def test_a_planned_intent_is_replaced_by_that_of_the_seal() -> None:
    planned = Intent(8, "planned", (3,), (Successor(8, 0, KEY_SPACE),))
    found = traced({3: opened(intent=planned)}, {3: end(seal=SPLIT)})
    assert found.records[3].state == "sealed"
    assert 8 not in found.records


@pytest.mark.parametrize("state", ["planned", "committed"])
def test_an_intent_without_a_seal_stays(state: Any) -> None:
    records = {3: opened(intent=replace(SPLIT, state=state))}
    assert traced(records, {3: end()}).records == records


def test_a_merge_of_which_retention_has_taken_one_seal_has_ended() -> None:
    records = {3: sealed(opened(), 10, 4, 5), 4: opened(*LEFT, 3), 5: opened(*RIGHT, 3)}
    found = traced(records, {4: end(LEFT, 4, MERGE), 5: None, 6: end()}, delivered={5: 70})
    assert found.records[6].predecessors == (4, 5)
    assert found.records[4].end_offset == 4
    assert (found.records[5].end_offset, found.starts[5].emptied, found.closed) == (70, True, (5,))


def test_an_empty_segment_below_later_files_is_closed() -> None:
    start = StartRecord(2, 40)
    ends = {3: None, 4: end(LEFT), 5: end(RIGHT)}
    found = traced({3: opened()}, ends, starts={3: start}, delivered={3: 55})
    assert found.records[3] == replace(sealed(opened(), 55, 4, 5), sealed_us=20)
    assert found.starts[3] == StartRecord(
        LAST_SEQUENCE, 55, ((LAST_SEQUENCE, NOW_US),), deleted=LAST_SEQUENCE, emptied=True
    )
    assert found.records[4] == opened(*LEFT, 3, created_us=20)
    assert (found.closed, found.begun, found.damage) == ((3,), (4, 5), ())


def test_the_first_entry_of_a_creation_that_was_cut_off_closes_nothing() -> None:
    """Of two creations at once one has put its first entry, and the other one has made the topic."""
    records, cut_off = {3: opened()}, dataclasses.replace(end(rows=0), creation=True)
    found = traced(records, {3: end(), 7: cut_off})
    assert (found.records, found.begun, found.closed, found.damage) == (records, (), (), ())
    heirs = {4: end(LEFT), 5: end(RIGHT)}
    assert traced(records, {3: None, **heirs, 7: cut_off}).begun == (4, 5)


def test_a_segment_with_a_late_file_below_later_files_is_closed_behind_it() -> None:
    late = end(rows=90, first=EntryName(7, 80))
    found = traced({3: opened()}, {3: late, 4: end(LEFT), 5: end(RIGHT)}, delivered={3: 55})
    assert (found.records[3].state, found.records[3].end_offset, found.damage) == ("sealed", 90, ())


def test_generations_between_are_gone() -> None:
    """3 was split into 4 and 5, these were merged into 6, and that was split: only 7 and 8 have files."""
    found = traced({3: opened()}, {3: None, 7: end(LEFT), 8: end(RIGHT)})
    assert found.records[3].successors == (7, 8)
    assert sorted(found.records) == [3, 7, 8]
    assert not found.damage


def test_a_generation_between_has_its_seal() -> None:
    split = Intent(7, "committed", (6,), (Successor(7, 0, HALF), Successor(8, HALF, KEY_SPACE)))
    found = traced({3: opened()}, {3: None, 6: end(rows=9, seal=split), 7: end(LEFT), 8: None})
    assert found.records[3].successors == (6,)
    assert found.records[6].successors == (7, 8)
    assert not found.damage
    assert found.records[8] == opened(*RIGHT, 6, created_us=20)


def test_a_generation_between_has_a_late_file() -> None:
    found = traced({3: opened()}, {3: None, 6: end(rows=9), 7: end(LEFT), 8: end(RIGHT)})
    assert found.records[3].successors == (7, 8)
    assert 6 not in found.records
    assert not found.damage


def test_one_half_goes_on_by_a_seal_and_the_other_has_lost_it() -> None:
    roll = Intent(6, "committed", (4,), (Successor(6, *LEFT),))
    records = {3: sealed(opened(), 10, 4, 5), 4: opened(*LEFT, 3), 5: opened(*RIGHT, 3)}
    found = traced(records, {4: end(LEFT, 4, roll), 5: None, 6: end(LEFT), 9: end(RIGHT)})
    assert (found.records[4].successors, found.records[5].successors) == ((6,), (9,))
    assert found.closed == (5,)
    assert not found.damage


@pytest.mark.parametrize(
    ("number", "removed", "why"),
    [
        (2, (), "of an earlier incarnation"),
        (5, (), "below its range's open segment"),
        (9, (9,), "retention has removed it, says a tombstone"),
    ],
)
def test_files_of_dead_segments_are_left_out(number: int, removed: tuple[int, ...], why: str) -> None:
    records = {6: opened(0, KEY_SPACE, 3), 3: sealed(opened(), 10, 6)}
    found = traced(records, {6: end(), number: end()}, removed=frozenset(removed))
    assert (found.records, found.damage) == (records, ()), why


def test_a_start_rises_to_the_first_file() -> None:
    found = traced({3: opened()}, {3: end(first=EntryName(5, 50))}, starts={3: StartRecord(2, 20, ((2, 1),))})
    assert found.starts[3] == StartRecord(5, 50, ((2, 1),), deleted=5)


def test_a_start_never_falls() -> None:
    start = StartRecord(5, 50)
    assert traced({3: opened()}, {3: end(first=EntryName(5, 50))}, starts={3: start}).starts == {3: start}


def test_a_sealed_segment_that_was_read_and_has_no_file_is_emptied() -> None:
    records = {3: sealed(opened(), 10, 4), 4: opened(0, KEY_SPACE, 3)}
    found = trace(TOPIC, KnownSegments(records), Chains(frozenset({4}), {3: None, 4: end()}), NOW_US)
    assert found.starts[3].emptied
    assert found.starts[3].offset == 10
    assert found.records == records


def test_a_topic_without_records_begins_with_its_first_segments() -> None:
    topic = TopicRecord(3, "active", TopicConfig(initial_segments=2), 7)
    found = traced({}, {3: end(LEFT)}, topic)
    first, second = tile(2)
    assert found.records == {3: opened(first.low, first.high), 4: opened(second.low, second.high)}
    assert not found.damage


def test_a_successor_without_files_inherits_the_parts_of_its_predecessors() -> None:
    tables = ProducerTables.empty(4, KeyRange(*LEFT), (QUARTER,))
    tables.record(0, "p", 1, 1, 0, 1, 5)
    records = {3: sealed(opened(), 10, 4, 5), 4: opened(*LEFT, 3), 5: opened(*RIGHT, 3)}
    ends = {4: replaced(end(LEFT, 4, MERGE), tables), 5: end(RIGHT, 5, MERGE)}
    assert traced(records, ends).records[6].cuts == (QUARTER,)


def replaced(one: ChainEnd, tables: ProducerTables) -> ChainEnd:
    return ChainEnd(one.first, one.low, one.high, one.end, one.appended_us, one.seal, tables)


def test_a_successor_with_files_has_the_parts_of_its_own_table() -> None:
    tables = ProducerTables.empty(4, KeyRange(*LEFT), (QUARTER,))
    found = traced({3: opened()}, {3: end(seal=SPLIT), 4: replaced(end(LEFT), tables), 5: end(RIGHT)})
    assert found.records[4].cuts == (QUARTER,)


@pytest.mark.parametrize(
    ("records", "ends", "said"),
    [
        ({3: opened()}, {3: None}, "segment 3 has lost its files"),
        ({3: opened()}, {3: None, 4: end(LEFT)}, "do not tile"),
        ({3: opened(*LEFT), 4: opened(*RIGHT, owner="x")}, {3: end(LEFT)}, "segment 4 has lost its files"),
    ],
)
def test_damage_is_said(records: dict[int, SegmentRecord], ends: dict[int, ChainEnd | None], said: str) -> None:
    found = traced(records, ends, starts={4: StartRecord(3, 30)})
    assert any(said in one for one in found.damage)


def test_a_segment_that_never_had_a_file_stays() -> None:
    records = {3: opened(*LEFT), 4: opened(*RIGHT)}
    assert traced(records, {3: end(LEFT), 4: None}).records == records

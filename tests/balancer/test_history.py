"""The key space's history: it stays within its limit and its hour, and no merge loses a message."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seaweedq.balancer.history import COLUMN_BYTES, LIMIT_BYTES, ROW, Cell, Column, History, SegmentTraffic, cells
from seaweedq.segments.keyrange import KEY_SPACE, KeyRange

STEP_US = 10_000_000
COUNTS = st.integers(0, 10**12)
HOT = st.sampled_from([0.0, 0.5, 0.75])


@st.composite
def drawn(draw: st.DrawFn) -> list[list[SegmentTraffic]]:
    """Columns of some topics whose segments tile the key space, as finely as drawn."""
    kinds = st.tuples(st.integers(0, 3), st.sampled_from([1, 2, 3, 40]), COUNTS, st.integers(-5, STEP_US), HOT)
    columns = draw(st.lists(st.lists(kinds, max_size=3, unique_by=lambda one: one[0]), min_size=1, max_size=30))
    return [[one for kind in column for one in tiles(at, *kind)] for at, column in enumerate(columns)]


def tiles(at: int, topic: int, parts: int, count: int, after_us: int, hot: float) -> list[SegmentTraffic]:
    cut = [KEY_SPACE * part // parts for part in range(parts + 1)]
    begin_us = at * STEP_US + after_us
    return [
        SegmentTraffic(
            (f"t{topic}", 0, 100 * parts + part),
            KeyRange(cut[part], cut[part + 1]),
            begin_us,
            begin_us + 5,
            count + part,
            count * part,
            (cut[part], hot) if part == 0 and hot else None,
        )
        for part in range(parts)
    ]


def sums(taken: Sequence[SegmentTraffic]) -> dict[str, tuple[int, int]]:
    messages, size = Counter[str](), Counter[str]()
    for one in taken:
        messages[one.segment[0]] += one.messages
        size[one.segment[0]] += one.size_bytes
    return {topic: (messages[topic], size[topic]) for topic in messages}


def kept(history: History, topic: str, most: int = 10**9) -> list[Cell]:
    return cells(history.columns_of((topic, 0), history.begin_us, history.end_us), most)


@given(drawn(), st.integers(3_000 + 24 * COLUMN_BYTES, 60_000 + 24 * COLUMN_BYTES))
def test_within_any_limit_no_merge_loses_a_message(columns: list[list[SegmentTraffic]], limit: int) -> None:
    history = History(0, limit)
    for at, column in enumerate(columns):
        history.add((at + 1) * STEP_US, column)
        assert history.size_bytes <= limit
        for one, other in zip(history.columns, history.columns[1:], strict=False):
            assert one.end_us == other.begin_us
            assert one.level >= other.level
    for topic, (messages, size) in sums([one for column in columns for one in column]).items():
        found = kept(history, topic)
        assert sum(one.messages for one in found) == messages
        assert sum(one.size_bytes for one in found) == size


@given(drawn(), st.integers(1, 200))
def test_so_few_cells_as_are_asked_for_have_the_same_sums(columns: list[list[SegmentTraffic]], most: int) -> None:
    history = History(0)
    for at, column in enumerate(columns):
        history.add((at + 1) * STEP_US, column)
    for topic in sums([one for column in columns for one in column]):
        fine, coarse = kept(history, topic), kept(history, topic, most)
        assert len(coarse) <= max(most, 1)
        assert sum(one.messages for one in coarse) == sum(one.messages for one in fine)
        assert sum(one.size_bytes for one in coarse) == sum(one.size_bytes for one in fine)
        assert min(one.begin_us for one in fine) == min(one.begin_us for one in coarse)
        for one in coarse:
            within = [f for f in fine if inside(f, one)]
            assert len(coarse) == len(fine) or sum(f.messages for f in within) >= one.messages
            assert one.hot_key is None or one.hot_key in [f.hot_key for f in within]


def inside(one: Cell, other: Cell) -> bool:
    return (
        other.low <= one.low
        and one.high <= other.high
        and other.begin_us <= one.begin_us
        and one.end_us <= other.end_us
    )


def busy(segments: int, begin_us: int, first: int = 0, topic: str = "t") -> list[SegmentTraffic]:
    cut = [KEY_SPACE * at // segments for at in range(segments + 1)]
    return [
        SegmentTraffic((topic, 0, first + at), KeyRange(cut[at], cut[at + 1]), begin_us, begin_us + STEP_US, 1, 100)
        for at in range(segments)
    ]


def filled(segments: int, columns: int, limit: int = LIMIT_BYTES, churn: bool = False) -> History:
    history = History(0, limit)
    for at in range(columns):
        history.add((at + 1) * STEP_US, busy(segments, at * STEP_US, at * segments if churn else 0))
        assert history.size_bytes <= limit
    return history


def test_an_hour_of_a_thousand_segments_is_kept_at_ten_seconds() -> None:
    history = filled(100, 400, LIMIT_BYTES // 10)  # as a thousand within the limit
    assert len(history.columns) == 360
    assert history.end_us - history.begin_us == 360 * STEP_US == 3_600_000_000
    assert {column.end_us - column.begin_us for column in history.columns} == {STEP_US}
    assert len(kept(history, "t")) == 36_000


@pytest.mark.default
def test_ten_thousand_segments_are_kept_an_hour_the_newest_at_ten_seconds() -> None:
    tenth = LIMIT_BYTES // 10  # so that a thousand are as ten thousand
    history = filled(1_000, 400, tenth)
    assert history.end_us - history.begin_us >= 3_600_000_000
    assert history.columns[-1].end_us - history.columns[-1].begin_us == STEP_US
    assert max(column.end_us - column.begin_us for column in history.columns) <= 16 * STEP_US
    assert sum(int(column.rows["messages"].sum()) for column in history.columns) == (
        (history.end_us - history.begin_us) // STEP_US * 1_000
    )


def test_short_lived_segments_and_a_hundred_thousand_stay_within_the_limit() -> None:
    limit = 2 * 1024 * 1024
    for history in (filled(200, 60, limit // 10, churn=True), filled(10_000, 3, limit // 10)):
        found = kept(history, "t")
        assert sum(one.messages for one in found) == 12_000 if len(history.columns) > 3 else 30_000
        assert any(one.segment is None for one in found)


def test_of_more_topics_than_fit_the_quietest_are_left_out() -> None:
    limit = 200_000
    history = History(0, limit)
    taken = [SegmentTraffic((f"t{n}", 0, 0), KeyRange(0, KEY_SPACE), 0, STEP_US, n, n) for n in range(1_000)]
    history.add(STEP_US, taken)
    assert history.size_bytes <= limit
    assert kept(history, "t999")
    assert not kept(history, "t0")


def test_a_split_shows_where_it_happened_and_the_hot_key_where_it_was() -> None:
    history = History(0)
    whole, (left, right) = KeyRange(0, KEY_SPACE), KeyRange(0, KEY_SPACE).halves()
    history.add(STEP_US, [SegmentTraffic(("t", 0, 0), whole, 0, STEP_US, 10, 1_000, (7, 0.75))])
    moment = STEP_US + 4_000_000
    children = [SegmentTraffic(("t", 0, n), one, moment, 2 * STEP_US, n, n) for n, one in ((1, left), (2, right))]
    history.add(2 * STEP_US, [SegmentTraffic(("t", 0, 0), whole, 0, moment, 4, 400), *children])
    found = kept(history, "t")
    assert [(one.segment, one.begin_us, one.end_us, one.hot_key) for one in found] == [
        (0, 0, STEP_US, (7, 0.75)),
        (0, STEP_US, moment, None),
        (1, moment, 2 * STEP_US, None),
        (2, moment, 2 * STEP_US, None),
    ]
    assert kept(history, "other") == []
    one = kept(history, "t", 1)
    assert [(each.segment, each.low, each.high, each.messages, each.hot_key) for each in one] == [
        (None, 0, KEY_SPACE, 17, (7, 0.75))
    ]
    assert cells([], 10) == []
    assert [len(one.rows) for one in history.columns_of(("t", 0), 0, STEP_US)] == [1]


def test_a_column_without_rows_takes_next_to_nothing() -> None:
    history = filled(1, 360)
    assert history.size_bytes < 400 * (COLUMN_BYTES + ROW.itemsize) + 1_000
    empty: Any = Column(0, 1, np.empty(0, ROW))
    assert cells([empty], 5) == []

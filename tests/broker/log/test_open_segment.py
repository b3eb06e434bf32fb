"""A tail: dense, oldest first out, and what a reader finds in it."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seaweedq.broker.log.open_segment import BufferedRows, Tail
from seaweedq.checks import InvariantViolated


def piece(first: int, count: int, size: int = 10, commit: int = 0) -> BufferedRows:
    return BufferedRows(first, pa.record_batch({"x": pa.array(range(count))}), size, commit, 0.0)


def filled(*counts: int, start: int = 100) -> Tail:
    tail = Tail(start)
    for commit, count in enumerate(counts):
        tail.append(piece(tail.end, count, commit=commit))
    return tail


def test_an_empty_tail_is_false_and_begins_where_it_ends() -> None:
    tail = Tail(7)
    assert not tail
    assert (tail.start, tail.end, tail.size_bytes) == (7, 7, 0)
    assert tail.since(0) == []


def test_a_hole_is_refused() -> None:
    with pytest.raises(InvariantViolated):
        filled(3).append(piece(104, 1))


def test_a_piece_is_dropped_whole_or_not_at_all() -> None:
    tail = filled(3, 4)
    with pytest.raises(InvariantViolated):
        tail.drop(102)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.data())
def test_what_is_left_after_a_drop(counts: list[int], data: st.DataObject) -> None:
    tail = filled(*counts)
    ends = [100 + sum(counts[: n + 1]) for n in range(len(counts))]
    cut = data.draw(st.sampled_from([100, *ends]))
    tail.drop(cut)
    left = [c for c, end in zip(counts, ends, strict=True) if end > cut]
    assert (tail.start, tail.end, tail.size_bytes) == (cut, ends[-1], 10 * len(left))
    assert bool(tail) is bool(left)
    if left:
        assert tail.oldest().first == cut
    for offset in range(95, ends[-1] + 2):
        assert [p.first for p in tail.since(offset)] == [
            end - c for c, end in zip(counts, ends, strict=True) if end > max(offset, cut)
        ]


@given(st.lists(st.integers(1, 100), min_size=1, max_size=8), st.integers(1, 200))
def test_the_head_is_as_much_as_fits_and_at_least_one_piece(sizes: list[int], limit: int) -> None:
    tail = Tail(0)
    for size in sizes:
        tail.append(piece(tail.end, 1, size))
    head = [p.size_bytes for p in tail.head(limit)]
    assert head == sizes[: len(head)]
    assert len(head) == 1 or sum(head) <= limit
    assert len(head) == len(sizes) or sum(head) + sizes[len(head)] > limit

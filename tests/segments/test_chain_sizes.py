"""What is known of the sizes and times of a segment's messages."""

from hypothesis import example, given
from hypothesis import strategies as st

from seaweedq.segments.chain import MARKS, ChainSizes, KnownEntry, RemoteSizeHistory
from seaweedq.segments.entry import EntryName


def test_the_bytes_since_an_offset_are_a_share_of_its_file_and_all_later() -> None:
    known = {
        EntryName(0, 0): KnownEntry(0, 5),
        EntryName(1, 0): KnownEntry(100, 10),
        EntryName(2, 10): KnownEntry(40, 20),
    }
    extent = ChainSizes(known, 20)
    assert [extent.size_since(offset) for offset in (0, 5, 10, 15, 20)] == [140, 90, 40, 20, 0]
    assert [extent.arrival_us(offset) for offset in (0, 9, 10, 30)] == [10, 10, 20, 20]


def test_entries_that_are_not_known_count_as_those_that_are() -> None:
    extent = ChainSizes({EntryName(4, 40): KnownEntry(10, 7), EntryName(8, 80): KnownEntry(10, 9)}, 90)
    assert extent.size_since(40) == 50, "of three between only their number is known"
    assert extent.size_since(0) == 90
    assert extent.arrival_us(0) == 7, "it came then or before: a lag is never said to be older than it is"
    assert ChainSizes({}, 0).size_since(0) == 0
    assert ChainSizes({}, 0).arrival_us(0) is None


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 20), st.integers(0, 1000)), max_size=12))
@example([(1, 0, 1), (1, 0, 1)])
def test_what_grows_by_one_entry_at_a_time_is_what_would_be_made_of_all(steps: list[tuple[int, int, int]]) -> None:
    grown, known, sequence, offset, of_messages = ChainSizes({}, 0), {}, 0, 0, 0
    for ahead, rows, size in steps:
        sequence += ahead
        of_messages += size if rows else 0
        name, entry = EntryName(sequence, offset), KnownEntry(size, sequence)
        known[name], offset = entry, offset + rows
        grown.append(name, entry, offset)
    whole = ChainSizes(known, offset)
    for at in range(offset + 2):
        assert grown.size_since(at) == whole.size_since(at)
        assert grown.arrival_us(at) == whole.arrival_us(at)
    if known:
        assert grown.size_since(0) >= of_messages, "an entry without rows may count for nothing"
        grown.record_arrival(max(known), 7)
        assert grown.arrival_us(offset) == 7


def test_a_course_has_the_last_mark_up_to_an_offset() -> None:
    history = RemoteSizeHistory()
    assert history.arrival_us(0) is None
    assert history.size_of_rows(5) == 0
    history.record_arrival(10, 100)
    history.record_arrival(20, 200)
    history.record_arrival(15, 140)  # read, after its end was heard of
    history.record_arrival(20, 190)
    assert [history.arrival_us(offset) for offset in (0, 10, 14, 15, 25)] == [100, 100, 100, 140, 190]
    history.record_size(2, 30)
    assert history.size_of_rows(10) == 150


def test_a_course_is_bounded() -> None:
    history = RemoteSizeHistory()
    for offset in range(10 * MARKS):
        history.record_arrival(offset, offset)
    assert len(history._marks) <= MARKS
    assert history.arrival_us(0) == 0
    assert (history.arrival_us(10 * MARKS) or 0) >= 10 * MARKS - 2 * 10

"""Which files are due, against a plain reckoning: the oldest first, never the newest, and what is unread stays where
the policy says so."""

from hypothesis import given
from hypothesis import strategies as st

from seaweedq.broker.retention.due import IDLE_US, SLACK_US, File, SegmentFiles, due, wants_empty_entries
from seaweedq.coordination.records import RetentionPolicy
from seaweedq.segments.entry import EntryName

NOW_US = 10**10
SECOND_US = 1_000_000


@st.composite
def segments(draw: st.DrawFn) -> dict[int, SegmentFiles]:
    subscribed = draw(st.booleans())
    found = {}
    for number in range(draw(st.integers(1, 3))):
        counts = draw(st.lists(st.integers(0, 3), max_size=6))
        ages_s = sorted((draw(st.integers(0, 200)) for _ in counts), reverse=True)
        files, offset = [], 0
        for sequence, (count, age_s) in enumerate(zip(counts, ages_s, strict=True)):
            modified_us = NOW_US - age_s * SECOND_US - SLACK_US
            name = EntryName(sequence, offset)
            offset += count
            files.append(File(name, offset, draw(st.integers(1, 5)), modified_us))
        found[number] = SegmentFiles(files, draw(st.integers(0, offset)) if subscribed else None)
    return found


POLICIES = st.builds(
    RetentionPolicy,
    max_age_s=st.none() | st.integers(1, 200).map(float),
    max_bytes=st.none() | st.integers(1, 40),
    keep_unread=st.booleans(),
    delete_read=st.booleans(),
)


@given(POLICIES, segments())
def test_what_is_due_is_what_the_policy_says_and_no_more(
    policy: RetentionPolicy, topic: dict[int, SegmentFiles]
) -> None:
    counts = due(policy, topic, NOW_US)
    assert all(0 < count < len(topic[number].files) for number, count in counts.items()), "the newest one stays"
    left = {number: one.files[counts.get(number, 0) :] for number, one in topic.items()}
    total = sum(file.size for files in left.values() for file in files)
    by_size: list[tuple[int, int]] = []
    for number, one in topic.items():
        for at, file in enumerate(one.files[:-1]):
            read = one.acked_to is not None and file.end <= one.acked_to
            old = (
                policy.max_age_s is not None and (NOW_US - SLACK_US - file.modified_us) >= policy.max_age_s * SECOND_US
            )
            may = not policy.keep_unread or one.acked_to is None or read
            gone = at < counts.get(number, 0)
            if gone and not (old and may) and not (policy.delete_read and read):
                assert policy.max_bytes is not None
                assert may
                by_size.append((file.modified_us, file.size))
            if not gone:
                assert not (old and may), "old, and stays"
                assert not (policy.delete_read and read), "read, and stays"
                assert policy.max_bytes is None or total <= policy.max_bytes or not may, "over the size, and stays"
    if by_size and not policy.delete_read:
        newest = max(by_size)
        assert total + newest[1] > policy.max_bytes, "the last one that the size has taken was needed"
        first_left = [f[0] for n, f in left.items() if len(f) > 1 and not policy.keep_unread]
        assert all(file.modified_us >= newest[0] for file in first_left), "the oldest of all segments go first"


def test_an_idle_segment_is_marked_where_all_of_its_rows_would_go() -> None:
    old = [File(EntryName(n, n), n + 1, 2, NOW_US - IDLE_US) for n in range(3)]
    young = [*old[:2], File(EntryName(2, 2), 0, 2, NOW_US - IDLE_US + 1)]
    policy = RetentionPolicy(max_bytes=1)
    ends = {0: 3}
    assert wants_empty_entries(policy, {0: SegmentFiles(old)}, ends, NOW_US) == [0]
    assert wants_empty_entries(RetentionPolicy(max_bytes=2), {0: SegmentFiles(old)}, ends, NOW_US) == [], (
        "the newest may stay"
    )
    assert wants_empty_entries(policy, {0: SegmentFiles(young)}, ends, NOW_US) == [], "it may go on"
    assert wants_empty_entries(policy, {0: SegmentFiles(old)}, {0: 2}, NOW_US) == [], "the newest has no rows"
    assert wants_empty_entries(policy, {0: SegmentFiles(old)}, {}, NOW_US) == [], "it is sealed"
    unread = RetentionPolicy(max_bytes=1, keep_unread=True)
    assert wants_empty_entries(unread, {0: SegmentFiles(old, 2)}, ends, NOW_US) == [], "its last row is unread"
    assert wants_empty_entries(unread, {0: SegmentFiles(old, 3)}, ends, NOW_US) == [0]
    assert wants_empty_entries(RetentionPolicy(delete_read=True), {0: SegmentFiles(old, 3)}, ends, NOW_US) == [0]
    assert wants_empty_entries(policy, {0: SegmentFiles([])}, ends, NOW_US) == []


def test_nothing_is_due_without_a_bound() -> None:
    files = [File(EntryName(n, n), n + 1, 1, 0) for n in range(5)]
    assert due(RetentionPolicy(), {0: SegmentFiles(files)}, NOW_US) == {}
    assert due(RetentionPolicy(delete_read=True), {0: SegmentFiles(files)}, NOW_US) == {}, "nobody has read it"

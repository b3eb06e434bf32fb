"""Frames come back as they were packed. Whatever a crash leaves of a file's last commit, all earlier ones are read."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seaweedq.errors import JournalDamaged, NeedsNewerBroker
from seaweedq.formats import Format
from seaweedq.levels import HIGHEST
from seaweedq.segments.frames import (
    ALIGNMENT,
    COMMIT_HEADER_BYTES,
    FILE_HEADER_BYTES,
    FILES,
    Commit,
    FileHeader,
    Frame,
    FrameKind,
    encode_commit,
    pack,
    read_commits,
    read_header,
    rows_of,
    unpack,
)
from seaweedq.segments.layout import TIMESTAMP, Layout
from tests.support.segments.frame_samples import COMMITS, FRAMES, LAYOUTS, plain, rows, rows_frame
from tests.support.tiers import examples

FILE_ID = bytes(range(16))
FIRST = 5


def packed(frames: list[Frame]) -> tuple[memoryview, bytearray]:
    index, body, _ = pack(frames)
    return memoryview(index), bytearray(b"".join(bytes(part) for part in body))


@given(st.lists(FRAMES, max_size=5))
def test_frames_come_back_in_order_with_aligned_payloads(frames: list[Frame]) -> None:
    index, body = packed(frames)
    found = unpack(index, memoryview(body))
    assert found is not None
    assert list(map(plain, found)) == list(map(plain, frames))
    assert all(isinstance(frame.kind, FrameKind) for frame in found)
    assert len(body) % ALIGNMENT == 0


@given(st.lists(FRAMES, min_size=1, max_size=3), st.data())
def test_a_flipped_bit_anywhere_in_the_body_is_noticed(frames: list[Frame], data: st.DataObject) -> None:
    index, body = packed([*frames, acks_frame(b"123")])
    body[data.draw(st.integers(0, len(body) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert unpack(index, memoryview(body)) is None


@pytest.mark.parametrize("change", [lambda body: body[:-8], lambda body: body + bytes(8)])
def test_a_body_of_another_length_is_noticed(change: Callable[[bytearray], bytearray]) -> None:
    index, body = packed([acks_frame(b"1234567"), acks_frame(b"")])
    assert unpack(index, memoryview(change(body))) is None


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.format.value)
@given(data=st.data())
def test_rows_come_back_from_a_packed_frame(layout: Layout, data: st.DataObject) -> None:
    batch = data.draw(rows(layout))
    index, body = packed([acks_frame(b"x"), rows_frame(batch, first_offset=7)])
    found = unpack(index, memoryview(body))
    assert found is not None
    again = rows_of(found[1], layout)
    again.validate(full=True)
    assert again.equals(batch, check_metadata=True)
    assert (found[1].first_offset, found[1].count) == (7, batch.num_rows)


def test_rows_are_read_in_place() -> None:
    """No copy of the values: they lie within the body."""
    values = [pa.array([1], TIMESTAMP), pa.array([b"v" * 1000])]
    index, body = packed([rows_frame(pa.record_batch(values, schema=LAYOUTS[1].rows(0)))])
    found = unpack(index, memoryview(body))
    assert found is not None
    again = rows_of(found[0], LAYOUTS[1])
    start = pa.py_buffer(body).address
    assert start <= again.column(1).buffers()[2].address < start + len(body)


def test_packing_copies_no_payload() -> None:
    payload = bytes(1 << 16)
    assert any(part is payload for part in pack([acks_frame(payload)])[1])


def acks_frame(payload: bytes) -> Frame:
    return Frame(FrameKind.ACKS, "t", 0, 0, 0, 0, 0, (), 0, payload)


def test_rows_that_are_not_as_many_as_the_frame_says_are_damage() -> None:
    values = [pa.array([1, 2], TIMESTAMP), pa.array([b"v", b"w"])]
    frame = rows_frame(pa.record_batch(values, schema=LAYOUTS[1].rows(0)))
    with pytest.raises(JournalDamaged, match="states 3 rows, but contains 2"):
        rows_of(msgspec.structs.replace(frame, count=3), LAYOUTS[1])


def joined(number: int, frames: list[Frame], file_id: bytes = FILE_ID) -> bytes:
    return b"".join(bytes(part) for part in encode_commit(file_id, number, frames)[0])


def file_of(commits: list[list[Frame]]) -> tuple[bytes, list[int]]:
    """A file's bytes, and where its header and each of its commits end."""
    data = FileHeader(FILE_ID, 3, 999, FIRST).encode(HIGHEST)
    ends = [len(data)]
    for number, frames in enumerate(commits, FIRST):
        data += joined(number, frames)
        ends.append(len(data))
    return data, ends


@dataclass(frozen=True)
class FileContents:
    """A file as read: its whole commits, and where they end. `header` is None for a file that was never begun."""

    header: FileHeader | None
    commits: tuple[Commit, ...]
    end: int


def read_file(data: bytes, path: str, end: int | None = None) -> FileContents:
    """All of a file at once."""
    commits, reading = [], read_commits(data, path, end)
    while True:
        try:
            commits.append(next(reading))
        except StopIteration as ended:
            return FileContents(read_header(data, len(data), path), tuple(commits), ended.value)


def holds(contents: FileContents, commits: list[list[Frame]]) -> bool:
    numbers = [commit.number for commit in contents.commits]
    found = [[plain(frame) for frame in commit.frames] for commit in contents.commits]
    return numbers == list(range(FIRST, FIRST + len(commits))) and found == [list(map(plain, c)) for c in commits]


def flipped(data: bytes, position: int, bit: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 1 << bit]) + data[position + 1 :]


def acks(payload: bytes) -> list[Frame]:
    return [Frame(FrameKind.ACKS, "t", 1, 2, 3, 0, 0, (), 4, payload)]


THREE = [acks(b"one"), acks(b"two" * 9), acks(b"three") + acks(b"more")]


@given(COMMITS)
def test_files_come_back_as_written(commits: list[list[Frame]]) -> None:
    data, ends = file_of(commits)
    for contents in (read_file(data, "f"), read_file(data, "f", ends[-1])):
        assert contents.header == FileHeader(FILE_ID, 3, 999, FIRST)
        assert contents.end == len(data)
        assert holds(contents, commits)


@given(COMMITS, st.lists(FRAMES, max_size=2), st.data())
def test_a_cut_last_commit_goes_whole(commits: list[list[Frame]], last: list[Frame], data: st.DataObject) -> None:
    whole, ends = file_of([*commits, last])
    contents = read_file(whole[: data.draw(st.integers(ends[-2], ends[-1] - 1))], "f")
    assert holds(contents, commits)
    assert contents.end == ends[-2]


def test_a_file_cut_at_any_byte_holds_the_commits_before_it() -> None:
    whole, ends = file_of(THREE)
    for size in range(len(whole)):
        contents = read_file(whole[:size], "f")
        assert holds(contents, THREE[: sum(end <= size for end in ends[1:])])
        assert (contents.header is None) == (size < FILE_HEADER_BYTES)


def test_any_flipped_bit_in_the_last_commit_takes_it_alone() -> None:
    whole, ends = file_of(THREE)
    for position in range(ends[-2], ends[-1]):
        for bit in range(8):
            assert holds(read_file(flipped(whole, position, bit), "f"), THREE[:-1])


@given(COMMITS, st.lists(FRAMES, max_size=2), st.data())
def test_garbage_in_place_of_the_last_commit_takes_it_alone(
    commits: list[list[Frame]], last: list[Frame], data: st.DataObject
) -> None:
    """Blocks of a torn write arrive in any order: some of the commit's bytes may be others, or zeros."""
    whole, ends = file_of([*commits, last])
    start = data.draw(st.integers(ends[-2], ends[-1] - 1))
    junk = data.draw(st.binary(min_size=1, max_size=ends[-1] - start) | st.just(bytes(ends[-1] - start)))
    torn = whole[:start] + junk + whole[start + len(junk) :]
    if torn != whole:
        assert holds(read_file(torn, "f"), commits)


def test_any_flipped_bit_in_an_earlier_commit_is_damage_that_says_where() -> None:
    whole, ends = file_of(THREE)
    for position in range(FILE_HEADER_BYTES, ends[-2]):
        start = max(end for end in ends if end <= position)
        with pytest.raises(JournalDamaged) as caught:
            read_file(flipped(whole, position, position % 8), "folder/f")
        assert caught.value.fields == {"path": "folder/f", "position": start}


def test_a_flipped_bit_in_the_header_of_a_file_with_commits_is_damage() -> None:
    whole, _ = file_of(THREE)
    for position in range(FILE_HEADER_BYTES):
        with pytest.raises(JournalDamaged):
            read_file(flipped(whole, position, position % 8), "f")


def test_a_bad_commit_is_damage_also_when_the_later_one_is_torn() -> None:
    whole, ends = file_of(THREE)
    with pytest.raises(JournalDamaged):
        read_file(flipped(whole, ends[1], 0)[: ends[2] + COMMIT_HEADER_BYTES], "f")


@pytest.mark.parametrize("number", [FIRST - 1, FIRST, FIRST + 2, 2**64 - 1])
def test_a_commit_number_that_does_not_follow_is_never_read(number: int) -> None:
    data = file_of(THREE[:1])[0] + joined(number, THREE[1])
    if number > FIRST:
        with pytest.raises(JournalDamaged):
            read_file(data, "f")
    else:
        assert holds(read_file(data, "f"), THREE[:1])


def test_what_follows_the_stated_end_is_ignored_even_if_it_is_whole() -> None:
    whole, ends = file_of(THREE)
    assert holds(read_file(whole, "f", ends[1]), THREE[:1])
    assert holds(read_file(whole + b"junk", "f", ends[3]), THREE)


def test_a_file_that_does_not_reach_its_stated_end_is_damaged() -> None:
    whole, ends = file_of(THREE)
    for end in (ends[1] + 1, ends[-1] - 1, ends[-1] + 1, ends[0] - 1, 0):
        with pytest.raises(JournalDamaged):
            read_file(whole, "f", end)
    with pytest.raises(JournalDamaged):
        read_file(flipped(whole, ends[-1] - 1, 0), "f", ends[-1])
    with pytest.raises(JournalDamaged):
        read_file(b"", "f", FILE_HEADER_BYTES)


@settings(max_examples=examples(200))
@given(st.integers(0, 2), st.binary(max_size=8))
def test_user_data_forges_no_commit(copied: int, around: bytes) -> None:
    """Not even a payload that holds this file's earlier commits makes a torn one an error."""
    earlier = file_of(THREE)[0] if copied else joined(FIRST + 9, THREE[0], bytes(16))
    commits = [*THREE, acks(around + earlier + around)]
    whole, ends = file_of(commits)
    assert holds(read_file(whole, "f"), commits)
    assert holds(read_file(flipped(whole, ends[-2] + 17, 1), "f"), THREE)


def test_the_header_alone_can_be_read() -> None:
    header = FileHeader(FILE_ID, 2**40, 2**50, 2**60)
    data = header.encode(HIGHEST)
    assert len(data) == FILE_HEADER_BYTES
    assert read_header(data, 10**9, "f") == header


def test_a_later_version_is_named_and_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    later = FILES.newest + 1
    monkeypatch.setattr("seaweedq.segments.frames.FILES", Format("journal files", {1: later}))
    data = FileHeader(FILE_ID, 0, 0, 0).encode(HIGHEST)
    monkeypatch.undo()
    with pytest.raises(
        NeedsNewerBroker, match=f"^f is in version {later} .* reads version 1; a newer broker is needed"
    ):
        read_file(data, "f")
    with pytest.raises(JournalDamaged, match="damaged header"):
        read_file(flipped(data, 8, 1) + bytes(99), "f")

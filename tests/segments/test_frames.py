"""Frames come back as they were packed, and rows as they were framed."""

from collections.abc import Callable

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seaweedq.errors import JournalDamaged
from seaweedq.segments.frames import ALIGNMENT, Frame, FrameKind, pack, rows_of, unpack
from seaweedq.segments.layout import TIMESTAMP, Layout
from tests.support.segments.frame_samples import FRAMES, LAYOUTS, plain, rows, rows_frame


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
    with pytest.raises(JournalDamaged, match="says 3 rows and holds 2"):
        rows_of(msgspec.structs.replace(frame, count=3), LAYOUTS[1])

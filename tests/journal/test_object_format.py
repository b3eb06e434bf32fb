"""A slot's bytes: what was encoded is decoded, any damage is told, and names are what they say."""

import zlib
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seaweedq.errors import JournalDamaged, NeedsNewerBroker
from seaweedq.journal.interface import Seen
from seaweedq.journal.object_format import (
    HEADER_BYTES,
    SlotHeader,
    SlotKind,
    decode_header,
    decode_slot,
    encode_slot,
    list_slots,
    slot_bytes,
    slot_name,
    slot_number,
)
from seaweedq.segments.frames import Frame, FrameKind, ProducerRange
from seaweedq.storage.memory import MemoryStore

BROKERS = st.text("abc-.09", min_size=1, max_size=100).filter(lambda text: text.strip("."))
HEADERS = st.builds(
    SlotHeader,
    kind=st.sampled_from(SlotKind),
    broker=BROKERS,
    number=st.integers(0, 2**40),
    nonce=st.binary(min_size=16, max_size=16).map(bytes.hex),
    released=st.integers(0, 2**40),
    acknowledged=st.integers(0, 2**40),
    seen=st.builds(Seen, st.integers(0, 2**31), st.integers(0, 2**62)),
)
FRAMES = st.lists(
    st.builds(
        Frame,
        kind=st.sampled_from(FrameKind),
        topic=st.text("flights.-", min_size=1, max_size=9),
        segment=st.integers(0, 2**40),
        first_offset=st.integers(0, 2**40),
        count=st.integers(0, 1000),
        columns=st.integers(0, 15),
        schema_id=st.integers(0, 2**40),
        ranges=st.just((ProducerRange("p", 1, 2, 3, 4, 0),)),
        append_time_us=st.integers(0, 2**50),
        payload=st.binary(max_size=40),
    ),
    max_size=3,
)


@given(HEADERS, FRAMES)
def test_what_was_encoded_is_decoded(header: SlotHeader, frames: list[Frame]) -> None:
    name, data = slot_name(header.broker, header.number), encode_slot(header, frames)
    assert decode_header(data[:HEADER_BYTES], name) == header
    assert slot_bytes(data[:HEADER_BYTES], name) == len(data)
    found, commit = decode_slot(data, name)
    assert (found, commit.number) == (header, header.number)
    assert [(f.kind, f.segment, f.ranges, bytes(f.payload)) for f in commit.frames] == [
        (f.kind, f.segment, f.ranges, f.payload) for f in frames
    ]


@given(HEADERS, FRAMES, st.data())
def test_a_changed_or_missing_byte_is_damage(header: SlotHeader, frames: list[Frame], data: st.DataObject) -> None:
    name, whole = slot_name(header.broker, header.number), encode_slot(header, frames)
    at = data.draw(st.integers(0, len(whole) - 1))
    spoilt = bytearray(whole)
    spoilt[at] ^= data.draw(st.integers(1, 255))
    for other in (bytes(spoilt), whole[:at], whole + b"\0"):
        with pytest.raises(JournalDamaged):
            decode_slot(other, name)


@given(HEADERS, st.integers(0, 2**40))
def test_a_slot_under_another_name_is_damage(header: SlotHeader, number: int) -> None:
    data = encode_slot(header, ())
    for name in (slot_name(header.broker, number), slot_name("other", header.number)):
        if name != slot_name(header.broker, header.number):
            with pytest.raises(JournalDamaged, match="belongs to another object"):
                decode_header(data, name)


def test_a_later_version_is_named_and_is_no_damage() -> None:
    data = bytearray(encode_slot(SlotHeader(SlotKind.DATA, "b", 0, "00" * 16, 0, 0), ()))
    data[8] = 2
    with pytest.raises(JournalDamaged, match="has a damaged header"):
        decode_header(bytes(data), slot_name("b", 0))
    length = int.from_bytes(data[16:18], "little")
    data[12:16] = zlib.crc32(data[16:length], zlib.crc32(data[:12])).to_bytes(4, "little")
    name = slot_name("b", 0)
    with pytest.raises(NeedsNewerBroker, match=f"^{name} is in version 2 .* reads version 1; a newer broker"):
        decode_header(bytes(data), name)


def test_a_kind_of_a_later_version_is_no_damage() -> None:
    data = encode_slot(SlotHeader(cast(SlotKind, 9), "b", 0, "00" * 16, 0, 0), ())
    with pytest.raises(NeedsNewerBroker, match="00000000 is of the unknown kind 9; a newer broker"):
        decode_header(data, slot_name("b", 0))


def test_payloads_stand_where_arrow_reads_them_in_place() -> None:
    for length in range(1, 20):
        frame = Frame(FrameKind.ROWS, "t" * length, 1, 0, 1, 0, 0, (), 0, b"12345678")
        data = encode_slot(SlotHeader(SlotKind.DATA, "b" * length, 0, "00" * 16, 0), [frame])
        assert data.index(b"12345678") % 8 == 0


@given(BROKERS, st.integers(0, 10**12))
def test_names_say_their_number(broker: str, number: int) -> None:
    assert slot_number(slot_name(broker, number), broker) == number


STRANGE = ["1", "0000000x", "00000001.tmp", "", "000000001", "00000001/00000001", "_00000001", "\u0661" * 8]


@pytest.mark.parametrize("name", STRANGE)
def test_what_is_no_slots_name_is_none(name: str) -> None:
    assert slot_number(f"_journals/b/{name}", "b") is None
    assert slot_number("_journals/c/00000001", "b") is None


async def test_what_others_put_beside_slots_is_passed_over_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    for name in ("00000002", "00000001", *(name for name in STRANGE if name)):
        assert await store.create(f"_journals/b/{name}", b"")
    assert await list_slots(store, "b") == [1, 2]
    (record,) = caplog.records
    assert "00000001.tmp" in record.getMessage()


def test_a_brokers_id_that_does_not_fit_is_refused() -> None:
    with pytest.raises(AssertionError, match="too long"):
        encode_slot(SlotHeader(SlotKind.DATA, "b" * 200, 0, "00" * 16, 0), ())

"""A flipped bit in an entry is an error, or harmless: no reader is given other rows than were written."""

import io

import msgspec
import pyarrow as pa
import pytest

from seaweedq.errors import ChainDamaged
from seaweedq.segments.entry import GUARD, EntryMetadata, EntryName, encode_entry, open_entry, read_rows, segment_folder
from seaweedq.segments.rows import Reference, Single, rows_of_singles
from tests.segments.test_entry_bytes import LAYOUT, METADATA

COUNT = 20
NAME = segment_folder("t", 0) + str(EntryName(0, 0))


def entry() -> bytes:
    singles = [
        Single(f"k{n % 7}" if n % 3 else None, b"%d" % n, None, 1_700_000_000_000_000 + n, None, reference(n))
        for n in range(COUNT)
    ]
    metadata = msgspec.structs.replace(METADATA, next_offset=COUNT)
    return bytes(encode_entry([(0, rows_of_singles(singles, LAYOUT))], LAYOUT, metadata))


def reference(n: int) -> Reference | None:
    return Reference(f"s3://b/q/{n:032x}", 1000 + n, "text/plain", f"{n:064x}") if n % 2 else None


def read(data: bytes) -> tuple[pa.RecordBatch, EntryMetadata]:
    parquet, metadata = open_entry(io.BytesIO(data), NAME)
    with parquet:
        return read_rows(parquet, 0, LAYOUT, 0), metadata


def footer_of(data: bytes) -> int:
    return len(data) - 8 - int.from_bytes(data[-8:-4], "little")


@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_of_a_footer_is_damage(bit: int) -> None:
    data = entry()
    for at in range(footer_of(data), len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << bit
        with pytest.raises(ChainDamaged):
            open_entry(io.BytesIO(flipped), NAME)


def test_one_of_the_guard_itself_is_damage() -> None:
    data = entry()
    first = footer_of(data) - GUARD.size
    for at in range(first, first + GUARD.size):
        flipped = bytearray(data)
        flipped[at] ^= 1
        with pytest.raises(ChainDamaged, match="the footer was changed after it was written"):
            read(bytes(flipped))


def test_a_file_without_a_guard_is_damage() -> None:
    data = entry()
    first = footer_of(data) - GUARD.size
    with pytest.raises(ChainDamaged, match="the footer was changed after it was written"):
        read(data[:first] + data[first + GUARD.size :])


@pytest.mark.parametrize("data", [b"", b"PAR1", b"\xff\xff\xff\x7fPAR1", b"PAR1\x00\x00\x00\x00PAR1", b"x" * 100])
def test_what_is_no_file_is_damage(data: bytes) -> None:
    with pytest.raises(ChainDamaged):
        open_entry(io.BytesIO(data), NAME)

"""The bytes of an entry: aligned for direct writes, and the same where they need more room than their rows; and the
memory that encoding them takes."""

from random import Random

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seaweedq.segments import entry
from seaweedq.segments.layout import TIMESTAMP, Format, Layout

LAYOUT = Layout.from_format(Format.BYTES)
METADATA = entry.EntryMetadata("c", "t", 0, 0, 1, 0, 0, 5000, "b", "n", 0, 0, 0, b"")


def rows(count: int) -> pa.RecordBatch:
    random = Random(count)
    values = [random.randbytes(300) for _ in range(count)]
    return pa.RecordBatch.from_arrays([pa.array([1] * count, TIMESTAMP), pa.array(values)], schema=LAYOUT.rows(0))


def test_an_entry_begins_at_a_page_of_memory_and_reads_back() -> None:
    batch = rows(5000)
    data = entry.encode_entry([(0, batch)], LAYOUT, METADATA)
    assert data.address % 4096 == 0
    table = pq.read_table(pa.BufferReader(data))
    assert table["value"].combine_chunks().equals(batch.column("value"))
    assert table["_offset"].to_pylist() == list(range(5000))


def test_an_entry_larger_than_its_room_has_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = rows(5000)
    data = entry.encode_entry([(0, batch)], LAYOUT, METADATA)
    monkeypatch.setattr(entry, "_SPARE_BYTES", -batch.nbytes // 2)
    again = entry.encode_entry([(0, batch)], LAYOUT, METADATA)
    assert again.equals(data)
    assert pq.read_table(pa.BufferReader(again)).num_rows == 5000


def test_large_values_are_encoded_a_page_at_a_time() -> None:
    random = Random(0)
    values = [random.randbytes(12_000) for _ in range(2_000)]
    batch = pa.RecordBatch.from_arrays([pa.array([1] * 2_000, TIMESTAMP), pa.array(values)], schema=LAYOUT.rows(0))
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.system_memory_pool())
    pa.set_memory_pool(pool)
    try:
        metadata = msgspec.structs.replace(METADATA, next_offset=2_000)
        data = entry.encode_entry([(0, batch)], LAYOUT, metadata)
    finally:
        pa.set_memory_pool(before)
    assert pool.max_memory() < 6 << 20  # beside the rows, of 23 MiB, and the file
    assert pq.read_table(pa.BufferReader(data))["value"].combine_chunks().equals(batch.column("value"))


def column_of(*values: pa.Array) -> pq.ColumnChunkMetaData:
    """What the file of these values, of as many commits, says of their column."""
    batches, end = [], 0
    for one in values:
        times = pa.array([1] * len(one), TIMESTAMP)
        batches.append((end, pa.RecordBatch.from_arrays([times, one], schema=LAYOUT.rows(0))))
        end += len(one)
    data = entry.encode_entry(batches, LAYOUT, msgspec.structs.replace(METADATA, next_offset=end))
    assert pq.read_table(pa.BufferReader(data))["value"].equals(pa.chunked_array(values))
    group = pq.read_metadata(pa.BufferReader(data)).row_group(0)
    found = group.column(group.num_columns - 1)
    assert found.compression == "ZSTD"
    return found


@pytest.mark.parametrize("kind", ["noise", "text", "both"])
def test_values_are_compressed_where_that_saves_space(kind: str) -> None:
    noise, text = rows(500).column("value"), pa.array([b'{"carrier":"UA","delay":%d}' % n * 10 for n in range(500)])
    found = column_of(*{"noise": [noise, rows(501).column("value")], "text": [text] * 2, "both": [noise, text]}[kind])
    share = found.total_compressed_size / found.total_uncompressed_size
    assert share > 0.99 if kind == "noise" else share < 0.7

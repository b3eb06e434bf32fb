"""Whether an Arrow stream may expand is read from its metadata, not guessed from its bytes."""

import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seaweedq.segments.ipc_bounds import FEW_MESSAGES, MAX_MESSAGES, is_plain_and_short, may_expand

ZSTD, LZ4 = b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18"


def stream(batch: pa.RecordBatch, compression: str | None = None, count: int = 1) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        for _ in range(count):
            writer.write_batch(batch)
    return sink.getvalue()


PLAIN = pa.record_batch({"value": pa.array([ZSTD * 50, LZ4 * 50])})
DICTIONARY = pa.record_batch({"value": pa.array(["a" * 200, "b" * 200] * 50).dictionary_encode()})


VIEW = pa.record_batch({"value": pa.array(["a" * 200, "b"]).cast(pa.string_view())})


def test_metadata_say_it_whatever_the_values_look_like() -> None:
    assert not may_expand(stream(PLAIN))
    assert may_expand(stream(PLAIN, "zstd"))
    assert may_expand(stream(PLAIN, "lz4"))


@pytest.mark.parametrize("batch", [DICTIONARY, VIEW], ids=["dictionary", "view"])
def test_rows_that_share_bytes_expand_too(batch: pa.RecordBatch) -> None:
    assert may_expand(stream(batch))
    assert not is_plain_and_short(stream(batch), 1_000)


def test_columns_that_share_bytes_are_not_short() -> None:
    whole = stream(pa.record_batch({"a": ["x" * 8], "b": ["y" * 5_000]})).to_pybytes()
    large = whole.index(struct.pack("<qq", 24, 5_000))  # the last buffer in the metadata
    small = large - 3 * 16
    shared = whole[:small] + whole[large : large + 16] + whole[small + 16 :]
    assert is_plain_and_short(pa.py_buffer(whole), 10)
    assert not is_plain_and_short(pa.py_buffer(shared), 10)
    assert pa.ipc.open_stream(shared).read_next_batch().column(0).buffers()[2].size == 5_000


def test_a_later_batch_counts_too() -> None:
    plain, compressed = stream(PLAIN, count=3).to_pybytes(), stream(PLAIN, "zstd").to_pybytes()
    schema = stream(PLAIN, count=0).size - 8  # without the end of the stream
    assert may_expand(pa.py_buffer(plain[:-8] + compressed[schema:]))


def test_a_stream_that_cannot_be_read_may_be() -> None:
    whole = stream(PLAIN).to_pybytes()
    assert may_expand(pa.py_buffer(whole[: len(whole) // 2]))
    assert may_expand(pa.py_buffer(b"\xff\xff\xff\xff\x10\x00\x00\x00" + bytes(8)))
    assert may_expand(stream(PLAIN, count=MAX_MESSAGES))


@given(st.lists(st.integers(0, 40), max_size=6), st.integers(0, 100))
def test_a_streams_rows_are_counted_over_its_batches(lengths: list[int], most: int) -> None:
    schema = pa.schema([("value", pa.string())])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for length in lengths:
            writer.write_batch(pa.record_batch([pa.array(["x"] * length, pa.string())], schema))
    assert is_plain_and_short(sink.getvalue(), most) == (sum(lengths) <= most)


def test_what_is_compressed_or_no_stream_is_not_short() -> None:
    rows = pa.record_batch({"value": ["x"] * 3})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(rows)
    assert not is_plain_and_short(sink.getvalue(), 10)
    assert not is_plain_and_short(pa.py_buffer(b"no stream at all"), 10)
    assert not is_plain_and_short(sink.getvalue().slice(0, 100), 10)


def test_a_stream_of_many_batches_is_not_short() -> None:
    assert is_plain_and_short(stream(PLAIN, count=FEW_MESSAGES - 1), 10**6)  # the schema is a message, too
    assert not is_plain_and_short(stream(PLAIN, count=FEW_MESSAGES), 10**6)

"""A column's hashes are those of its keys, and cutting by them keeps every row, its place and its order."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seaweedq.segments.keyrange import KEY_SPACE, hash_key, tile
from seaweedq.segments.row_hashes import FEW_KEYS, cut, hash_keys, hash_rows, route

KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@given(st.lists(st.none() | KEYS, min_size=1, max_size=50), st.integers(0, 10), st.sampled_from([1, FEW_KEYS]))
def test_columns_and_single_keys_hash_alike(keys: list[str | None], skipped: int, times: int) -> None:
    """`times`: few keys, and so many that all are hashed at once."""
    array = pa.array(keys * times, pa.string()).slice(skipped)
    expected = [0 if key is None else hash_key(key) for key in keys] * times
    assert hash_keys(array).tolist() == expected[skipped:]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_every_type_of_text_hashes_alike(kind: pa.DataType) -> None:
    keys = [*(f"key-{'x' * (n % 40)}" for n in range(FEW_KEYS)), "", None, "\u00fc"]
    expected = [0 if key is None else hash_key(key) for key in keys]
    assert hash_keys(pa.array([key and key.encode() for key in keys]).cast(kind)).tolist() == expected


def test_a_null_hashes_to_zero_also_where_bytes_stand_under_it() -> None:
    offsets = pa.py_buffer(np.arange(0, 4 * FEW_KEYS + 1, 4, dtype=np.int32))
    mask = pa.py_buffer(np.packbits(np.arange(FEW_KEYS) % 2 == 0, bitorder="little"))
    keys = pa.StringArray.from_buffers(FEW_KEYS, offsets, pa.py_buffer(b"abcd" * FEW_KEYS), mask)
    assert hash_keys(keys).tolist() == [hash_key("abcd"), 0] * (FEW_KEYS // 2)


def test_offsets_may_have_bytes_behind_them() -> None:
    offsets = pa.py_buffer(np.arange(0, 4 * FEW_KEYS + 1, 4, dtype=np.int32).tobytes() + b"odd")
    keys = pa.StringArray.from_buffers(FEW_KEYS, offsets, pa.py_buffer(b"abcd" * FEW_KEYS))
    keys.validate(full=True)
    assert hash_keys(keys.slice(3)).tolist() == [hash_key("abcd")] * (FEW_KEYS - 3)


@pytest.mark.parametrize("times", [1, FEW_KEYS])
def test_bytes_that_only_claim_to_be_text_hash_as_bytes(times: int) -> None:
    keys = pa.array([b"\xff\xfe"] * times, pa.binary()).view(pa.string())
    assert hash_keys(keys).tolist() == [hash_key(b"\xff\xfe")] * times


def test_the_hashes_may_be_changed() -> None:
    for times in (1, FEW_KEYS):
        hash_keys(pa.array(["key"] * times))[0] = 0


def test_a_column_without_keys_has_no_hashes() -> None:
    assert hash_keys(pa.array([], pa.string())).tolist() == []


@given(st.lists(st.none() | KEYS, min_size=1, max_size=30), st.text("ab-", min_size=1), st.integers(0, 2**53))
def test_keyless_rows_hash_by_producer_and_their_own_sequence(
    keys: list[str | None], producer: str, first: int
) -> None:
    hashes = hash_rows(pa.array(keys, pa.string()), len(keys), producer, first, lambda: 77)
    for row, (key, hashed) in enumerate(zip(keys, hashes.tolist(), strict=True)):
        assert hashed == hash_key(f"{producer}:{first + row}" if key is None else key)


@given(st.lists(st.none() | KEYS, max_size=30), st.integers(0, KEY_SPACE - 1))
def test_without_a_producer_keyless_rows_share_the_batch_hash(keys: list[str | None], batch: int) -> None:
    hashes = hash_rows(pa.array(keys, pa.string()), len(keys), None, None, lambda: batch)
    assert hashes.tolist() == [batch if key is None else hash_key(key) for key in keys]


def test_a_missing_key_column_is_a_column_of_nulls() -> None:
    nulls = pa.nulls(3, pa.string())
    assert hash_rows(None, 3, "p", 9, lambda: 5).tolist() == hash_rows(nulls, 3, "p", 9, lambda: 5).tolist()
    assert hash_rows(None, 3, None, None, lambda: 5).tolist() == [5, 5, 5]


@given(st.lists(st.integers(0, KEY_SPACE - 1), max_size=50), st.sampled_from([1, 2, 3, 255, 256, 257, 70_000]))
def test_each_hash_goes_to_the_range_that_holds_it(hashes: list[int], n: int) -> None:
    tiles = tile(n)
    bounds = np.array([each.low for each in tiles], np.int32)
    probes = np.array([*hashes, 0, KEY_SPACE - 1, *(bounds[1:4] - 1), *bounds[:4]], np.int32)
    positions = route(probes, bounds)
    assert positions.dtype.itemsize == (1 if n <= 256 else 2 if n <= 65_536 else 4)
    assert all(hashed in tiles[p] for hashed, p in zip(probes.tolist(), positions.tolist(), strict=True))


@given(st.lists(st.integers(0, 4), max_size=60))
def test_cutting_keeps_every_row_in_the_order_of_the_request(where: list[int]) -> None:
    rows = pa.record_batch({"row": pa.array(range(len(where)), pa.int64()), "text": [str(w) for w in where]})
    parts = cut(rows, np.array(where, np.uint8), 5)
    assert [position for position, _, _ in parts] == sorted(set(where))
    for position, part, indexes in parts:
        wanted = [row for row, w in enumerate(where) if w == position]
        assert part["row"].to_pylist() == indexes.tolist() == wanted
        assert set(part["text"].to_pylist()) == {str(position)}


def test_rows_for_one_segment_are_not_copied() -> None:
    rows = pa.record_batch({"row": [1, 2, 3]})
    [(position, part, indexes)] = cut(rows, np.array([2, 2, 2], np.uint8), 3)
    assert (position, part is rows, indexes.tolist()) == (2, True, [0, 1, 2])

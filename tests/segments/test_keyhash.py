"""Key hashes agree with murmur3 itself, and cutting by them keeps every row, its place and its order."""

import mmh3
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seaweedq.segments.keyhash import cut, hash_key, hash_keys, hash_rows, route
from seaweedq.segments.keyrange import KEY_SPACE, tile

KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def expected(key: str) -> int:
    return (mmh3.hash(key.encode(), 0, signed=False) & 0x7FFFFFFF) % KEY_SPACE


@pytest.mark.parametrize(("key", "hashed"), [("iceberg", 1210000089), (b"\x00\x01\x02\x03", 1958800441)])
def test_hashes_are_those_of_the_iceberg_specification(key: str | bytes, hashed: int) -> None:
    """Appendix B of the specification gives these two."""
    assert hash_key(key) == hashed


def test_a_hash_at_the_end_of_the_space_wraps_to_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmh3, "hash", lambda key: -1)
    assert hash_key("any") == 0


@given(st.lists(st.none() | KEYS, max_size=50), st.integers(0, 10))
def test_columns_and_single_keys_hash_alike(keys: list[str | None], skipped: int) -> None:
    array = pa.array(keys, pa.string()).slice(skipped)
    assert hash_keys(array).tolist() == [0 if key is None else expected(key) for key in keys[skipped:]]
    assert all(hash_key(key) == expected(key) == hash_key(key.encode()) for key in keys if key is not None)


@given(st.lists(st.none() | KEYS, min_size=1, max_size=30), st.text("ab-", min_size=1), st.integers(0, 2**53))
def test_keyless_rows_hash_by_producer_and_their_own_sequence(
    keys: list[str | None], producer: str, first: int
) -> None:
    hashes = hash_rows(pa.array(keys, pa.string()), len(keys), producer, first, 77)
    for row, (key, hashed) in enumerate(zip(keys, hashes.tolist(), strict=True)):
        assert hashed == expected(f"{producer}:{first + row}" if key is None else key)


@given(st.lists(st.none() | KEYS, max_size=30), st.integers(0, KEY_SPACE - 1))
def test_without_a_producer_keyless_rows_share_the_batch_hash(keys: list[str | None], batch: int) -> None:
    hashes = hash_rows(pa.array(keys, pa.string()), len(keys), None, None, batch)
    assert hashes.tolist() == [batch if key is None else expected(key) for key in keys]


def test_a_missing_key_column_is_a_column_of_nulls() -> None:
    nulls = pa.nulls(3, pa.string())
    assert hash_rows(None, 3, "p", 9, 5).tolist() == hash_rows(nulls, 3, "p", 9, 5).tolist()
    assert hash_rows(None, 3, None, None, 5).tolist() == [5, 5, 5]


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


def test_a_lone_surrogate_is_an_error_and_no_crash():
    with pytest.raises(UnicodeEncodeError):
        hash_key("\ud800")

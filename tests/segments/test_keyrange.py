"""The key space: cutting and tiling lose and double no hash, and the hash of a key is Iceberg's."""

import subprocess
import sys

import mmh3
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seaweedq.segments.keyrange import KEY_SPACE, KeyRange, hash_key, tile, tiles_key_space

HASHES = st.integers(0, KEY_SPACE - 1)
BOUNDS = st.integers(0, KEY_SPACE)


@st.composite
def ranges(draw: st.DrawFn, least: int = 1) -> KeyRange:
    low = draw(st.integers(0, KEY_SPACE - least))
    return KeyRange(low, draw(st.integers(low + least, KEY_SPACE)))


@pytest.mark.parametrize(("low", "high"), [(5, 5), (6, 5), (-1, 5), (0, KEY_SPACE + 1)])
def test_an_impossible_range_is_refused(low: int, high: int) -> None:
    with pytest.raises(ValueError, match="not a valid key range"):
        KeyRange(low, high)


@given(ranges())
def test_a_range_holds_its_low_end_and_not_its_high_end(each: KeyRange) -> None:
    assert each.low in each
    assert each.high - 1 in each
    assert each.high not in each
    assert each.low - 1 not in each


@given(st.data(), ranges(least=2))
def test_cutting_puts_every_hash_into_exactly_one_part(data: st.DataObject, whole: KeyRange) -> None:
    points = data.draw(st.sets(st.integers(whole.low + 1, whole.high - 1), max_size=8))
    parts = whole.cut(sorted(points))
    assert (parts[0].low, parts[-1].high, len(parts)) == (whole.low, whole.high, len(points) + 1)
    for probe in {*points, whole.low, whole.high - 1, *(point - 1 for point in points)}:
        assert sum(probe in part for part in parts) == 1


@pytest.mark.parametrize("points", [[10], [20], [9], [21], [15, 15], [16, 15]])
def test_points_outside_or_out_of_order_are_refused(points: list[int]) -> None:
    with pytest.raises(ValueError, match="not a valid key range"):
        KeyRange(10, 20).cut(points)


@given(ranges(least=2))
def test_halves_are_even_and_adjacent(whole: KeyRange) -> None:
    one, other = whole.halves()
    assert 0 <= len(other) - len(one) <= 1
    assert (one.low, one.high, other.high) == (whole.low, other.low, whole.high)


def test_a_single_hash_has_no_halves() -> None:
    with pytest.raises(ValueError, match="not a valid key range"):
        KeyRange(7, 8).halves()


@given(st.integers(1, 2000), HASHES)
def test_a_tiling_is_even_and_holds_every_hash_once(n: int, probe: int) -> None:
    tiles = tile(n)
    assert len(tiles) == n
    assert sum(probe in each for each in tiles) == 1
    assert max(map(len, tiles)) - min(map(len, tiles)) <= 1
    assert tiles_key_space(tiles)


@given(st.data(), st.integers(2, 40))
def test_a_missing_or_doubled_or_shifted_part_is_no_tiling(data: st.DataObject, n: int) -> None:
    tiles = data.draw(st.permutations(tile(n)))
    assert tiles_key_space(tiles)
    assert not tiles_key_space(tiles[1:])
    assert not tiles_key_space([*tiles, tiles[0]])
    first = tiles[0]
    assert not tiles_key_space([KeyRange(first.low + (first.low == 0), first.high - (first.low > 0)), *tiles[1:]])


def test_no_ranges_tile_nothing() -> None:
    assert not tiles_key_space([])


@pytest.mark.parametrize(("key", "hashed"), [("iceberg", 1210000089), (b"\x00\x01\x02\x03", 1958800441)])
def test_hashes_are_those_of_the_iceberg_specification(key: str | bytes, hashed: int) -> None:
    """Appendix B of the specification gives these two."""
    assert hash_key(key) == hashed


def test_a_hash_at_the_end_of_the_space_wraps_to_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmh3, "hash", lambda key: -1)
    assert hash_key("any") == 0


def test_a_lone_surrogate_is_an_error_and_no_crash() -> None:
    with pytest.raises(UnicodeEncodeError):
        hash_key("\ud800")


@pytest.mark.process
def test_it_needs_neither_numpy_nor_arrow() -> None:
    code = "import sys, seaweedq.segments.keyrange; assert not {'numpy', 'pyarrow'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)

"""The key space: the hash of a key, which says what segment a message belongs to, and half-open ranges of hashes.

The hash is Iceberg's bucket hash with 2^31-1 buckets: murmur3_x86_32 with seed 0 over the key's UTF-8 bytes, without
the sign bit, modulo 2^31-1 (https://iceberg.apache.org/spec/#bucket-transform-details). Every language has a library
for it. `row_hashes` hashes whole columns; this module needs neither numpy nor Arrow, since clients route by it without
them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import mmh3

KEY_SPACE = 2**31 - 1
"""Hashes are 0 <= hash < KEY_SPACE (Iceberg's largest bucket count)."""


@dataclass(frozen=True, slots=True, order=True)
class KeyRange:
    """The hashes `low <= hash < high`; never empty. Raises ValueError for bounds outside the key space."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high <= KEY_SPACE:
            raise ValueError(
                f"[{self.low}, {self.high}) is not a valid key range; a key range lies within [0, {KEY_SPACE})"
            )

    def __contains__(self, key_hash: int) -> bool:
        return self.low <= key_hash < self.high

    def __len__(self) -> int:
        return self.high - self.low

    def cut(self, points: Iterable[int]) -> "list[KeyRange]":
        """Cuts the range at `points`, which must rise strictly within it; otherwise raises ValueError."""
        return [KeyRange(low, high) for low, high in pairwise((self.low, *points, self.high))]

    def halves(self) -> "list[KeyRange]":
        """Cuts the range into two of equal size, or with one hash more in one; raises ValueError for a range of one
        hash."""
        return self.cut([self.low + len(self) // 2])


def tile(n: int) -> list[KeyRange]:
    """Cuts the whole key space into `n` ranges, in order, whose sizes differ by at most one."""
    return KeyRange(0, KEY_SPACE).cut(KEY_SPACE * i // n for i in range(1, n))


def missing_ranges(ranges: Iterable[KeyRange]) -> list[KeyRange]:
    """Returns the ranges of hashes that none of these ranges contains, rising."""
    found, at = [], 0
    for each in sorted(ranges):
        if each.low > at:
            found.append(KeyRange(at, each.low))
        at = max(at, each.high)
    return [*found, KeyRange(at, KEY_SPACE)] if at < KEY_SPACE else found


def tiles_key_space(ranges: Iterable[KeyRange]) -> bool:
    """Tells whether the ranges, in any order, contain every hash exactly once."""
    at = 0
    for each in sorted(ranges):
        if each.low != at:
            return False
        at = each.high
    return at == KEY_SPACE


def hash_key(key: str | bytes) -> int:
    """Returns the hash of one key, in [0, KEY_SPACE). Raises UnicodeEncodeError for lone surrogates."""
    if isinstance(key, str) and not key.isascii():
        key = key.encode()  # mmh3 itself dies of a lone surrogate
    return (mmh3.hash(key) & 0x7FFFFFFF) % KEY_SPACE

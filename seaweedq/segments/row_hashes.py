"""The hashes of a batch's rows, and the cutting of a batch by them. Decides which segment a row goes to; knows no owner
and no offset. A key's hash is that of `keyrange.hash_key`.

`murmur3` is murmur3_x86_32 of all keys of a column at once, with seed 0 (https://github.com/aappleby/smhasher,
MurmurHash3.cpp). The keys advance together by one word of four bytes a step, so that a step is a few operations of
numpy on the whole column. mmh3 hashes, one after the other, the keys that gain nothing by that: those of a short
column, and long ones, of which a single one would need as many steps as it has words.
"""

import sys
from collections.abc import Callable
from typing import Any, cast

import mmh3
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from seaweedq.segments.keyrange import KEY_SPACE

Words = npt.NDArray[np.uint32]
Numbers = npt.NDArray[np.integer[Any]]

FEW_KEYS = 1_000  # from so many keys on, the steps take less time than mmh3
LONG_BYTES = 32
_WORD_BYTES = 4
_MASKS = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF, 0xFFFFFFFF], np.uint32)  # of a word that has n bytes of the key
Hashes = npt.NDArray[np.int32]
Positions = npt.NDArray[np.unsignedinteger]
Indexes = npt.NDArray[np.intp]


def murmur3(keys: pa.Array) -> Words:
    """Returns the hash of each key of a string or binary array, as a new array; any number for a null."""
    if len(keys) < FEW_KEYS or sys.byteorder != "little":
        return _one_by_one(keys)
    ends = _ends(keys)
    starts, sizes = ends[:-1], np.diff(ends)
    long = np.flatnonzero(sizes > LONG_BYTES)
    if 2 * len(long) > len(keys):
        return _one_by_one(keys)
    hashes = _in_steps(_words(keys, ends), starts - starts[0], sizes)
    if len(long):
        hashes[long] = _one_by_one(keys.take(pa.array(long)))
    return hashes


def _one_by_one(keys: pa.Array) -> Words:
    known = keys.fill_null("") if keys.null_count else keys
    # Not as strings: a request's Arrow may wrongly claim that bytes are UTF-8.
    listed = known.view(pa.large_binary() if _is_large(keys) else pa.binary()).to_pylist()
    return np.fromiter(map(mmh3.hash, listed), np.int32, len(listed)).view(np.uint32)


def _is_large(keys: pa.Array) -> bool:
    return bool(pa.types.is_large_string(keys.type) or pa.types.is_large_binary(keys.type))


def _ends(keys: pa.Array) -> Numbers:
    """Returns where each key begins in the column's bytes, and where the last one ends."""
    kind = np.dtype(np.int64 if _is_large(keys) else np.int32)
    # As many as there are: a request's buffer may be longer, and no multiple of a number.
    return cast(Numbers, np.frombuffer(keys.buffers()[1], kind, len(keys) + 1, keys.offset * kind.itemsize))


def _words(keys: pa.Array, ends: Numbers) -> Words:
    """Returns a view of the keys' bytes that has the word at each of them; behind the last key stand zeros."""
    size = int(ends[-1] - ends[0])
    padded = np.zeros(size + 2 * _WORD_BYTES, np.uint8)
    if size:
        padded[:size] = np.frombuffer(keys.buffers()[2], np.uint8, size, int(ends[0]))
    return np.ndarray((size + _WORD_BYTES,), np.uint32, padded.data, 0, (1,))


def _in_steps(words: Words, starts: Numbers, sizes: Numbers) -> Words:
    shortest, longest = int(sizes.min()), min(int(sizes.max()), LONG_BYTES)
    hashes, spare = np.zeros(len(sizes), np.uint32), np.empty(len(sizes), np.uint32)
    for done in range(0, longest, _WORD_BYTES):
        if done + _WORD_BYTES <= shortest:
            hashes ^= _scrambled(words[starts + done], spare)
            _advance(hashes, spare)
            continue
        left = np.clip(sizes - done, 0, _WORD_BYTES)
        hashes ^= _scrambled(words[np.minimum(starts + done, len(words) - 1)] & _MASKS[left], spare)
        advanced = hashes.copy()
        _advance(advanced, spare)
        np.copyto(hashes, advanced, where=left == _WORD_BYTES)
    hashes ^= sizes.astype(np.uint32)
    return _avalanched(hashes, spare)


def _scrambled(words: Words, spare: Words) -> Words:
    """Changes words as the algorithm does before they meet a hash; 0 stays 0."""
    words *= np.uint32(0xCC9E2D51)
    _rotate(words, 15, spare)
    words *= np.uint32(0x1B873593)
    return words


def _advance(hashes: Words, spare: Words) -> None:
    _rotate(hashes, 13, spare)
    hashes *= np.uint32(5)
    hashes += np.uint32(0xE6546B64)


def _rotate(words: Words, bits: int, spare: Words) -> None:
    np.left_shift(words, np.uint32(bits), out=spare)
    words >>= np.uint32(32 - bits)
    words |= spare


def _avalanched(hashes: Words, spare: Words) -> Words:
    for bits, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, None)):
        np.right_shift(hashes, np.uint32(bits), out=spare)
        hashes ^= spare
        if factor is not None:
            hashes *= np.uint32(factor)
    return hashes


def hash_keys(keys: pa.Array) -> Hashes:
    """Returns the hash of each key of a string or binary array; 0 for a null, which the caller replaces."""
    hashes = murmur3(keys)
    hashes &= np.uint32(0x7FFFFFFF)
    hashes %= np.uint32(KEY_SPACE)
    if keys.null_count:
        hashes[keys.is_null().to_numpy(zero_copy_only=False)] = 0
    return hashes.view(np.int32)


def hash_rows(
    keys: pa.Array | None, count: int, producer: str | None, sequence: int | None, draw: Callable[[], int]
) -> Hashes:
    """Returns the hash of each of a request's `count` rows.

    A row without a key gets the hash of `{producer}:{sequence of the row}`, where `sequence` is the first row's.
    Without a producer all of them get one value that is drawn for the batch, in [0, KEY_SPACE).
    """
    if keys is not None and keys.null_count == 0:
        return hash_keys(keys)
    keyless = np.arange(count) if keys is None else np.flatnonzero(keys.is_null())
    hashes = np.zeros(count, np.int32) if keys is None else hash_keys(keys).copy()
    hashes[keyless] = draw() if producer is None else _hash_sequences(producer, keyless + cast(int, sequence))
    return hashes


def _hash_sequences(producer: str, sequences: npt.NDArray[np.int64]) -> Hashes:
    return hash_keys(pc.binary_join_element_wise(producer, pa.array(sequences).cast(pa.string()), ":"))


def route(hashes: Hashes, bounds: npt.NDArray[np.int32]) -> Positions:
    """Returns the index of the range that each hash falls into; `bounds` are the sorted low ends of ranges that tile
    the key space.

    Positions have the narrowest type that holds them, since sorting bytes is fast.
    """
    narrow = np.min_scalar_type(len(bounds) - 1)
    return cast(Positions, (np.searchsorted(bounds, hashes, side="right") - 1).astype(narrow))


def cut(rows: pa.RecordBatch, positions: Positions, n: int) -> list[tuple[int, pa.RecordBatch, Indexes]]:
    """Groups rows by segment: (segment position, rows, their indexes in the request) for each of `n` segments that has
    any.

    Keeps the request's order within a segment. Rows that all go to one segment are returned uncopied; otherwise the
    groups are slices that share the buffers of one sorted copy.
    """
    if not len(positions):
        return []
    counts = np.bincount(positions, minlength=n)
    if counts[positions[0]] == rows.num_rows:
        return [(int(positions[0]), rows, np.arange(rows.num_rows))]
    order = np.argsort(positions, kind="stable")
    taken = rows.take(pa.array(order))
    ends = np.cumsum(counts)
    return [
        (int(p), taken.slice(ends[p] - counts[p], counts[p]), order[ends[p] - counts[p] : ends[p]])
        for p in np.flatnonzero(counts)
    ]

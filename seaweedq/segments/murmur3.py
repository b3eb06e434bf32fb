"""murmur3_x86_32 of all keys of a column at once, with seed 0 (https://github.com/aappleby/smhasher, MurmurHash3.cpp).

The keys advance together by one word of four bytes a step, so that a step is a few operations of numpy on the whole
column. mmh3 hashes, one after the other, the keys that gain nothing by that: those of a short column, and long ones, of
which a single one would need as many steps as it has words.
"""

import sys
from typing import Any, cast

import mmh3
import numpy as np
import numpy.typing as npt
import pyarrow as pa

Words = npt.NDArray[np.uint32]
Numbers = npt.NDArray[np.integer[Any]]

FEW_KEYS = 1_000  # from so many keys on, the steps take less time than mmh3
LONG_BYTES = 32
_WORD_BYTES = 4
_MASKS = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF, 0xFFFFFFFF], np.uint32)  # of a word that has n bytes of the key


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

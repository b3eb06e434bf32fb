"""The hashes of a batch's rows, and the cutting of a batch by them. Decides which segment a row goes to; knows no owner
and no offset. A key's hash is that of `keyhash`.
"""

from collections.abc import Callable
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from seaweedq.segments.keyrange import KEY_SPACE
from seaweedq.segments.murmur3 import murmur3

Hashes = npt.NDArray[np.int32]
Positions = npt.NDArray[np.unsignedinteger]
Indexes = npt.NDArray[np.intp]


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

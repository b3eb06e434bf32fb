"""The rows of the key space's history: what one segment has taken in one stretch of time, and how rows become fewer.

Whatever is merged, sums of messages and bytes stay: a merged row has the union of the ranges and times, and the hot key
of the largest share. One of several segments has the number SEVERAL.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

ROW = np.dtype(
    [
        ("topic", np.int32),
        ("segment", np.int64),
        ("low", np.int32),
        ("high", np.int32),
        ("begin_ms", np.int32),  # since the beginning of the column
        ("end_ms", np.int32),
        ("messages", np.int64),
        ("size_bytes", np.int64),
        ("hot_hash", np.int32),
        ("hot_share", np.float32),
    ]
)
SEVERAL, NO_HASH = -1, -1
Rows = npt.NDArray[np.void]
Key = npt.NDArray[np.int64]
_LOWEST, _HIGHEST, _SUMS = ("low", "begin_ms"), ("high", "end_ms"), ("messages", "size_bytes")


def grouped(rows: Rows, keys: Sequence[Key]) -> tuple[Rows, Key]:
    """Returns one row for all rows that have the same keys, in the order of the keys, of which the last counts most;
    and the place of one of those rows for each."""
    if not len(rows):
        return rows, np.empty(0, np.int64)
    order = np.lexsort((-rows["hot_share"], *keys))  # so that the first row of a group has its hottest key
    differs = np.zeros(len(rows), bool)
    differs[0] = True
    for key in keys:
        sorted_key = key[order]
        differs[1:] |= sorted_key[1:] != sorted_key[:-1]
    starts = np.flatnonzero(differs)
    rows = rows[order]
    found = rows[starts]
    for names, reduce in ((_LOWEST, np.minimum), (_HIGHEST, np.maximum), (_SUMS, np.add)):
        for name in names:
            found[name] = reduce.reduceat(rows[name], starts)
    least, most = (reduce.reduceat(rows["segment"], starts) for reduce in (np.minimum, np.maximum))
    found["segment"] = np.where(least == most, least, SEVERAL)
    return found, order[starts]


def by_segment(rows: Rows) -> list[Key]:
    """Returns the keys that tell segments apart, and the ranges of several."""
    return [whole(rows[name]) for name in ("high", "low", "segment", "topic")]


def capped(rows: Rows, most: int) -> Rows:
    """Returns at most so many rows: neighbours in the key space are merged, and where more topics remain than that,
    those with the fewest messages are left out."""
    while len(rows) > most:
        halved = _halved(rows)
        if len(halved) == len(rows):
            return rows[np.argsort(-rows["messages"], kind="stable")[:most]]
        rows = halved
    return rows


def _halved(rows: Rows) -> Rows:
    rows = rows[np.lexsort((rows["begin_ms"], rows["low"], rows["topic"]))]
    at = np.arange(len(rows))
    first = np.searchsorted(rows["topic"], rows["topic"])  # of the topic's rows
    return grouped(rows, [(at - first) // 2, whole(rows["topic"])])[0]


def whole(values: npt.NDArray[np.generic]) -> Key:
    """Returns numbers as keys."""
    return values.astype(np.int64)

"""Compares a broker's answers with the files: rows of one segment against the pages of a fetch, value by value.

A fetch leaves expired messages out. Every other row of a file must be returned, unchanged.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seaweedq.segments.layout import TIMESTAMP

SKEW_US = 60 * 1_000_000  # by how much the broker's clock may be ahead of ours


def disagreement(rows: pa.Table, answer: pa.Table, first: int, end: int, now_us: int) -> str | None:
    """Returns how an answer for the offsets [first, end) differs from `rows`, whose dense offsets include them. None:
    it agrees."""
    rows = rows.slice(first - rows["_offset"][0].as_py(), end - first)
    offsets = answer["_offset"].to_numpy()
    if problem := misplaced(answer, first, end):
        return problem
    missing = np.ones(end - first, dtype=bool)
    missing[offsets - first] = False
    expired = pc.less_equal(rows["_expires"], pa.scalar(now_us + SKEW_US, TIMESTAMP)).fill_null(False).to_numpy()
    lost = np.flatnonzero(missing & ~expired)
    if len(lost):
        return f"offset {first + int(lost[0])} is in the files, but the broker does not return it"
    kept = rows.filter(pa.array(~missing)) if missing.any() else rows
    return _different(kept, answer)


def misplaced(answer: pa.Table, first: int, end: int) -> str | None:
    """Returns an error text unless the offsets of an answer rise and lie within [first, end)."""
    offsets = answer["_offset"].to_numpy()
    if len(offsets) and not (first <= offsets[0] and offsets[-1] < end and (np.diff(offsets) > 0).all()):
        answered = f"its answer, from {offsets[0]} to {offsets[-1]}, is out of range or out of order"
        return f"the broker was asked for the offsets {first} to {end - 1}, but {answered}"
    return None


def _different(rows: pa.Table, answer: pa.Table) -> str | None:
    if rows.schema.names != answer.schema.names:
        return f"the broker returns the columns {answer.schema.names}, but the files have {rows.schema.names}"
    for name in rows.schema.names:
        mine, theirs = rows[name].combine_chunks(), answer[name].combine_chunks()
        if not _same(mine, theirs):
            at = _first_difference(mine, theirs)
            return f"the broker returns a different {name} at offset {rows['_offset'][at].as_py()} than the files hold"
    return None


def _same(mine: pa.Array, theirs: pa.Array) -> bool:
    """Compares bit by bit, so that a NaN equals itself."""
    if mine.type == theirs.type and pa.types.is_floating(mine.type):
        bits = pa.int64() if mine.type.bit_width == 64 else pa.int32()
        mine, theirs = mine.view(bits), theirs.view(bits)
    return bool(mine.equals(theirs))


def _first_difference(mine: pa.Array, theirs: pa.Array) -> int:
    low, high = 0, len(mine)  # equal below low, different below high
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if _same(mine[low:middle], theirs[low:middle]) else (low, middle)
    return low

"""The history of one topic as cells: rectangles of time and key range, at most so many as are asked for. Pure.

Where there are more, they become coarser in time and in the key space in turn, as a picture of them would be. Sums of
messages and bytes stay.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from seaweedq.balancer.history import Column
from seaweedq.balancer.history_rows import NO_HASH, ROW, SEVERAL, Key, Rows, grouped, whole
from seaweedq.segments.keyrange import KEY_SPACE

FINE_BANDS, ROUGH_BANDS, ROUGH_COLUMNS = 256, 16, 60  # of a picture, and of a small one


class Cell(msgspec.Struct, array_like=True, frozen=True):
    """The messages of a range of keys that one segment, or several neighbours (`segment` is None), took in a time."""

    begin_us: int
    end_us: int
    low: int
    high: int
    segment: int | None
    messages: int
    size_bytes: int
    hot_key: tuple[int, float] | None = None


def cells(columns: Sequence[Column], most: int) -> list[Cell]:
    """Returns the cells of columns that have one topic's rows, in the order of time and key range."""
    if not columns:
        return []
    begin_us = columns[0].begin_us // 1000 * 1000
    rows, column = _together(columns)
    return [_cell(one, begin_us) for one in _fewer(rows, column, most).tolist()]


def _together(columns: Sequence[Column]) -> tuple[Rows, Key]:
    """Returns all rows, with times since the beginning of the first column, and the number of the column of each."""
    found = []
    for one in columns:
        rows = one.rows.copy()
        for name in ("begin_ms", "end_ms"):
            rows[name] += one.begin_us // 1000 - columns[0].begin_us // 1000
        found.append(rows)
    counts = [len(rows) for rows in found]
    return np.concatenate(found) if found else np.empty(0, ROW), np.repeat(np.arange(len(columns)), counts)


def _fewer(rows: Rows, column: Key, most: int) -> Rows:
    bands = FINE_BANDS
    if len(rows) > most:  # so many columns at least must become one, so that they are sorted once and not often
        ends = min(len(rows), 2 * FINE_BANDS * (int(column.max()) + 1))
        column = column >> max(0, (ends // most).bit_length() - 1)
        rows, column = _merged(rows, column, bands)
    while len(rows) > most and (bands > 1 or column.max() > 0):
        columns = int(column.max()) + 1
        if columns == 1 or (columns <= ROUGH_COLUMNS and bands > ROUGH_BANDS):
            bands = bands // 2
        else:
            column = column // 2
        rows, column = _merged(rows, column, bands)
    return rows[np.lexsort((rows["segment"], rows["low"], rows["begin_ms"]))]


def _merged(rows: Rows, column: Key, bands: int) -> tuple[Rows, Key]:
    """Returns one row for what is of one column and one segment, or lies within one of so many equal parts of the key
    space; and the columns of these rows."""
    low, high = whole(rows["low"]), whole(rows["high"])
    first, last = low * bands // KEY_SPACE, (high - 1) * bands // KEY_SPACE
    segment = whole(rows["segment"])
    several = bands + segment.max(initial=0) + 1 + low  # a row of several is alone by its range
    part = np.where(first == last, first, np.where(segment == SEVERAL, several, bands + segment))
    rows, places = grouped(rows, [column * (part.max(initial=0) + 1) + part])
    return rows, column[places]


def _cell(row: tuple[int, ...], begin_us: int) -> Cell:
    _, segment, low, high, begin_ms, end_ms, messages, size_bytes, hot_hash, hot_share = row
    return Cell(
        begin_us + begin_ms * 1000,
        begin_us + end_ms * 1000,
        low,
        high,
        None if segment == SEVERAL else segment,
        messages,
        size_bytes,
        None if hot_hash == NO_HASH else (hot_hash, hot_share),
    )

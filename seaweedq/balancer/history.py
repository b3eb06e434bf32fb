"""The key space's history of one hour, in bounded memory, and its picture as cells. Knows no clock.

A *column* is a stretch of time, and has a row for each segment that took messages in it; an idle segment costs nothing.
Columns are as long as their writer makes them. When all of them need more than the limit, the oldest two of the
shortest ones become one, so the past is coarser than the present; a column of too many rows merges neighbours in the
key space. So neither the number of segments nor time can exceed the limit.

No merge loses a message: a merged row has the sums, the union of the ranges and times, and the hot key of the largest
share. A row of several segments has the number SEVERAL. Cells are rectangles of time and key range, at most as many as
a reader wants: they become coarser in time and in the key space in turn, as a picture of them would be.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from seaweedq.balancer.placement import SegmentId, TopicId
from seaweedq.segments.keyrange import KEY_SPACE, KeyRange

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
LIMIT_BYTES = 32 * 1024 * 1024
KEPT_US = 3_600_000_000
TOPIC_BYTES, COLUMN_BYTES = 512, 1024  # the bytes of one of each, beside its rows
LEAST_COLUMNS = 24  # that always fit
_LONGEST_MS = 2**31 - 1
FINE_BANDS, ROUGH_BANDS, ROUGH_COLUMNS = 256, 16, 60  # of a picture, and of a small one


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
    """Returns at most so many rows: neighbours in the key space are merged, and if more topics remain than that,
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


@dataclass(frozen=True, slots=True)
class SegmentTraffic:
    """The messages that a segment has taken within a column while it was open. `hot_key` is a hash and its share."""

    segment: SegmentId
    range: KeyRange
    begin_us: int
    end_us: int
    messages: int
    size_bytes: int
    hot_key: tuple[int, float] | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """A stretch of time, and its rows. It was made of about two to the power of `level` columns."""

    begin_us: int
    end_us: int
    rows: Rows
    level: int = 0

    @property
    def size_bytes(self) -> int:
        """Returns the bytes that it takes."""
        return self.rows.nbytes + COLUMN_BYTES


class History:
    """The columns of the last hour, the oldest first; `begin_us` is since when everything is known that they have."""

    def __init__(self, begin_us: int, limit_bytes: int = LIMIT_BYTES, kept_us: int = KEPT_US) -> None:
        self.begin_us = self.end_us = begin_us
        self._limit_bytes = limit_bytes
        self._kept_us = kept_us
        self._most_rows = max(1, limit_bytes // (LEAST_COLUMNS * ROW.itemsize))
        self._columns: tuple[Column, ...] = ()  # is replaced and never changed: other threads read it
        self._topics: dict[TopicId, int] = {}
        self._next_topic = 0

    @property
    def size_bytes(self) -> int:
        """Returns the bytes that all of it takes."""
        return sum(column.size_bytes for column in self._columns) + TOPIC_BYTES * len(self._topics)

    @property
    def columns(self) -> Sequence[Column]:
        """Returns the columns, the oldest first."""
        return self._columns

    def add(self, end_us: int, taken: Iterable[SegmentTraffic]) -> None:
        """Adds a column from the end of the last one to `end_us`, which is later."""
        assert end_us > self.end_us, f"a column from {self.end_us} to {end_us}"
        rows = np.array([self._row(one, end_us) for one in taken], ROW)
        column = Column(self.end_us, end_us, capped(rows, self._most_rows))
        self.end_us = end_us
        kept = tuple(one for one in self._columns if one.end_us > end_us - self._kept_us)
        self._columns = (*kept, column)
        self.begin_us = self._columns[0].begin_us
        self._bound()

    def columns_of(self, topic: TopicId, since_us: int, until_us: int) -> list[Column]:
        """Returns the columns that reach into that time, with the rows of one topic alone. Any thread may call it."""
        number = self._topics.get(topic)
        found = [one for one in self._columns if one.end_us > since_us and one.begin_us < until_us]
        return [
            Column(one.begin_us, one.end_us, one.rows[one.rows["topic"] == (-1 if number is None else number)])
            for one in found
        ]

    def _row(self, taken: SegmentTraffic, end_us: int) -> tuple[float, ...]:
        hot_hash, hot_share = taken.hot_key or (NO_HASH, 0.0)
        begin_us = min(max(taken.begin_us, self.end_us), end_us)
        ends_us = min(max(taken.end_us, begin_us), end_us)
        return (
            self._number(taken.segment[:2]),
            taken.segment[2],
            taken.range.low,
            taken.range.high,
            min((begin_us - self.end_us) // 1000, _LONGEST_MS),
            min(-(-(ends_us - self.end_us) // 1000), _LONGEST_MS),
            taken.messages,
            taken.size_bytes,
            hot_hash,
            hot_share,
        )

    def _number(self, topic: TopicId) -> int:
        number = self._topics.get(topic)
        if number is None:
            number = self._topics[topic] = self._next_topic
            self._next_topic += 1
        return number

    def _bound(self) -> None:
        self._forget_topics()
        while self.size_bytes > self._limit_bytes and len(self._columns) > 1:
            at = self._oldest_pair()
            one, other = self._columns[at : at + 2]
            self._columns = (*self._columns[:at], self._merged(one, other), *self._columns[at + 2 :])
            self._forget_topics()

    def _oldest_pair(self) -> int:
        """Returns the place of the oldest two neighbours of the lowest level that has two; else of the oldest ones."""
        levels = [column.level for column in self._columns]
        pairs = [(levels[at], at) for at in range(len(levels) - 1) if levels[at] == levels[at + 1]]
        return min(pairs, default=(0, 0))[1]

    def _merged(self, one: Column, other: Column) -> Column:
        later = other.rows.copy()
        shift_ms = other.begin_us // 1000 - one.begin_us // 1000
        for name in ("begin_ms", "end_ms"):
            later[name] = np.minimum(later[name].astype(np.int64) + shift_ms, _LONGEST_MS)
        rows = np.concatenate([one.rows, later])
        rows = capped(grouped(rows, by_segment(rows))[0], self._most_rows)
        return Column(one.begin_us, other.end_us, rows, max(one.level, other.level) + 1)

    def _forget_topics(self) -> None:
        """Forgets topics that no column has, once they are many."""
        if TOPIC_BYTES * len(self._topics) <= self._limit_bytes // 8:
            return
        there = set(np.unique(np.concatenate([column.rows["topic"] for column in self._columns])).tolist())
        self._topics = {topic: number for topic, number in self._topics.items() if number in there}


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
    """Returns one row for all rows of one column and one segment, or within one of so many equal parts of the key
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

"""The key space's history of one hour: what the segments of all topics have taken, in bounded memory.

A *column* is a stretch of time, and has a row for each segment that took something in it; an idle segment costs
nothing. Columns are as long as their writer makes them. Where all of them need more than the limit, the oldest two of
the shortest ones become one, so that what is long ago is coarser than what is new; a column of too many rows merges
neighbours in the key space (balancer/history_rows). So neither the number of segments nor time can exceed the limit,
and no merge loses a message. Knows no clock.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from seaweedq.balancer.columns import TopicId
from seaweedq.balancer.history_rows import NO_HASH, ROW, Rows, by_segment, capped, grouped
from seaweedq.balancer.placement import SegmentId
from seaweedq.segments.keyrange import KeyRange

LIMIT_BYTES = 32 * 1024 * 1024
KEPT_US = 3_600_000_000
TOPIC_BYTES, COLUMN_BYTES = 512, 1024  # what one of each takes beside its rows
LEAST_COLUMNS = 24  # that always fit
_LONGEST_MS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Taken:
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

    def add(self, end_us: int, taken: Iterable[Taken]) -> None:
        """Adds a column from the end of the last one to `end_us`, which is later."""
        assert end_us > self.end_us, f"a column from {self.end_us} to {end_us}"
        rows = np.array([self._row(one, end_us) for one in taken], ROW)
        column = Column(self.end_us, end_us, capped(rows, self._most_rows))
        self.end_us = end_us
        kept = tuple(one for one in self._columns if one.end_us > end_us - self._kept_us)
        self._columns = (*kept, column)
        self.begin_us = self._columns[0].begin_us
        self._bound()

    def of(self, topic: TopicId, since_us: int, until_us: int) -> list[Column]:
        """Returns the columns that reach into that time, with the rows of one topic alone. Any thread may call it."""
        number = self._topics.get(topic)
        found = [one for one in self._columns if one.end_us > since_us and one.begin_us < until_us]
        return [
            Column(one.begin_us, one.end_us, one.rows[one.rows["topic"] == (-1 if number is None else number)])
            for one in found
        ]

    def _row(self, taken: Taken, end_us: int) -> tuple[float, ...]:
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

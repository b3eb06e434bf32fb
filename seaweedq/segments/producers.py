"""The producer tables of a segment: the requests of idempotent producers that it holds, and their offsets.

Owns the verdict new, duplicate or out of order, and how the tables are kept, bounded, inherited and encoded. They see
only recorded requests; the code that commits makes a repeat wait for the first attempt. Evicted requests (all but a
producer's newest ones, producers idle for too long, the least recently used beyond a limit) are no longer guarded.

A segment has a table for each *part* of its range: a split's successors inherit those of the old segment, clipped, and
a merge keeps the parts of both apart. So a request that is cut by parts gets the same verdict as before.
"""

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise

import msgspec

from seaweedq.formats import Format
from seaweedq.segments.keyrange import KeyRange

DAY_US = 24 * 3600 * 1_000_000
FORWARD = "~"  # the name of a forwarding broker's producer begins with it, and no client's does
IMPORT = "~import."  # the name of an import's producer begins with it


@dataclass(frozen=True, slots=True)
class Sequences:
    """A request's producer and the inclusive range of its sequence numbers."""

    producer: str
    low: int
    high: int


class Remembered(msgspec.Struct, array_like=True, frozen=True):
    """A request's inclusive sequence range, and the first offset of its `count` rows in `segment`: this segment, or a
    predecessor."""

    low: int
    high: int
    segment: int
    first_offset: int
    count: int


@dataclass(frozen=True, slots=True)
class New:
    """The request is above everything known of the producer: it is to be appended."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The request is durable already, in `segment` from `first_offset` on, with all its rows of the part that it fell
    into then."""

    segment: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class OutOfOrder:
    """The request is neither new nor remembered; `newest` is the highest known sequence."""

    newest: int


Verdict = New | Duplicate | OutOfOrder


class _Producer(msgspec.Struct, array_like=True):
    used_us: int
    requests: list[Remembered]  # rising


class _Part(msgspec.Struct, array_like=True):
    low: int
    high: int
    producers: dict[str, _Producer]


class _Versioned(msgspec.Struct, array_like=True):
    version: int


class _Encoded(_Versioned, array_like=True):
    parts: list[_Part]


TABLES = Format("producer tables", {1: 2})  # there was no level when version 1 went


@dataclass
class ProducerTable:
    """The table of one part `key_range` of a segment; at most `limit` producers with `remembered` requests each."""

    segment: int
    key_range: KeyRange
    limit: int = 1000
    remembered: int = 8
    ttl_us: int = DAY_US
    _producers: dict[str, _Producer] = field(default_factory=dict, init=False)  # least recently used first

    def judge(self, producer: str, low: int, high: int, count: int) -> Verdict:
        """Judges the request of the sequences `low` to `high`, of which `count` rows fall into this part.

        The row count of a request that a predecessor holds is not compared, since other rows may fall into this part
        than fell into its.
        """
        known = self._producers.get(producer)
        if known is None or low > known.requests[-1].high:
            return New()
        for request in known.requests:
            counted = request.count == count or request.segment != self.segment
            if (request.low, request.high) == (low, high) and counted:
                return Duplicate(request.segment, request.first_offset)
        return OutOfOrder(known.requests[-1].high)

    def record(self, producer: str, low: int, high: int, first_offset: int, count: int, now_us: int) -> None:
        """Records a durable request. If it is not above the newest, the table has or had it already, and does not
        change."""
        known = self._producers.get(producer) or _Producer(now_us, [])
        if not known.requests or low > known.requests[-1].high:
            known.requests.append(Remembered(low, high, self.segment, first_offset, count))
            del known.requests[: -self.remembered]
            known.used_us = now_us
            self._producers.pop(producer, None)
            self._producers[producer] = known
        self.evict(now_us)

    def _is_idle(self, since_us: int) -> bool:
        return any(oldest.used_us < since_us for oldest in islice(self._producers.values(), 1))

    def inherit(self, segment: int, key_range: KeyRange) -> "ProducerTable":
        """Returns the table of a later segment for a part within this one's, with the same requests."""
        table = ProducerTable(segment, key_range, self.limit, self.remembered, self.ttl_us)
        table._producers = {name: _Producer(p.used_us, list(p.requests)) for name, p in self._producers.items()}
        return table

    def evict(self, now_us: int) -> None:
        """Evicts the producers that are no longer guarded."""
        while len(self._producers) > self.limit or self._is_idle(now_us - self.ttl_us):
            del self._producers[next(iter(self._producers))]

    def forget(self, prefix: str, since_us: int) -> None:
        """Removes the producers whose names begin with `prefix` and that were last used before `since_us`."""
        gone = [name for name, p in self._producers.items() if name.startswith(prefix) and p.used_us < since_us]
        for name in gone:
            del self._producers[name]

    def __bool__(self) -> bool:
        return bool(self._producers)


class ProducerTables:
    """The tables of a segment's parts, which tile its range. `part` is the low end of a part."""

    def __init__(self, tables: Iterable[ProducerTable]) -> None:
        self._tables = {table.key_range.low: table for table in tables}

    @staticmethod
    def empty(segment: int, key_range: KeyRange, cuts: Sequence[int] = ()) -> "ProducerTables":
        """Returns empty tables for a segment without predecessors; `cuts` are the inner bounds of its parts."""
        return ProducerTables(ProducerTable(segment, part) for part in key_range.cut(cuts))

    @staticmethod
    def inherited(
        segment: int, key_range: KeyRange, cuts: Sequence[int], before: Iterable["ProducerTables"]
    ) -> "ProducerTables":
        """Returns the tables of a segment whose predecessors had the tables `before`; its parts are `inherited_cuts` of
        them."""
        old = [table for tables in before for table in tables._tables.values()]
        return ProducerTables(
            next((t.inherit(segment, part) for t in old if part.low in t.key_range), ProducerTable(segment, part))
            for part in key_range.cut(cuts)
        )

    def judge(self, part: int, producer: str, low: int, high: int, count: int) -> Verdict:
        """As ProducerTable.judge, for the part that begins at `part`."""
        return self._tables[part].judge(producer, low, high, count)

    def record(self, part: int, producer: str, low: int, high: int, first_offset: int, count: int, now_us: int) -> None:
        """As ProducerTable.record, for the part that begins at `part`."""
        self._tables[part].record(producer, low, high, first_offset, count, now_us)

    def evict(self, now_us: int) -> None:
        """Evicts the producers that are no longer guarded."""
        for table in self._tables.values():
            table.evict(now_us)

    def forget(self, prefix: str, since_us: int) -> None:
        """Removes the producers whose names begin with `prefix` and that were last used before `since_us`."""
        for table in self._tables.values():
            table.forget(prefix, since_us)

    @property
    def parts(self) -> list[ProducerTable]:
        """Returns the tables, ordered by their ranges."""
        return [self._tables[low] for low in sorted(self._tables)]

    def encode(self, level: int) -> bytes:
        """Encodes all tables as that level of the cluster has them: compressed, without the bounds (limit, remembered,
        ttl)."""
        parts = [_Part(table.key_range.low, table.key_range.high, table._producers) for table in self.parts]
        return zlib.compress(msgspec.msgpack.encode(_Encoded(TABLES.at(level), parts)), 1)

    @staticmethod
    def decode(
        data: bytes, segment: int, limit: int = 1000, remembered: int = 8, ttl_us: int = DAY_US
    ) -> "ProducerTables":
        """Decodes the tables of `segment` that `encode` wrote. Raises NeedsNewerBroker for a later version, and
        ValueError for any other bytes."""
        try:
            unpacked = zlib.decompress(data)
            version = msgspec.msgpack.decode(unpacked, type=_Versioned).version
            TABLES.check(version, f"segment {segment}")  # first, since a later version may have other members
            encoded = msgspec.msgpack.decode(unpacked, type=_Encoded)
        except (zlib.error, msgspec.DecodeError) as error:
            raise ValueError(f"the producer tables cannot be read: {error}") from error
        tables = []
        for part in encoded.parts:
            table = ProducerTable(segment, KeyRange(part.low, part.high), limit, remembered, ttl_us)
            table._producers = part.producers
            tables.append(table)
        return ProducerTables(tables)


def inherited_cuts(key_range: KeyRange, before: Iterable[ProducerTables]) -> tuple[int, ...]:
    """Returns the inner bounds of a successor's parts: those of its predecessors within `key_range`, except between two
    neighbours of which neither knows a producer."""
    old = sorted((table for tables in before for table in tables.parts), key=lambda table: table.key_range)
    return tuple(
        right.key_range.low
        for left, right in pairwise(old)
        if key_range.low < right.key_range.low < key_range.high and (left or right)
    )

"""The producer tables of a segment: the requests of idempotent producers that it holds, and their offsets.

Owns the verdict new, duplicate or out of order, and how the tables are kept, bounded, inherited and encoded. They see
only recorded requests; the code that commits makes a repeat wait for the first attempt. Evicted requests (all but a
producer's newest ones, producers idle for too long, the least recently used beyond a limit) are no longer guarded.

Each *kind* of producer has a limit and a lifetime of its own: a client, a broker that forwards, an import, a write, a
dispatcher of dead letters. A lifetime counts the time that the table is open in a process, by its monotonic clock, and
begins anew whenever it is opened: no wall clock, however wrong, evicts a producer, and none that was idle elsewhere is
evicted too early.

A segment has a table for each *part* of its range: a split's successors inherit those of the old segment, clipped, and
a merge keeps the parts of both apart. So a request that is cut by parts gets the same verdict as before.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import pairwise

import msgspec

from seaweedq.formats import Format
from seaweedq.segments.keyrange import KeyRange

FORWARD = "~forward."  # the name of a forwarding broker's producer begins with it
IMPORT = "~import."  # the name of an import's producer begins with it
WRITE = "~write."  # the name of a write's producer begins with it
LETTERS = "~letter."  # the name of a dispatcher's producer of dead letters begins with it; it is of kind LETTERS
AUDIT = "~audit."  # the name of a broker's producer of rows of the audit begins with it; it is of kind FORWARD
OURS = "~"  # no client's name begins with it

OF_PRINCIPAL = "~"  # between a principal's `uid` and the name of its producer; neither has the sign


@dataclass(frozen=True, slots=True)
class Guard:
    """How long a kind of producer is guarded: at most `limit` producers of a table, with `remembered` requests each,
    for `lifetime_s` without a new one."""

    limit: int
    remembered: int
    lifetime_s: float


class Kind(Enum):
    """The kinds of producers, which their names tell."""

    CLIENT = auto()
    FORWARD = auto()
    IMPORT = auto()
    WRITE = auto()
    LETTERS = auto()

    @staticmethod
    def from_producer(producer: str) -> "Kind":
        """Returns the kind of a producer of this name."""
        if not producer.startswith(OURS):
            return Kind.CLIENT
        if producer.startswith(LETTERS):
            return Kind.LETTERS
        if producer.startswith(WRITE):
            return Kind.WRITE
        return Kind.IMPORT if producer.startswith(IMPORT) else Kind.FORWARD


GUARDS: Mapping[Kind, Guard] = {
    Kind.CLIENT: Guard(limit=1_000, remembered=8, lifetime_s=24 * 3600),
    Kind.FORWARD: Guard(limit=10_000, remembered=2, lifetime_s=600),  # an older one is not tried any more
    Kind.IMPORT: Guard(limit=1_000, remembered=8, lifetime_s=30 * 24 * 3600),  # one that pauses goes on
    Kind.WRITE: Guard(limit=1_000, remembered=8, lifetime_s=30 * 24 * 3600),  # as an import
    Kind.LETTERS: Guard(limit=1_000, remembered=2, lifetime_s=30 * 24 * 3600),  # the next dispatcher may be asked late
}


@dataclass(frozen=True, slots=True)
class Sequences:
    """A request's producer and the inclusive range of its sequence numbers. With `only_repeats`, the rows count only if
    they were stored before: they would be refused today."""

    producer: str
    low: int
    high: int
    only_repeats: bool = False


class RecentRequest(msgspec.Struct, array_like=True, frozen=True):
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
    requests: list[RecentRequest]  # rising


class _Part(msgspec.Struct, array_like=True):
    low: int
    high: int
    producers: dict[str, _Producer]


class _Versioned(msgspec.Struct, array_like=True):
    version: int


class _Encoded(_Versioned, array_like=True):
    parts: list[_Part]


_versioned, _encoded = msgspec.msgpack.Decoder(_Versioned), msgspec.msgpack.Decoder(_Encoded)
TABLES = Format("producer tables", {1: 1})


@dataclass
class ProducerTable:
    """The table of one part `key_range` of a segment."""

    segment: int
    key_range: KeyRange
    guards: Mapping[Kind, Guard] = field(default_factory=lambda: GUARDS)
    _kinds: dict[Kind, dict[str, _Producer]] = field(init=False)  # of each kind the least recently used first
    _idle_since_s: dict[str, float] = field(default_factory=dict, init=False)  # of those not used since `expire`

    def __post_init__(self) -> None:
        self._kinds = {kind: {} for kind in Kind}

    def judge(self, producer: str, low: int, high: int, count: int) -> Verdict:
        """Judges the request of the sequences `low` to `high`, of which `count` rows fall into this part.

        The row count of a request that a predecessor holds is not compared, since other rows may fall into this part
        than fell into its.
        """
        known = self._kinds[Kind.from_producer(producer)].get(producer)
        if known is None or low > known.requests[-1].high:
            return New()
        for request in known.requests:
            counted = request.count == count or request.segment != self.segment
            if (request.low, request.high) == (low, high) and counted:
                return Duplicate(request.segment, request.first_offset)
        return OutOfOrder(known.requests[-1].high)

    def record(self, producer: str, low: int, high: int, first_offset: int, count: int, now_us: int) -> None:
        """Records a durable request. If it is not above the newest, the table has or had it already, and does not
        change. Evicts the least recently used producer beyond the limit."""
        kind = Kind.from_producer(producer)
        producers, guard = self._kinds[kind], self.guards[kind]
        known = producers.get(producer) or _Producer(now_us, [])
        if known.requests and low <= known.requests[-1].high:
            return
        known.requests.append(RecentRequest(low, high, self.segment, first_offset, count))
        del known.requests[: -guard.remembered]
        known.used_us = now_us
        producers.pop(producer, None)
        producers[producer] = known
        self._idle_since_s.pop(producer, None)
        while len(producers) > guard.limit:
            self._evict(producers, next(iter(producers)))

    def expire(self, now_s: float) -> None:
        """Evicts the producers whose lifetime is over. `now_s` is monotonic; requests since the last call count as
        recorded now."""
        for kind, producers in self._kinds.items():
            for name in list(producers):
                if now_s - self._idle_since_s.setdefault(name, now_s) > self.guards[kind].lifetime_s:
                    self._evict(producers, name)

    def forget_above(self, end: int) -> None:
        """Forgets the requests of this segment whose rows are not all below an offset."""
        for producers in self._kinds.values():
            for name, known in list(producers.items()):
                known.requests = [
                    one for one in known.requests if one.segment != self.segment or one.first_offset + one.count <= end
                ]
                if not known.requests:
                    self._evict(producers, name)

    def inherit(self, segment: int, key_range: KeyRange) -> "ProducerTable":
        """Returns the table of a later segment for a part within this one's, with the same requests."""
        return ProducerTable(segment, key_range, self.guards).filled(self.producers)

    def filled(self, producers: Mapping[str, _Producer]) -> "ProducerTable":
        """Returns this table with these producers."""
        for name, known in producers.items():
            self._kinds[Kind.from_producer(name)][name] = _Producer(known.used_us, list(known.requests))
        return self

    @property
    def producers(self) -> dict[str, _Producer]:
        """Returns all producers, those of each kind in the order in which they were used."""
        return {name: known for producers in self._kinds.values() for name, known in producers.items()}

    def __bool__(self) -> bool:
        return any(self._kinds.values())

    def _evict(self, producers: dict[str, _Producer], name: str) -> None:
        del producers[name]
        self._idle_since_s.pop(name, None)


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

    def expire(self, now_s: float) -> None:
        """Evicts the producers whose lifetime is over, by a monotonic clock."""
        for table in self._tables.values():
            table.expire(now_s)

    def forget_above(self, end: int) -> None:
        """Forgets the requests whose rows are not all below an offset. A file's tables know those of the tail, too."""
        for table in self._tables.values():
            table.forget_above(end)

    @property
    def parts(self) -> list[ProducerTable]:
        """Returns the tables, ordered by their ranges."""
        return [self._tables[low] for low in sorted(self._tables)]

    def encode(self, level: int) -> bytes:
        """Encodes all tables as that level of the cluster has them, compressed."""
        parts = [_Part(table.key_range.low, table.key_range.high, table.producers) for table in self.parts]
        return zlib.compress(msgspec.msgpack.encode(_Encoded(TABLES.at(level), parts)), 1)

    @staticmethod
    def decode(data: bytes, segment: int, guards: Mapping[Kind, Guard] = GUARDS) -> "ProducerTables":
        """Decodes the tables of `segment` that `encode` wrote. Raises NeedsNewerBroker for a later version, and
        ValueError for any other bytes."""
        try:
            unpacked = zlib.decompress(data)
            version = _versioned.decode(unpacked).version
            TABLES.check(version, f"segment {segment}")  # first, since a later version may have other members
            encoded = _encoded.decode(unpacked)
        except (zlib.error, msgspec.DecodeError) as error:
            raise ValueError(f"the producer tables cannot be read: {error}") from error
        return ProducerTables(
            ProducerTable(segment, KeyRange(part.low, part.high), guards).filled(part.producers)
            for part in encoded.parts
        )


def inherited_cuts(key_range: KeyRange, before: Iterable[ProducerTables]) -> tuple[int, ...]:
    """Returns the inner bounds of a successor's parts: those of its predecessors within `key_range`, except between two
    neighbours of which neither knows a producer."""
    old = sorted((table for tables in before for table in tables.parts), key=lambda table: table.key_range)
    return tuple(
        right.key_range.low
        for left, right in pairwise(old)
        if key_range.low < right.key_range.low < key_range.high and (left or right)
    )

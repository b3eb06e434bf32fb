"""The producer table of one segment: which requests of idempotent producers it holds, and at which offsets.

Owns the judgement new, duplicate or out of order, and how the table is kept, bounded and encoded. It sees only what is
recorded; whoever commits makes a repeat wait for the first try. What is evicted (all but the newest requests of a
producer, producers idle too long, the least recently used beyond a limit) is no longer guarded.
"""

import zlib
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from seaweedq.segments.keyrange import KeyRange

DAY_US = 24 * 3600 * 1_000_000


class Remembered(msgspec.Struct, array_like=True, frozen=True):
    """A request's inclusive sequence range, and where the `count` rows of it that came into this segment begin."""

    low: int
    high: int
    first_offset: int
    count: int


@dataclass(frozen=True, slots=True)
class New:
    """Above everything that is known of the producer: to be taken."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Held already, from `first_offset` on."""

    first_offset: int


@dataclass(frozen=True, slots=True)
class OutOfOrder:
    """Neither new nor remembered; `newest` is the highest sequence known."""

    newest: int


Verdict = New | Duplicate | OutOfOrder


class _Producer(msgspec.Struct, array_like=True):
    used_us: int
    requests: list[Remembered]  # rising


class _Encoded(msgspec.Struct, array_like=True):
    version: int
    range: tuple[int, int]
    producers: dict[str, _Producer]


@dataclass
class ProducerTable:
    """The table of one sub-range, `key_range`; at most `limit` producers with `remembered` requests each."""

    key_range: KeyRange
    limit: int = 1000
    remembered: int = 8
    ttl_us: int = DAY_US
    _producers: dict[str, _Producer] = field(default_factory=dict, init=False)  # least recently used first

    def judge(self, producer: str, low: int, high: int, count: int) -> Verdict:
        """What the request of sequences `low` to `high` is, of which `count` rows fall into this segment."""
        known = self._producers.get(producer)
        if known is None or low > known.requests[-1].high:
            return New()
        for request in known.requests:
            if (request.low, request.high, request.count) == (low, high, count):
                return Duplicate(request.first_offset)
        return OutOfOrder(known.requests[-1].high)

    def record(self, producer: str, low: int, high: int, first_offset: int, count: int, now_us: int) -> None:
        """Remember a durable request. One that is not above the newest is in the table, or was: it changes nothing."""
        known = self._producers.get(producer) or _Producer(now_us, [])
        if not known.requests or low > known.requests[-1].high:
            known.requests.append(Remembered(low, high, first_offset, count))
            del known.requests[: -self.remembered]
            known.used_us = now_us
            self._producers.pop(producer, None)
            self._producers[producer] = known
        self._evict(now_us)

    def _evict(self, now_us: int) -> None:
        while len(self._producers) > self.limit or self._is_idle(now_us - self.ttl_us):
            del self._producers[next(iter(self._producers))]

    def _is_idle(self, since_us: int) -> bool:
        return any(oldest.used_us < since_us for oldest in islice(self._producers.values(), 1))

    def encode(self) -> bytes:
        """The whole table, compressed; the bounds (limit, remembered, ttl) are not in it."""
        key_range = (self.key_range.low, self.key_range.high)
        return zlib.compress(msgspec.msgpack.encode(_Encoded(1, key_range, self._producers)), 1)

    @staticmethod
    def decode(data: bytes, limit: int = 1000, remembered: int = 8, ttl_us: int = DAY_US) -> "ProducerTable":
        """The table that `encode` wrote. Raises ValueError for anything else."""
        try:
            encoded = msgspec.msgpack.decode(zlib.decompress(data), type=_Encoded)
        except (zlib.error, msgspec.DecodeError) as error:
            raise ValueError(f"no producer table: {error}") from error
        if encoded.version != 1:
            raise ValueError(f"producer table of unknown version {encoded.version}")
        table = ProducerTable(KeyRange(*encoded.range), limit, remembered, ttl_us)
        table._producers = encoded.producers
        return table

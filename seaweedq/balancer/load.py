"""The load of one segment: what its owner observes, and the report of it that goes to the leader. Knows no policy."""

from math import expm1
from typing import Annotated

import msgspec
from msgspec import Meta

from seaweedq.balancer.histogram import BINS, HotKeys, KeyHistogram
from seaweedq.balancer.rates import IDLE, WINDOWS_S, Averages, Rates, corrected, joined
from seaweedq.segments.keyhash import Hashes
from seaweedq.segments.keyrange import KEY_SPACE, KeyRange

MESSAGE_BYTES = 168
"""A message costs a broker about as much as so many bytes: 200,000 a second as 32 MiB."""
COST_WINDOW = WINDOWS_S.index(60.0)

_Amount = Annotated[float, Meta(ge=0, le=1e18)]
_Averages = Annotated[tuple[_Amount, ...], Meta(min_length=len(WINDOWS_S), max_length=len(WINDOWS_S))]


class SegmentLoad(msgspec.Struct, frozen=True, array_like=True):
    """What a segment's owner has observed of it over `observed_s` seconds. The averages are plain, see rates.

    `bins` are the weights of equal parts of its key range, `hottest` the hash that has the largest share (0 to 1) of
    that weight; both are left out where a segment is cool.
    """

    messages_per_s: _Averages = IDLE
    bytes_per_s: _Averages = IDLE
    observed_s: _Amount = 0.0
    bins: Annotated[tuple[_Amount, ...], Meta(max_length=BINS)] = ()
    hottest: Annotated[int, Meta(ge=0, lt=KEY_SPACE)] | None = None
    hot_share: Annotated[float, Meta(ge=0, le=1)] = 0.0

    @property
    def corrected_messages_per_s(self) -> Averages:
        """Messages a second over what was observed alone."""
        return corrected(self.messages_per_s, self.observed_s)

    @property
    def corrected_bytes_per_s(self) -> Averages:
        """Bytes a second over what was observed alone."""
        return corrected(self.bytes_per_s, self.observed_s)

    @property
    def cost(self) -> float:
        """What the segment counts as in placement: bytes a second over about a minute, with messages as bytes."""
        if self.observed_s <= 0:
            return 0.0
        plain = self.bytes_per_s[COST_WINDOW] + MESSAGE_BYTES * self.messages_per_s[COST_WINDOW]
        return plain / -expm1(-self.observed_s / WINDOWS_S[COST_WINDOW])

    def following(self, earlier: "SegmentLoad") -> "SegmentLoad":
        """This load and what was observed before it, by another owner: a move does not make a segment unknown."""
        return msgspec.structs.replace(
            self,
            messages_per_s=joined(earlier.messages_per_s, self.messages_per_s, self.observed_s),
            bytes_per_s=joined(earlier.bytes_per_s, self.bytes_per_s, self.observed_s),
            observed_s=earlier.observed_s + self.observed_s,
        )


class LoadMeter:
    """What the owner observes of one segment: counts, and samples of the key hashes."""

    __slots__ = ("_histogram", "_hot_keys", "_rates")

    def __init__(self, key_range: KeyRange) -> None:
        self._rates = Rates()
        self._histogram = KeyHistogram(key_range)
        self._hot_keys = HotKeys()

    def sample(self, hashes: Hashes, weight: float) -> None:
        """Hashes of some rows, which stand for `weight` rows or bytes."""
        self._histogram.add(hashes, weight)
        self._hot_keys.add(hashes, weight)

    def sample_keyless(self, weight: float) -> None:
        """Rows without key that stand for `weight`."""
        self._histogram.add_keyless(weight)
        self._hot_keys.add_keyless(weight)

    def tick(self, messages: int, size_bytes: int, passed_s: float) -> None:
        """So much came in the seconds since the last tick."""
        self._rates.sample(messages, size_bytes, passed_s)
        self._histogram.forget(passed_s)
        self._hot_keys.forget(passed_s)

    def load(self, keys: bool = True) -> SegmentLoad:
        """The report; `keys` says whether with where in the range the load falls."""
        rates = self._rates
        if not keys:
            return SegmentLoad(rates.messages_per_s, rates.bytes_per_s, rates.observed_s)
        hash, share = self._hot_keys.hottest() or (None, 0.0)
        bins = self._histogram.bins
        return SegmentLoad(rates.messages_per_s, rates.bytes_per_s, rates.observed_s, bins, hash, share)

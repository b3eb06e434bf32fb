"""The load of one segment: the owner's meter, and the report to the leader. Knows no policy.

Rates are moving averages over several windows. An average begins at zero, as if all time before had been idle. That is
the *plain* value: for a new segment it rises slowly, so that a short burst counts little. Divided by the weight of the
observed time it is the *corrected* value, the best estimate of the segment's rate.

A histogram of key hashes and the hottest hashes tell how the load is distributed over the key range. Their input is
samples: some hashes, and the weight that they represent. Both decay, and use constant memory.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from math import exp, expm1
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from seaweedq.balancer.placement import SegmentId
from seaweedq.segments.keyrange import KEY_SPACE, KeyRange
from seaweedq.segments.row_hashes import Hashes

WINDOWS_S = (10.0, 60.0, 600.0, 1200.0)

Averages = tuple[float, ...]
"""One per window, each per second."""

IDLE: Averages = (0.0,) * len(WINDOWS_S)
BINS = 64
COUNTERS = 16
OVER_S = 60.0
"""A sample of this age counts as 1/e."""
MESSAGE_BYTES = 168
"""A message costs a broker about as much as this number of bytes: 200,000 messages per second as 32 MiB."""
KNOWN_S = 10.0
"""A segment that was observed for a shorter time counts as unknown."""
_COST_WINDOW = WINDOWS_S.index(600.0)  # calm, so that little moves
_Amount = Annotated[float, Meta(ge=0, le=1e18)]
_Averages = Annotated[tuple[_Amount, ...], Meta(min_length=len(WINDOWS_S), max_length=len(WINDOWS_S))]


class Rate:
    """The plain averages of a count, and their peaks, which decay."""

    __slots__ = ("peaks", "per_s")

    def __init__(self) -> None:
        self.per_s = self.peaks = IDLE

    def add(self, count: float, passed_s: float, cool_down_s: float) -> None:
        """Adds the count since the last call, as if it had arrived evenly. Peaks decay with the cool-down."""
        passed_s = max(passed_s, 1e-6)  # a count at once counts as well
        if not count and self.peaks is IDLE:
            return
        now = count / passed_s
        self.per_s = tuple(
            [now + (before - now) * kept for before, kept in zip(self.per_s, _kept(passed_s), strict=True)]
        )
        self.peaks = higher(self.per_s, self.peaks, passed_s, cool_down_s)


def weight(observed_s: float, window_s: float) -> float:
    """Returns how much of an average was observed, from 0 to 1."""
    return -expm1(-observed_s / window_s)


def corrected(plain: Averages, observed_s: float) -> Averages:
    """Returns the averages over the observed time alone; zero if nothing was observed."""
    if observed_s <= 0:
        return IDLE
    return tuple([average / weight(observed_s, window_s) for average, window_s in zip(plain, WINDOWS_S, strict=True)])


def joined(earlier: Averages, later: Averages, observed_s: float) -> Averages:
    """Returns the plain averages over two periods; the later lasted `observed_s` and began when the earlier ended."""
    return tuple([old * kept + new for old, new, kept in zip(earlier, later, _kept(observed_s), strict=True)])


def higher(now: Averages, peaks: Averages, passed_s: float, cool_down_s: float) -> Averages:
    """Returns the peaks at a later time. They decay to half in 1.4 cool-downs, so that a load that recurs within one
    cool-down is remembered until then."""
    kept = exp(-passed_s / (2 * cool_down_s))
    return tuple([max(new, old * kept) for new, old in zip(now, peaks, strict=True)])


@lru_cache(maxsize=16)  # all segments of a broker are sampled at once
def _kept(passed_s: float) -> Averages:
    """Returns the share of the averages that remains after that time."""
    return tuple([exp(-passed_s / window_s) for window_s in WINDOWS_S])


class KeyHistogram:
    """The weight of each of `BINS` equal parts of a key range."""

    __slots__ = ("_bins", "_low", "_size")

    def __init__(self, key_range: KeyRange) -> None:
        self._low = key_range.low
        self._size = len(key_range)
        self._bins = np.zeros(BINS)

    def add(self, hashes: Hashes, weight: float) -> None:
        """Adds hashes that represent `weight` together; those outside the range do not count."""
        at = (hashes.astype(np.int64) - self._low) * BINS // self._size
        at = at[(at >= 0) & (at < BINS)]
        if len(at):
            self._bins += np.bincount(at, minlength=BINS) * (weight / len(hashes))

    def add_keyless(self, weight: float) -> None:
        """Adds rows without a key: they are spread evenly."""
        self._bins += weight / BINS

    def forget(self, passed_s: float) -> None:
        """Decays the weights by the seconds passed."""
        self._bins *= exp(-passed_s / OVER_S)

    @property
    def bins(self) -> tuple[float, ...]:
        """Returns the weights; all zero before the first sample."""
        return tuple(self._bins.tolist())


class HotKeys:
    """The hottest hashes, by `COUNTERS` counters (Misra and Gries, 1982), to which a sample is added as a whole
    (Agarwal et al., Mergeable Summaries, 2012).

    A counter is never too high, and too low by at most 1 / (COUNTERS + 1) of the weight. So no hash looks hot unless it
    is.
    """

    __slots__ = ("_counts", "_hashes", "_weight")

    def __init__(self) -> None:
        self._hashes: Hashes = np.empty(0, np.int32)
        self._counts: npt.NDArray[np.float64] = np.empty(0)
        self._weight = 0.0

    def add(self, hashes: Hashes, weight: float) -> None:
        """Adds hashes that represent `weight` together."""
        if not len(hashes):
            return
        self._weight += weight
        each = np.full(len(hashes), weight / len(hashes))
        found, at = np.unique(np.concatenate([self._hashes, hashes]), return_inverse=True)
        counts: npt.NDArray[np.float64] = np.bincount(at, np.concatenate([self._counts, each])).astype(np.float64)
        if len(found) > COUNTERS:
            counts -= np.partition(counts, -COUNTERS - 1)[-COUNTERS - 1]
        self._hashes, self._counts = found[counts > 0], counts[counts > 0]

    def add_keyless(self, weight: float) -> None:
        """Adds rows without a key: each has a hash of its own."""
        self._weight += weight

    def forget(self, passed_s: float) -> None:
        """Decays the counters by the seconds passed."""
        kept = exp(-passed_s / OVER_S)
        self._counts *= kept
        self._weight *= kept

    def hottest(self) -> tuple[int | None, float]:
        """Returns the hottest hash and its share of the weight, at most 1; of equal ones the lowest. None and 0 without
        any."""
        if not len(self._hashes):
            return None, 0.0
        at = int(self._counts.argmax())
        return int(self._hashes[at]), min(float(self._counts[at]) / self._weight, 1.0)


class SegmentLoad(msgspec.Struct, frozen=True, array_like=True):
    """The load of a segment that its owner has observed over `observed_s` seconds. Averages and their peaks are plain.

    `bins` are the weights of equal parts of its key range, `hottest` is the hash with the largest share (0 to 1) of
    that weight; both are left out for a cool segment.
    """

    messages_per_s: _Averages = IDLE
    bytes_per_s: _Averages = IDLE
    messages_peaks: _Averages = IDLE
    bytes_peaks: _Averages = IDLE
    observed_s: _Amount = 0.0
    bins: Annotated[tuple[_Amount, ...], Meta(max_length=BINS)] = ()
    hottest: Annotated[int, Meta(ge=0, lt=KEY_SPACE)] | None = None
    hot_share: Annotated[float, Meta(ge=0, le=1)] = 0.0

    @property
    def corrected_messages_per_s(self) -> Averages:
        """Returns messages per second over the observed time alone."""
        return corrected(self.messages_per_s, self.observed_s)

    @property
    def corrected_bytes_per_s(self) -> Averages:
        """Returns bytes per second over the observed time alone."""
        return corrected(self.bytes_per_s, self.observed_s)

    def following(self, earlier: "SegmentLoad", cool_down_s: float) -> "SegmentLoad":
        """Returns this load joined with that of an earlier owner: after a move the segment's load is still known."""
        told: dict[str, Averages] = {}
        for now, peaks in (("messages_per_s", "messages_peaks"), ("bytes_per_s", "bytes_peaks")):
            told[now] = joined(getattr(earlier, now), getattr(self, now), self.observed_s)
            faded = higher(getattr(self, peaks), getattr(earlier, peaks), self.observed_s, cool_down_s)
            told[peaks] = tuple(map(max, told[now], faded))
        return msgspec.structs.replace(self, **told, observed_s=earlier.observed_s + self.observed_s)


def costs(loads: Mapping[SegmentId, SegmentLoad]) -> dict[SegmentId, float]:
    """Returns each segment's cost in placement: bytes per second over about ten minutes, with messages counted as
    bytes.

    A segment whose load is not known yet costs the mean of its topic's others; otherwise a broker that has just
    received some would seem to have room for more.
    """
    known, unknown = {}, []
    sums: dict[tuple[str, int], list[float]] = {}
    for segment, load in loads.items():
        if load.observed_s < KNOWN_S:
            unknown.append(segment)
            continue
        plain = load.bytes_per_s[_COST_WINDOW] + MESSAGE_BYTES * load.messages_per_s[_COST_WINDOW]
        known[segment] = cost = plain / weight(load.observed_s, WINDOWS_S[_COST_WINDOW])
        sums.setdefault(segment[:2], []).append(cost)
    means = {topic: sum(several) / len(several) for topic, several in sums.items()}
    return known | {segment: means.get(segment[:2], 0.0) for segment in unknown}


def with_unknown(costs: Mapping[SegmentId, float], segments: Iterable[SegmentId]) -> dict[SegmentId, float]:
    """Returns the costs, and for each of these segments that lacks one the mean of its topic's, or else of all.

    Nobody reports the segments of a broker that died. If they counted as idle, all of them would seem to fit on the
    survivor that is a little lighter than the others.
    """
    sums: dict[tuple[str, int], list[float]] = {}
    for segment, cost in costs.items():
        sums.setdefault(segment[:2], []).append(cost)
    means = {topic: sum(several) / len(several) for topic, several in sums.items()}
    mean = sum(costs.values()) / max(len(costs), 1)
    return {segment: means.get(segment[:2], mean) for segment in segments if segment not in costs} | dict(costs)


class LoadMeter:
    """The owner's meter of one segment: counts, and samples of the key hashes, which use memory from the first one
    on."""

    __slots__ = ("_bytes", "_keys", "_messages", "_observed_s", "_range")

    def __init__(self, key_range: KeyRange) -> None:
        self._range = key_range
        self._messages = Rate()
        self._bytes = Rate()
        self._observed_s = 0.0
        self._keys: tuple[KeyHistogram, HotKeys] | None = None

    def sample(self, hashes: Hashes, weight: float) -> None:
        """Adds hashes of some rows, which represent `weight` rows or bytes."""
        for each in self._observed():
            each.add(hashes, weight)

    def sample_keyless(self, weight: float) -> None:
        """Adds rows without a key that represent `weight`."""
        for each in self._observed():
            each.add_keyless(weight)

    def tick(self, messages: int, size_bytes: int, passed_s: float, cool_down_s: float) -> None:
        """Adds the counts since the last tick, `passed_s` seconds ago. The cool-down is that of the topic's policy."""
        self._messages.add(messages, passed_s, cool_down_s)
        self._bytes.add(size_bytes, passed_s, cool_down_s)
        self._observed_s += passed_s
        for each in self._keys or ():
            each.forget(passed_s)

    def load(self, keys: bool = True) -> SegmentLoad:
        """Returns the report; `keys` tells whether to include the distribution over the key range."""
        bins: tuple[float, ...] = ()
        hottest, share = None, 0.0
        if keys and self._keys:
            histogram, hot_keys = self._keys
            bins, (hottest, share) = histogram.bins, hot_keys.hottest()
        messages, size = self._messages, self._bytes
        return SegmentLoad(
            messages.per_s, size.per_s, messages.peaks, size.peaks, self._observed_s, bins, hottest, share
        )

    def _observed(self) -> tuple[KeyHistogram, HotKeys]:
        self._keys = self._keys or (KeyHistogram(self._range), HotKeys())
        return self._keys

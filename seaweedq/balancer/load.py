"""The load of one segment: the owner's meter, and the report of it to the leader. Knows no policy."""

from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from seaweedq.balancer.histogram import BINS, HotKeys, KeyHistogram
from seaweedq.balancer.placement import SegmentId
from seaweedq.balancer.rates import IDLE, WINDOWS_S, Averages, Rate, corrected, higher, joined, weight
from seaweedq.segments.keyrange import KEY_SPACE, KeyRange
from seaweedq.segments.row_hashes import Hashes

MESSAGE_BYTES = 168
"""A message costs a broker about as much as this number of bytes: 200,000 messages per second as 32 MiB."""
KNOWN_S = 10.0
"""A segment that was observed for a shorter time counts as unknown."""
_COST_WINDOW = WINDOWS_S.index(600.0)  # calm, so that little moves

_Amount = Annotated[float, Meta(ge=0, le=1e18)]
_Averages = Annotated[tuple[_Amount, ...], Meta(min_length=len(WINDOWS_S), max_length=len(WINDOWS_S))]


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
        known[segment] = cost = _cost(load)
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


def _cost(load: SegmentLoad) -> float:
    plain = load.bytes_per_s[_COST_WINDOW] + MESSAGE_BYTES * load.messages_per_s[_COST_WINDOW]
    return plain / weight(load.observed_s, WINDOWS_S[_COST_WINDOW])

"""Rates: how much of something arrives per second, as moving averages over several windows. Owns their arithmetic
alone.

An average begins at zero, as if all time before had been idle. That is the *plain* value: for a new segment it rises
slowly, so that a short burst counts little. Divided by the weight of the observed time it is the *corrected* value, the
best estimate of the segment's rate.
"""

from functools import lru_cache
from math import exp, expm1

WINDOWS_S = (10.0, 60.0, 600.0, 1200.0)

Averages = tuple[float, ...]
"""One per window, each per second."""

IDLE: Averages = (0.0,) * len(WINDOWS_S)


class Rate:
    """The plain averages of a count, and their peaks, which decay."""

    __slots__ = ("peaks", "per_s")

    def __init__(self) -> None:
        self.per_s = self.peaks = IDLE

    def add(self, count: int, passed_s: float, cool_down_s: float) -> None:
        """Adds the count since the last call, as if it had arrived evenly. Peaks decay with the cool-down."""
        passed_s = max(passed_s, 1e-6)  # what comes at once counts as well
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

"""Rates: how much of something comes a second, as moving averages over several windows. Owns their arithmetic alone.

An average begins at nothing, as if all time before had been idle. That is the *plain* value: at a new segment it rises
slowly, so that a moment's burst says little. Divided by the weight of the time that was observed it is the *corrected*
one, the best guess of what the segment takes.
"""

from functools import lru_cache
from math import exp, expm1

WINDOWS_S = (10.0, 60.0, 600.0, 1200.0)

Averages = tuple[float, ...]
"""One for each window, a second."""

IDLE: Averages = (0.0,) * len(WINDOWS_S)


class Rate:
    """The plain averages of what comes, and their peaks, which fade."""

    __slots__ = ("peaks", "per_s")

    def __init__(self) -> None:
        self.per_s = self.peaks = IDLE

    def add(self, count: int, passed_s: float, cool_down_s: float) -> None:
        """What came in the seconds since the last time, as if it had come evenly. Peaks fade with the cool-down."""
        passed_s = max(passed_s, 1e-6)  # what comes at once counts as well
        if not count and self.peaks is IDLE:
            return
        now = count / passed_s
        self.per_s = tuple(
            [now + (before - now) * kept for before, kept in zip(self.per_s, _kept(passed_s), strict=True)]
        )
        self.peaks = higher(self.per_s, self.peaks, passed_s, cool_down_s)


def weight(observed_s: float, window_s: float) -> float:
    """How much of an average was observed, from 0 to 1."""
    return -expm1(-observed_s / window_s)


def corrected(plain: Averages, observed_s: float) -> Averages:
    """The averages over what was observed alone; nothing where nothing was."""
    if observed_s <= 0:
        return IDLE
    return tuple([average / weight(observed_s, window_s) for average, window_s in zip(plain, WINDOWS_S, strict=True)])


def joined(earlier: Averages, later: Averages, observed_s: float) -> Averages:
    """The plain averages over two times, of which the later took `observed_s` and began where the earlier ended."""
    return tuple([old * kept + new for old, new, kept in zip(earlier, later, _kept(observed_s), strict=True)])


def higher(now: Averages, peaks: Averages, passed_s: float, cool_down_s: float) -> Averages:
    """The peaks that far later. They fade to half in 1.4 cool-downs, so that what comes again within one is remembered
    until then."""
    kept = exp(-passed_s / (2 * cool_down_s))
    return tuple([max(new, old * kept) for new, old in zip(now, peaks, strict=True)])


@lru_cache(maxsize=16)  # all segments of a broker are sampled at once
def _kept(passed_s: float) -> Averages:
    """What is left of the averages after that time."""
    return tuple([exp(-passed_s / window_s) for window_s in WINDOWS_S])

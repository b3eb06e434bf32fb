"""Durations counted by classes of length, and by how what they measured has ended: cheap enough for each request."""

from bisect import bisect_left
from collections.abc import Sequence

BOUNDS_S = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 30.0)


class Durations:
    """Counts of durations by class. A class ends at its bound, the last one has none; `sum_s` is of all."""

    __slots__ = ("bounds_s", "counts", "sum_s")

    def __init__(self, bounds_s: Sequence[float] = BOUNDS_S) -> None:
        self.bounds_s = bounds_s
        self.counts = [0] * (len(bounds_s) + 1)
        self.sum_s = 0.0

    def add(self, duration_s: float) -> None:
        """Counts one more."""
        self.counts[bisect_left(self.bounds_s, duration_s)] += 1
        self.sum_s += duration_s


def by_outcome(*outcomes: str) -> dict[str, Durations]:
    """Returns durations for each outcome, of which none has been met yet."""
    return {outcome: Durations() for outcome in outcomes}

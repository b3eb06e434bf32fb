"""Rates: how much a segment takes a second, as moving averages over several windows. Owns their arithmetic alone.

An average begins at nothing, as if all time before had been idle. That is the *plain* value: at a new segment it rises
slowly, so that a moment's burst says little. Divided by the weight of the time that was observed it is the *corrected*
one, the best guess of what the segment takes.
"""

from math import exp, expm1

WINDOWS_S = (10.0, 60.0, 600.0, 1200.0)

Averages = tuple[float, ...]
"""One for each window, a second."""

IDLE: Averages = (0.0,) * len(WINDOWS_S)


class Rates:
    """The plain averages of one segment's messages and bytes, and over how many seconds they were observed."""

    __slots__ = ("bytes_per_s", "messages_per_s", "observed_s")

    def __init__(self) -> None:
        self.messages_per_s = self.bytes_per_s = IDLE
        self.observed_s = 0.0

    def sample(self, messages: int, size_bytes: int, passed_s: float) -> None:
        """Add what came in the `passed_s` seconds since the last sample, as if it had come evenly."""
        passed_s = max(passed_s, 1e-6)  # what comes at once counts as well
        self.messages_per_s = joined(self.messages_per_s, _even(messages / passed_s, passed_s), passed_s)
        self.bytes_per_s = joined(self.bytes_per_s, _even(size_bytes / passed_s, passed_s), passed_s)
        self.observed_s += passed_s


def corrected(plain: Averages, observed_s: float) -> Averages:
    """The averages over what was observed alone; nothing where nothing was."""
    if observed_s <= 0:
        return IDLE
    return tuple(average / weight for average, weight in zip(plain, _even(1.0, observed_s), strict=True))


def joined(earlier: Averages, later: Averages, observed_s: float) -> Averages:
    """The plain averages over two times, of which the later took `observed_s` and began where the earlier ended."""
    return tuple(
        before * exp(-observed_s / window_s) + after
        for before, after, window_s in zip(earlier, later, WINDOWS_S, strict=True)
    )


def _even(rate: float, passed_s: float) -> Averages:
    """What the averages are after that long at one rate."""
    return tuple(-rate * expm1(-passed_s / window_s) for window_s in WINDOWS_S)

"""Time, randomness and ids: the only module that asks the operating system for them; and counts of durations.

All others take a `Clock` and an `Ids`, so that tests control both. Wall time (`now_us`) only labels; `monotonic_s`
measures. Neither decides what is safe.
"""

import os
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Protocol


class Clock(Protocol):
    """A source of time."""

    def now_us(self) -> int:
        """Returns microseconds since the epoch, UTC. May jump."""

    def monotonic_s(self) -> float:
        """Returns seconds from an arbitrary start; it also counts while the machine sleeps."""


class Ids(Protocol):
    """A source of unique values."""

    def nonce(self) -> str:
        """Returns 32 random hexadecimal digits."""


_BOOT_TIME = getattr(time, "CLOCK_BOOTTIME", None)


class SystemClock:
    """The machine's clocks. CLOCK_BOOTTIME, since a lease also ages while a laptop sleeps."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic_s(self) -> float:
        return time.monotonic() if _BOOT_TIME is None else time.clock_gettime(_BOOT_TIME)


class SystemIds:
    """Random ids of the operating system."""

    def nonce(self) -> str:
        return os.urandom(16).hex()


CpuTimes = Callable[[], tuple[float, ...]]
"""Returns CPU seconds used since a start, each against a capacity of one second per second."""


def no_cpu() -> tuple[float, ...]:
    """Counts no CPU time."""
    return (0.0,)


class CpuClock:
    """The CPU time of the thread that asks, which has one core at most, and of the process, on the cores that it may
    use."""

    def __init__(self, cores: float) -> None:
        self._cores = cores

    def __call__(self) -> tuple[float, ...]:
        return time.thread_time(), time.process_time() / self._cores


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

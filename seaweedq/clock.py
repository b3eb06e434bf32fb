"""Time, randomness and ids: the one place that asks the operating system for them.

Everything else takes a `Clock` and an `Ids`, so that tests can turn the hands themselves. Wall time
(`now_us`) only ever labels; `monotonic_s` measures. Neither decides what is safe.
"""

import os
import time
from typing import Protocol


class Clock(Protocol):
    """Where time comes from."""

    def now_us(self) -> int:
        """Microseconds since the epoch, UTC. May jump."""

    def monotonic_s(self) -> float:
        """Seconds from an arbitrary start; goes on while the machine sleeps."""


class Ids(Protocol):
    """Where values that must be unique come from."""

    def nonce(self) -> str:
        """32 hexadecimal digits that nobody else has."""


class SystemClock:
    """The machine's clocks. CLOCK_BOOTTIME, since a lease also ages while a laptop sleeps."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic_s(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class SystemIds:
    """Random ids of the operating system."""

    def nonce(self) -> str:
        return os.urandom(16).hex()

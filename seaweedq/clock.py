"""Time, randomness and ids: the only module that asks the operating system for them.

All others take a `Clock` and an `Ids`, so that tests control both. Wall time (`now_us`) only labels; `monotonic_s`
measures. Neither decides what is safe.
"""

import os
import time
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

"""Gives memory that nobody uses any more back to the operating system, at quiet moments.

The broker's allocator keeps what was freed (cli/server/serve): under load that saves the kernel the work of mapping
pages again. But after strangers had left 500 MiB of answers unread, the process stayed that large for ever, and the
limit of its container counted it. So once nothing large has been in flight for QUIET_S, and the process has grown by
WORTH_BYTES beside what the budget counts, the allocator lets go of its free pages. It is done once in EACH_S at most,
and not again for what it could not give back.

A thread does it: for 200 MiB in small pieces it takes 30 to 170 ms, for which the event loop would stand still. Other
threads' allocations wait for it piece by piece.
"""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from seaweedq.broker.log.memory_budget import Budget
from seaweedq.clock import Clock

QUIET_S, EACH_S = 2.0, 5.0
BUSY_BYTES = 1024 * 1024  # in flight
WORTH_BYTES = 32 * 1024 * 1024
_STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Returns how much memory the process has; 0 where the system does not say so."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    except OSError:
        return 0


def release() -> None:
    """Lets the allocator give its free pages back. With glibc that is malloc_trim; elsewhere it may do nothing."""
    pa.default_memory_pool().release_unused()


class UnusedMemory:
    """The memory that the allocator of one process keeps. `is_due` is to be asked often; it costs little."""

    def __init__(
        self,
        budget: Budget,
        clock: Clock,
        resident: Callable[[], int] = resident_bytes,
        release: Callable[[], None] = release,
    ) -> None:
        self._budget = budget
        self._clock = clock
        self._resident = resident
        self._release = release
        self._busy_s = self._looked_s = clock.monotonic_s()
        self._least = self._beside()  # what the process had, at the least, beside what the budget counts
        self._left = 0  # what it had after the last release: it may have freed more since, and be smaller

    def is_due(self) -> bool:
        """Tells whether it is worth it to give memory back, and now is a quiet moment."""
        now_s = self._clock.monotonic_s()
        if self._budget.in_flight >= BUSY_BYTES:
            self._busy_s = now_s
        if now_s < max(self._busy_s + QUIET_S, self._looked_s + EACH_S):
            return False
        self._looked_s = now_s
        beside = self._beside()
        self._least = min(self._least, beside)
        return beside >= self._least + WORTH_BYTES and abs(beside - self._left) >= WORTH_BYTES

    async def give_back(self) -> None:
        """Gives memory back."""
        await asyncio.to_thread(self._release)
        self._left = self._beside()

    def _beside(self) -> int:
        return max(self._resident() - self._budget.held - self._budget.cached, 0)

"""The memory of a broker: the budget that tails, requests, recoveries and decoded row groups share, and its return to
the operating system.

The budget counts and does not allocate: each holder of bytes reports them. From half of the budget on the flusher
empties tails; over the budget new publishes are refused until bytes were released. Only tails, and requests that have
come whole, make tails flush: nothing that a client may still send or has not taken yet.

The allocator keeps freed memory (cli/server/serve): under load that saves the kernel the work of mapping pages again.
But after strangers had left 500 MiB of answers unread, the process stayed that large for ever, and the limit of its
container counted it. So once nothing large has been in flight for QUIET_S, and the process has grown by WORTH_BYTES
beside what the budget counts, the allocator lets go of its free pages. It is done once in EACH_S at most, and not again
for pages that it could not give back. A thread does it: for 200 MiB in small pieces it takes 30 to 170 ms, for which
the event loop would stand still. Other threads' allocations wait for it piece by piece.
"""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from seaweedq.clock import Clock
from seaweedq.errors import Overloaded

QUIET_S, EACH_S = 2.0, 5.0
BUSY_BYTES = 1024 * 1024  # in flight
WORTH_BYTES = 32 * 1024 * 1024
_STATM = Path("/proc/self/statm")


class Budget:
    """Bytes held against `limit_bytes`.

    `requests` are bodies that have come whole, and their decoded rows; `incomplete` those that are still coming;
    `decoding` are rows that decoders may make meanwhile; `answers` are those that clients have not taken yet;
    `recovering` are commits of journals that recoveries replay.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.tails = 0
        self.requests = 0
        self.incomplete = 0
        self.decoding = 0
        self.answers = 0
        self.recovering = 0
        self.cached = 0

    @property
    def held(self) -> int:
        """All bytes but the cache's, which gives way."""
        return self.tails + self.requests + self.incomplete + self.decoding + self.answers + self.recovering

    @property
    def in_flight(self) -> int:
        """The bytes that requests hold, from their first one to their answer's last one."""
        return self.requests + self.incomplete + self.decoding + self.answers

    @property
    def excess(self) -> int:
        """How many bytes of tails should be flushed early: as many as are over half of the budget."""
        return self.tails + self.requests - self.limit_bytes // 2

    @property
    def over(self) -> bool:
        """Whether the cache has to give way."""
        return self.held + self.cached > self.limit_bytes

    def fits(self, size: int) -> bool:
        """Whether `size` more bytes fit. The cache does not count: it gives way."""
        return self.held + size <= self.limit_bytes

    def check(self, size: int) -> None:
        """Raises Overloaded unless `size` more bytes fit."""
        if self.held + size > self.limit_bytes:
            raise Overloaded(
                f"{self.held} bytes of memory are in use, and {size} more would exceed "
                f"memory_budget_bytes={self.limit_bytes}; buffered messages are being flushed, so try "
                "again",
                budget_bytes=self.limit_bytes,
            )

    def hold(self, size: int) -> None:
        """Holds `size` bytes for a request in flight. Raises Overloaded; never for none, as those of a flush, which
        makes room."""
        if size and self.held + size > self.limit_bytes:
            self.check(size)
        self.requests += size

    def take(self, size: int) -> None:
        """Holds bytes that are there already, even over the budget."""
        self.requests += size

    def release(self, size: int) -> None:
        """Releases the bytes that a request held."""
        self.requests -= size

    @contextmanager
    def holding(self, size: int) -> Iterator[None]:
        """Holds bytes for as long as the block runs. Raises Overloaded."""
        self.hold(size)
        try:
            yield
        finally:
            self.release(size)

    @contextmanager
    def made(self, size: int) -> Iterator[None]:
        """Holds bytes that a request has made already, for as long as the block runs."""
        self.take(size)
        try:
            yield
        finally:
            self.release(size)


def resident_bytes() -> int:
    """Returns how much memory the process has; 0 if the system does not say so."""
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
        self._busy_s = self._checked_s = clock.monotonic_s()
        self._least = self._beside()  # what the process had, at the least, beside what the budget counts
        self._left = 0  # what it had after the last release: it may have freed more since, and be smaller

    def is_due(self) -> bool:
        """Tells whether it is worth it to give memory back, and now is a quiet moment."""
        now_s = self._clock.monotonic_s()
        if self._budget.in_flight >= BUSY_BYTES:
            self._busy_s = now_s
        if now_s < max(self._busy_s + QUIET_S, self._checked_s + EACH_S):
            return False
        self._checked_s = now_s
        beside = self._beside()
        self._least = min(self._least, beside)
        return beside >= self._least + WORTH_BYTES and abs(beside - self._left) >= WORTH_BYTES

    async def give_back(self) -> None:
        """Gives memory back."""
        await asyncio.to_thread(self._release)
        self._left = self._beside()

    def _beside(self) -> int:
        return max(self._resident() - self._budget.held - self._budget.cached, 0)

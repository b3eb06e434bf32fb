"""The memory budget: tails, requests in flight, recoveries and decoded row groups together.

It counts and does not allocate: each holder of bytes reports them. From half of the budget on the flusher empties
tails; over the budget new publishes are refused until bytes were released. Only tails, and requests that have come
whole, make tails flush: nothing that a client may still send or has not taken yet.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from seaweedq.errors import Overloaded


class Budget:
    """Bytes held against `limit_bytes`.

    `requests` are bodies that have come whole, and what was decoded of them; `incomplete` those that are still coming;
    `decoding` is what decoders may make meanwhile; `answers` are those that clients have not taken yet; `recovering` is
    what recoveries hold of the journals that they replay.
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
                f"{self.held} bytes are held in memory and {size} more would pass memory_budget_bytes="
                f"{self.limit_bytes}; tails are being flushed, try again",
                budget_bytes=self.limit_bytes,
            )

    def hold(self, size: int) -> None:
        """Holds `size` bytes for a request in flight. Raises Overloaded; never for none, as those of a flush, which
        makes room."""
        if size:
            self.check(size)
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
        self.requests += size
        try:
            yield
        finally:
            self.requests -= size

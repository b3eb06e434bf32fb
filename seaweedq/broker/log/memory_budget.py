"""The memory budget: tails, requests in flight and decoded row groups together.

It counts and does not allocate: each holder of bytes reports them. From half of the budget on the flusher empties
tails; over the budget new publishes are refused until bytes were released.
"""

from seaweedq.errors import Overloaded


class Budget:
    """Bytes held against `limit_bytes`."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.tails = 0
        self.requests = 0
        self.cached = 0

    @property
    def excess(self) -> int:
        """How many bytes of tails should be flushed early: as many as are over half of the budget."""
        return self.tails + self.requests - self.limit_bytes // 2

    @property
    def over(self) -> bool:
        """Whether the cache has to give way."""
        return self.tails + self.requests + self.cached > self.limit_bytes

    def check(self, size: int) -> None:
        """Raises Overloaded unless `size` more bytes fit. The cache does not count: it gives way."""
        held = self.tails + self.requests
        if held + size > self.limit_bytes:
            raise Overloaded(
                f"{held} bytes are held in memory and {size} more would pass memory_budget_bytes={self.limit_bytes}; "
                "tails are being flushed, try again",
                budget_bytes=self.limit_bytes,
            )

    def hold(self, size: int) -> None:
        """Holds `size` bytes for a request in flight. Raises Overloaded."""
        self.check(size)
        self.requests += size

    def release(self, size: int) -> None:
        """Releases the bytes that a request held."""
        self.requests -= size

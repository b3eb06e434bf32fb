"""Bounds the memory that the bodies of one principal's requests hold: at most half of what is free for all of them.

Free is the budget less what others hold, so that the first principal leaves as much as it takes, and each further one
half of what is left. It holds where more than one principal is there, or requests are anonymous as well; all of those
together count as one. The first body of a principal is never refused, nor are small ones, which hold little. What is
decoded of a body does not count here: that is bounded by the budget alone.
"""

from collections.abc import Callable

from seaweedq.broker.log.memory_budget import Budget
from seaweedq.errors import Overloaded

SMALL_BYTES = 64 * 1024


def _one() -> int:
    return 1


class FairMemory:
    """The bytes that principals hold, by their keys. `parties` returns how many principals there are."""

    def __init__(self, budget: Budget, parties: Callable[[], int] = _one) -> None:
        self._budget = budget
        self._parties = parties
        self._held: dict[str, int] = {}

    def take(self, key: str, size: int) -> None:
        """Counts bytes of a body, before the budget does. Raises Overloaded."""
        held = self._held.get(key, 0)
        if held and self._parties() > 1:
            free = self._budget.limit_bytes - self._budget.held
            if 2 * (held + size) > held + free:
                raise Overloaded(
                    f"requests of the same principal hold {held} bytes, and {size} more would be over half of what is "
                    f"free of memory_budget_bytes={self._budget.limit_bytes}; try again",
                    budget_bytes=self._budget.limit_bytes,
                )
        self._held[key] = held + size

    def release(self, key: str, size: int) -> None:
        """Forgets bytes that are held no more."""
        left = self._held[key] - size
        if left:
            self._held[key] = left
        else:
            del self._held[key]

    def __len__(self) -> int:
        return len(self._held)

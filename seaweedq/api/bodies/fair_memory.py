"""Bounds the memory that the bodies of one principal's requests hold: at most half of what is free for all of them.

Free is the budget less what others hold, so that the first principal leaves as much as it takes, and each further one
half of what is left. It holds where more than one principal is there, or requests are anonymous as well; all of those
together count as one. The first body of a principal is never refused, nor are small ones, which hold little. What a
body decodes to counts as well, and what its decoder may make meanwhile: a few hundred bytes become 16 MiB.
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

    def held(self, key: str | None) -> int:
        """Returns how many bytes a principal's requests hold."""
        return self._held.get(key, 0) if key is not None else 0

    def has_room(self, key: str | None, size: int) -> bool:
        """Returns whether a principal's requests may hold so many bytes more. None is a request without a share."""
        held = self.held(key)
        if not held or self._parties() < 2:
            return True
        return 2 * (held + size) <= held + self._budget.limit_bytes - self._budget.held

    def take(self, key: str, size: int) -> None:
        """Counts bytes of a body, before the budget does. Raises Overloaded."""
        if not self.has_room(key, size):
            raise self.refusal(key, size)
        self.add(key, size)

    def refusal(self, key: str | None, size: int) -> Overloaded:
        """Returns the error for bytes without room."""
        return Overloaded(
            f"requests of the same principal hold {self.held(key)} bytes, and {size} more would be over half of what "
            f"is free of memory_budget_bytes={self._budget.limit_bytes}; try again",
            budget_bytes=self._budget.limit_bytes,
        )

    def add(self, key: str | None, size: int) -> None:
        """Counts bytes for which there is room."""
        if key is not None and size:
            self._held[key] = self._held.get(key, 0) + size

    def release(self, key: str | None, size: int) -> None:
        """Forgets bytes that are held no more."""
        if key is None or not size:
            return
        left = self._held[key] - size
        if left:
            self._held[key] = left
        else:
            del self._held[key]

    def __len__(self) -> int:
        return len(self._held)

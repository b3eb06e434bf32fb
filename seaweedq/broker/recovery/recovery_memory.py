"""The memory of recoveries: the commits that they read, and the entries that they make, count in the memory budget.

A recovery is *empty*, *gathering* or *replaying*. It is empty at first and after each batch; then it holds nothing that
it could let go of. It gathers commits for as long as they fit, without ever waiting, replays the batch, lets go of all
of it and is empty again.

It waits for room only while it is empty, and others wait for nothing but those that gather or replay. So one that waits
holds nothing, one that holds does not wait, and there is no circle. Those that wait take turns in the order in which
they came. The wait ends as soon as the room that it wants fits both in the recoveries' share and in the budget; at the
latest when no other recovery gathers or replays, since the budget may be full of tails for long, and a commit may be
larger than the share; and in any case after PATIENCE_S, since a replay ends no sooner than the store answers.

The share is a quarter of the budget. A quarter of that a batch may always reach: with less, a recovery beside full
tails would make a file of each commit. So recoveries hold more than the budget has left only if it is full, and then
one of them that much, or a commit that is larger.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from seaweedq.broker.log.memory_budget import Budget
from seaweedq.concurrency.futures import Signal

PATIENCE_S = 5.0
RECHECK_S = 0.1  # for room that others than recoveries have made, of which the budget tells nobody
logger = logging.getLogger(__name__)


class HeldMemory:
    """The memory that one recovery holds: of its batch, and of the acks and frames that it keeps to its end."""

    def __init__(self, memory: "RecoveryMemory") -> None:
        self.batch_bytes = 0
        self.kept_bytes = 0
        self._memory = memory

    async def acquire(self, size: int) -> None:
        """Takes room for the beginning of a batch, as soon as there is any."""
        await self._memory.wait(self, size)
        self.count(size)

    def grow(self, size: int) -> bool:
        """Takes room for more of the batch; returns False if there is none now."""
        if not self._memory.has_room(self, size):
            return False
        self.count(size)
        return True

    def count(self, size: int) -> None:
        """Counts memory that the batch holds already."""
        self.batch_bytes += size
        self._memory.add(size)

    def release(self) -> None:
        """Lets go of the batch."""
        self._memory.add(-self.batch_bytes)
        self.batch_bytes = 0

    def keep(self, size: int) -> None:
        """Counts the memory that it keeps to its end, beside batches."""
        self._memory.add(size - self.kept_bytes)
        self.kept_bytes = size


class RecoveryMemory:
    """The memory of all recoveries of this process."""

    def __init__(self, budget: Budget) -> None:
        self.share_bytes = budget.limit_bytes // 4
        self._budget = budget
        self._held: list[HeldMemory] = []
        self._queue: deque[HeldMemory] = deque()
        self._changed = Signal()

    @contextmanager
    def recovery(self) -> Iterator[HeldMemory]:
        """Counts a recovery, and gives all back at its end."""
        held = HeldMemory(self)
        self._held.append(held)
        try:
            yield held
        finally:
            held.release()
            held.keep(0)
            self._held.remove(held)

    def has_room(self, held: HeldMemory, size: int) -> bool:
        """Returns whether a recovery may hold so much more without waiting."""
        if held.batch_bytes and held.batch_bytes + size <= self.share_bytes // 4:
            return True
        return self._budget.recovering + size <= self.share_bytes and self._budget.fits(size)

    async def wait(self, held: HeldMemory, size: int) -> None:
        """Waits until it is a recovery's turn, and there is room for it, or nothing to wait for."""
        self._queue.append(held)
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not (self._queue[0] is held and self._may_begin(held, size)):
                    await self._changed.wait(RECHECK_S)
        except TimeoutError:
            logger.warning(
                "a recovery has waited %g s for memory, and now takes %d bytes, even if this exceeds a limit; "
                "before this, all recoveries together used %d bytes (limit: %d), and the whole broker used %d bytes "
                "(memory_budget_bytes=%d)",
                PATIENCE_S,
                size,
                self._budget.recovering,
                self.share_bytes,
                self._budget.held,
                self._budget.limit_bytes,
            )
        finally:
            self._queue.remove(held)
            self._changed.wake()

    def add(self, size: int) -> None:
        """Counts bytes of a recovery; a negative number was let go of."""
        self._budget.recovering += size
        if size < 0:
            self._changed.wake()

    def _may_begin(self, held: HeldMemory, size: int) -> bool:
        return self.has_room(held, size) or not any(one.batch_bytes for one in self._held)

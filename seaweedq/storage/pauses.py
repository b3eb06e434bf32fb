"""The pauses between the tries of one put, each twice as long as the one before.

A put that works tells all others that pause: the store takes puts again, so that none waits for the rest of a long
pause. A pause up to `SURE_S` is never cut short, and follows each that was: a put that fails alone, while others work,
is not tried more often than that.
"""

import asyncio

from seaweedq.concurrency.deadline import Sleep, sleep_unless
from seaweedq.concurrency.signal import Signal

FIRST_S, SURE_S = 0.05, 0.8


class Pauses:
    """The pauses of one put, none longer than `last_s`. `worked` is woken by each put to the same store that works."""

    def __init__(self, worked: Signal, sleep: Sleep, last_s: float) -> None:
        self._worked = worked
        self._sleep = sleep
        self._last_s = last_s
        self._next_s = FIRST_S

    async def take(self) -> None:
        """Pauses before the next try."""
        pause_s = self._next_s
        self._next_s = min(2 * pause_s, self._last_s)
        if pause_s <= SURE_S:
            await self._sleep(pause_s)
        elif await self._is_cut(pause_s):
            self._next_s = min(SURE_S, self._last_s)

    async def _is_cut(self, pause_s: float) -> bool:
        """Sleeps, unless another put works meanwhile. Tells whether one did."""
        worked = asyncio.Event()
        self._worked.listen(worked.set)
        try:
            return await sleep_unless(worked, self._sleep, pause_s)
        finally:
            self._worked.unlisten(worked.set)

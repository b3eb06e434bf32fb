"""A signal of one topic: something has become readable, or has closed. Waiters look for themselves what it was."""

import asyncio


class Signal:
    """Wakes everybody who waits; `count` says how often, for those whose look takes its time."""

    def __init__(self) -> None:
        self.count = 0
        self._waiters: set[asyncio.Future[None]] = set()

    def wake(self) -> None:
        """Let everybody who waits look again."""
        self.count += 1
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, timeout_s: float) -> None:
        """Until the next wake, at most `timeout_s`. What happened before the call does not count: look, then wait,
        without an await between."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except TimeoutError:
            pass
        finally:
            self._waiters.discard(waiter)

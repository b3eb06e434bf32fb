"""A signal that something has changed: everybody who waits wakes up, in the order of their waits, and looks what it
was."""

import asyncio
from collections.abc import Callable


class Signal:
    """Wakes everybody who waits. `count` tells how often it did, for those whose look takes its time."""

    def __init__(self) -> None:
        self.count = 0
        self._waiters: dict[asyncio.Future[None], None] = {}  # in order: a set has that of addresses
        self._listeners: list[Callable[[], None]] = []

    def wake(self) -> None:
        """Lets everybody who waits look again."""
        self.count += 1
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        for listener in self._listeners:
            listener()

    def listen(self, listener: Callable[[], None]) -> None:
        """Calls `listener`, which does little and raises nothing, at each wake from now on."""
        self._listeners = [*self._listeners, listener]

    def unlisten(self, listener: Callable[[], None]) -> None:
        """Calls it no more."""
        self._listeners = [one for one in self._listeners if one != listener]

    async def wait(self, timeout_s: float | None) -> None:
        """Returns after the next wake, or after `timeout_s` seconds (None: no bound). A wake before the call does not
        count, so a caller looks first, and then waits without an await between (`Attempts` does)."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except TimeoutError:
            pass
        finally:
            self._waiters.pop(waiter, None)

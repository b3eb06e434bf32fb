"""The answers of this broker to others that ask whether it is there: at once, or held as long as it lives.

A request that is held ends with the process, which whoever asked notices at once. One that is answered early says that
this broker stops: it may refuse connections before its record says that it is gone, and must not be suspected for it.
"""

import asyncio
from contextlib import suppress

from seaweedq.broker.rpc.messages import Greeting
from seaweedq.clock import Clock


class Greetings:
    """Answers for the broker `me`."""

    def __init__(self, me: str, clock: Clock) -> None:
        self._me = me
        self._clock = clock
        self._leaving = asyncio.Event()

    def leave(self) -> None:
        """Tells all who ask, and who wait, that this broker stops."""
        self._leaving.set()

    async def greet(self, hold_s: float) -> Greeting:
        """Returns who answers here, and the time, after `hold_s`, or as soon as this broker stops."""
        if hold_s > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(hold_s):
                    await self._leaving.wait()
        return Greeting(self._me, self._leaving.is_set(), self._clock.now_us())

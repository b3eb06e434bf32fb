"""One broker of several on a machine, over all of its processes: restarted when it ends, until it is stopped.

`members` decides the pauses between starts and the meaning of exit codes.
"""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from seaweedq.cli.server.parent.life import Life
from seaweedq.cli.server.parent.members import ended_in_order, hopeless, pause_s, quick_ends, told

logger = logging.getLogger("seaweedq")


class Member:
    """Broker `number`, started by `command`, with `lifeline` at its stdin. Create it in a running loop.

    `grace_s`: how long it may take to stop in order. `bury` is called with the number when a process has ended.
    """

    def __init__(
        self, number: int, command: Sequence[str], lifeline: int, grace_s: float, bury: Callable[[int], Awaitable[None]]
    ) -> None:
        self.number = number
        self._bury = bury
        self._command, self._lifeline, self._grace_s = command, lifeline, grace_s
        self._life: Life | None = None
        self._next: asyncio.Future[Life] = asyncio.get_running_loop().create_future()
        self._hurry = asyncio.Event()
        self._stopping = self._asked = self._was_ready = False

    async def keep(self) -> int:
        """Starts the broker, and restarts it whenever it ends. Returns 0 if it was stopped in order, 1 if not; its exit
        code if another start would not help."""
        quick = 0
        while not self._stopping:
            life = await self._begin()
            code = await life.ended if life else 1
            if not self._stopping:
                await self._bury(self.number)
            greeted = life is not None and life.greeted.is_set()
            if self._stopping:
                return 0 if ended_in_order(code, greeted) else 1
            self._was_ready |= greeted
            if hopeless(code, self._was_ready):
                logger.error("broker %d %s before it was ready: stopping all", self.number, told(code))
                return code
            quick = 0 if self._asked else quick_ends(quick, life.lived_s if life else 0.0)
            if not self._asked:
                logger.warning("broker %d %s: starting it again in %.1f s", self.number, told(code), pause_s(quick))
            self._asked = False
            await self._pause(pause_s(quick))
        return 0

    async def restart(self) -> bool:
        """Stops the broker in order and lets it be started again. Tells whether it became ready, or ended before."""
        born = self._next
        self._hurry.set()
        if self._life and not self._life.ended.done():
            self._asked = True
            self._life.signal(signal.SIGTERM)
            await asyncio.wait([self._life.ended], timeout=self._grace_s)
            if not self._life.ended.done():
                logger.error("broker %d did not stop within %.0f s: killing it", self.number, self._grace_s)
                self._life.signal(signal.SIGKILL)
        return await (await born).ready()

    def stop(self) -> None:
        """Stops the broker in order, for good."""
        self._stopping = True
        self._hurry.set()
        if self._life:
            self._life.signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kills the broker."""
        if self._life:
            self._life.signal(signal.SIGKILL)

    async def _begin(self) -> Life | None:
        pastes = self.number == 1 and not self._was_ready
        try:
            self._life = await Life.begin(self.number, self._command, self._lifeline, pastes)
        except OSError as error:
            logger.error("cannot start broker %d: %s", self.number, error)
            return None
        if self._stopping:  # the signal found nobody
            self._life.signal(signal.SIGTERM)
        self._next.set_result(self._life)
        self._next = asyncio.get_running_loop().create_future()
        return self._life

    async def _pause(self, pause_s: float) -> None:
        self._hurry.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._hurry.wait()

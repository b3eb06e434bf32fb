"""The renewals of a lease: one is sent each `period_s`, whether the earlier ones have been answered or not.

A coordination that answers late, but within the lease, then ends no lease: waiting for an answer before the next try
adds up, and giving up after a part of the lease gives up answers that would come. An answer that takes as long as the
lease counts for nothing, so no more renewals are under way than fit into a lease.

A renewal that is missed (no answer, or a refusal that decides nothing) is counted and logged: the first one at once,
then one line each TELL_S.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from seaweedq.clock import Clock
from seaweedq.concurrency.futures import fail, resolve
from seaweedq.errors import CoordinationUnavailable

PERIOD_S = 1.0
SENDINGS = 5  # at least, for each lease
TELL_S = 10.0
logger = logging.getLogger(__name__)


class Renewals:
    """The renewals of one lease of `lease_s`, whose holder logs call `holder`. `renew` sends one, and tells whether the
    lease lives. `missed` counts those without an answer."""

    def __init__(self, clock: Clock, holder: str, lease_s: float, renew: Callable[[], Awaitable[bool]]) -> None:
        self.missed = 0
        self._clock = clock
        self._holder = holder
        self._lease_s = lease_s
        self._renew = renew
        self._told_s: float | None = None
        self._told = 0

    @property
    def period_s(self) -> float:
        """The time from one sending to the next."""
        return min(PERIOD_S, self._lease_s / SENDINGS)

    async def run(self, hold: Callable[[], bool]) -> None:
        """Sends until an answer says that the lease has ended, or `hold` tells to send nothing any more. Raises what a
        renewal raised other than CoordinationUnavailable."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        under_way: set[asyncio.Task[None]] = set()
        try:
            while True:
                await asyncio.wait([ended], timeout=self.period_s)
                if ended.done() or hold():
                    break
                task = asyncio.create_task(self._send(ended), name="renewal")
                under_way.add(task)
                task.add_done_callback(under_way.discard)
            if ended.done():
                ended.result()
        finally:
            await _cancel(under_way)

    async def _send(self, ended: asyncio.Future[None]) -> None:
        try:
            async with asyncio.timeout(self._lease_s):
                alive = await self._renew()
        except (CoordinationUnavailable, TimeoutError) as error:
            self._miss(str(error) or f"no answer within {self._lease_s:g} s")
        except Exception as error:
            fail(ended, error)
        else:
            if not alive:
                resolve(ended, None)

    def _miss(self, why: str) -> None:
        self.missed += 1
        now_s = self._clock.monotonic_s()
        if self._told_s is not None and now_s - self._told_s < TELL_S:
            return
        count, self._told, self._told_s = self.missed - self._told, self.missed, now_s
        logger.warning("%d renewals of the lease of %s were missed; the last one: %s", count, self._holder, why)


async def _cancel(tasks: set[asyncio.Task[None]]) -> None:
    left = list(tasks)
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left)

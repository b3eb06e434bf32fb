"""The life of a broker that waits for a rebuild of coordination: it serves health and the rebuild, and nothing else.

It has no lease as a member and no journal of its own. A leased key reports the journals of its home folder that are
needed, whose lock it holds. It looks at the cluster's key now and then: once that serves, and no sign is left, this
life ends, and the next one joins.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from seaweedq.broker.rebuild.journals import read_own
from seaweedq.broker.rebuild.rebuilding import Rebuilding, Report, Wish
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Coordination, Put
from seaweedq.coordination.records import WaitingRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import Damaged, RebuildConflict, SeaweedqError, Unavailable
from seaweedq.journal.interface import Journals

LOOK_S = 1.0
LEASE_S = 15.0
logger = logging.getLogger(__name__)


class Waiting:
    """The wait of one life. `is_over` tells whether no sign is left; `done` is called then. `found` are the reasons of
    the signs, for metrics."""

    def __init__(
        self,
        coordination: Coordination,
        journals: Journals,
        rebuilding: Rebuilding,
        place: str,
        url: str,
        found: tuple[str, ...],
        is_over: Callable[[], Awaitable[bool]],
        done: Callable[[], None],
    ) -> None:
        self.found = found
        self._coordination = coordination
        self._journals = journals
        self._rebuilding = rebuilding
        self._place = place
        self._url = url
        self._is_over = is_over
        self._done = done
        self._tasks: list[asyncio.Task[None]] = []
        self._running: asyncio.Task[Report] | None = None
        self._lease = 0

    async def begin(self) -> None:
        """Reports, as far as that is possible now; then begins to report and to look, again and again."""
        with suppress(Unavailable, Damaged):
            self._lease = await self._report()
        self._tasks = [
            asyncio.create_task(self._report_often(), name="report of a waiting broker"),
            asyncio.create_task(self._look_often(), name="look for the end of a wait"),
        ]

    async def stop(self) -> None:
        """Ends the wait, and a rebuild that runs here: it can be run again."""
        tasks = [*self._tasks, *([self._running] if self._running else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._lease:
            with suppress(Unavailable):
                await self._coordination.leases.revoke(self._lease)

    async def propose(self, wish: Wish) -> Report:
        """As Rebuilding.propose."""
        return await self._rebuilding.propose(wish)

    async def rebuild(self, wish: Wish) -> Report:
        """As Rebuilding.rebuild. It goes on if its client goes away; one that is asked for meanwhile is the same.
        Raises RebuildConflict if no sign is left: coordination was rebuilt, and this broker is about to join."""
        if self._running is None or self._running.done():
            if await self._is_over():
                raise RebuildConflict(
                    "rebuild refused: there is no longer any sign that coordination was lost or restored to an "
                    "earlier state, so brokers can join"
                )
            self._running = asyncio.create_task(self._rebuilding.rebuild(wish), name="rebuild of coordination")
        return await asyncio.shield(self._running)

    async def _look_often(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                if (self._running is None or self._running.done()) and await self._is_over():
                    self._done()
                    return
            except SeaweedqError as error:
                logger.warning("cannot determine whether coordination was rebuilt: %s", error)

    async def _report_often(self) -> None:
        while True:
            try:
                while self._lease and await self._coordination.leases.renew(self._lease):
                    await asyncio.sleep(LEASE_S / 3)
                self._lease = await self._report()
                continue
            except (Unavailable, Damaged) as error:
                logger.warning(
                    "the list of the journals in this broker's data folder, which a rebuild of coordination needs, "
                    "cannot be written to coordination yet (%s); retrying",
                    error,
                )
            await asyncio.sleep(LOOK_S)

    async def _report(self) -> int:
        record = WaitingRecord(self._url, await read_own(self._journals, self._place))
        grant = await self._coordination.leases.grant(LEASE_S)
        put = Put(keys.WAITING.key(self._place), keys.WAITING.encode(Versioned.new(record)), grant.lease)
        await self._coordination.commit([], [put])
        return grant.lease

"""The parent's word that a broker of its machine is dead: it ends the lease as it sees the process end.

The parent has a session of its own with coordination for that, as long as it takes. Nobody has to wait for the lease,
nor to suspect anything. What is not done here is done by the broker's next process, or the lease ends by itself.

The process that ended may never have lived in the folder: it may have waited there for one that lives, as a child does
of a parent that was killed. So whose lease ends is read under the folder's lock. The lock is given back before a lease
ends, since whoever recovers the journal takes it at once.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from seaweedq.cli.server.backends.coordinations import open_coordination
from seaweedq.clock import SystemClock
from seaweedq.concurrency.pools import Pools
from seaweedq.coordination.ended_lives import end_life, journals_of
from seaweedq.coordination.interface import Coordination
from seaweedq.errors import SeaweedqError
from seaweedq.journal.disk import Disk
from seaweedq.journal.folder_lock import FolderLock
from seaweedq.journal.home_folder import known_id
from seaweedq.settings import Settings

WITHIN_S = 5.0
logger = logging.getLogger("seaweedq")


def burial(settings: Settings) -> Callable[[int], Awaitable[None]]:
    """Returns what ends the lives of a member, given its number, after its process has ended."""

    async def bury(number: int) -> None:
        try:
            async with asyncio.timeout(WITHIN_S):
                await _end_lives(settings, number)
        except (SeaweedqError, OSError) as error:
            logger.warning("the lease of broker %d ends by itself: %s", number, str(error) or "no answer in time")

    return bury


async def _end_lives(settings: Settings, number: int) -> None:
    home = settings.model_copy(update={"member": number}).home
    if (place := known_id(home, Disk())) is None:
        return  # it never locked its folder
    pools = Pools()
    coordination = open_coordination(settings, SystemClock(), pools)
    try:
        for broker in await _dead(coordination, home, place):
            if await end_life(coordination, broker):
                logger.info("ended the lease of %s, whose process has ended", broker)
    finally:
        await coordination.close()
        pools.close()


async def _dead(coordination: Coordination, home: Path, place: str) -> list[str]:
    """Returns the brokers that have lived in the folder. Raises DataFolderInUse where one may live there."""
    lock = FolderLock(home, Disk())
    lock.acquire()
    try:
        return [*await journals_of(coordination, place)]
    finally:
        lock.release()

"""Drops the holdings of other brokers' mirrored journals that nobody can need any more; a broker that stops waits until
that is so for all.

A holding goes when its owner says so (journal/holdings), or when the owner's journal was recovered, or has no key any
more and `done` in the store: never because no set names it yet. The views may be behind, so the key is read again
before. A key alone that is gone says nothing: coordination may have been set back to before the owner joined.
"""

import asyncio
import logging

from seaweedq.broker.service import Service, Tasks
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Coordination
from seaweedq.coordination.roster import Roster, is_recovered
from seaweedq.coordination.versioned import Unreadable
from seaweedq.errors import CoordinationUnavailable, SeaweedqError
from seaweedq.journal.holdings import Holdings
from seaweedq.journal.interface import Journals

LOOK_S = 5.0
WAIT_S = 0.1
logger = logging.getLogger(__name__)


class HeldJournals(Service):
    """Drops holdings, and waits for sets and recoveries that need them."""

    def __init__(self, holdings: Holdings, journals: Journals, coordination: Coordination, roster: Roster) -> None:
        self._holdings = holdings
        self._journals = journals
        self._coordination = coordination
        self._roster = roster

    async def run(self) -> Tasks:
        """Drops what nobody needs, for ever."""
        return {"holdings": self._drop_often()}

    async def hand_over(self) -> None:
        """Waits until no set names a holding of this process: living owners replace its mirror, and dead ones are
        recovered. While coordination is away, a set may name one."""
        while await self._are_named():
            await asyncio.sleep(WAIT_S)

    async def _drop_often(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.drop()
            except SeaweedqError as error:
                logger.warning("copies of the journals of dead brokers could not be deleted yet: %s", error)

    async def drop(self) -> None:
        """Drops the holdings of journals that nobody needs. Raises CoordinationUnavailable, StoreUnavailable."""
        for owner in self._holdings.owners():
            known = self._roster.journal(owner)
            if known is not None and (isinstance(known, Unreadable) or not known.record.recovered):
                continue
            if await self._is_over(owner):
                self._holdings.forget(owner)

    async def _is_over(self, owner: str) -> bool:
        there = await self._coordination.get(keys.JOURNALS.key(owner))
        if there is not None:
            return is_recovered(there)
        return not self._holdings.count(owner) or await self._journals.is_done(owner)

    async def _are_named(self) -> bool:
        for owner in self._holdings.owners():
            try:
                there = await self._coordination.get(keys.MIRRORS.key(owner))
            except CoordinationUnavailable:
                return True
            known = keys.MIRRORS.read(there) if there else None
            if known is None or isinstance(known, Unreadable) or known.record.state == "decided":
                continue
            if self._holdings.of(owner) & {one.holding for one in known.record.members}:
                return True
        return False

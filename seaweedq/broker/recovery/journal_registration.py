"""The key of this broker's journal in coordination: written before there is a journal, removed at the end.

Order of writes at a stop: 1. The key says `recovered`, once everything is in chains and cursors. 2. The content goes.
3. The key goes. A crash between any two, or a stop that has no time for thousands of deletions, leaves the key, and the
next recovery goes on (broker/recovery/journal_recovery).
"""

import asyncio
import logging

from seaweedq import levels
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Coordination, Delete, Put
from seaweedq.coordination.membership import Membership
from seaweedq.coordination.records import JournalRecord
from seaweedq.coordination.versioned import Unreadable, Versioned
from seaweedq.errors import NotReady, SeaweedqError
from seaweedq.failpoints import reach
from seaweedq.journal.interface import Journal

RETIRE_S = 1.0
logger = logging.getLogger(__name__)


class JournalRegistration:
    """The key of one broker's journal, which `record` describes."""

    def __init__(self, coordination: Coordination, membership: Membership, record: JournalRecord) -> None:
        self._coordination = coordination
        self._membership = membership
        self._key = keys.JOURNALS.key(membership.broker)
        self._held = Versioned.new(record).replace(lowest=levels.LOWEST, highest=levels.HIGHEST)

    async def register(self) -> None:
        """Writes the key, so that if this broker dies while it starts, its folder's next broker ends its lease. Raises
        NotReady."""
        put = Put(self._key, keys.JOURNALS.encode(self._held))
        if not await self._coordination.commit([Compare(self._key, 0), self._membership.compare()], [put]):
            raise NotReady("this broker's lease expired while it was starting")

    async def retire(self, journal: Journal) -> None:
        """Removes a closed journal of which nothing is needed, and its key, as far as RETIRE_S allows."""
        reach("stop.retire")
        try:
            async with asyncio.timeout(RETIRE_S):
                if not await self._mark():
                    return
                reach("stop.remove")
                await journal.remove()
                reach("stop.removed")
                await self._coordination.commit([], [Delete(self._key)])
        except (TimeoutError, OSError, SeaweedqError) as error:
            logger.info("the next broker removes this journal: %s", str(error) or "it would take too long")

    async def _mark(self) -> bool:
        """Writes that nothing in the journal is needed any more. False: the record cannot be read by now, and its
        journal is left alone. Raises NotReady."""
        there = await self._coordination.get(self._key)
        held = keys.JOURNALS.read(there) if there else self._held
        if isinstance(held, Unreadable):
            return False
        put = Put(self._key, keys.JOURNALS.encode(held.replace(recovered=True)))
        if not await self._coordination.commit([self._membership.compare()], [put]):
            raise NotReady("this broker's lease has ended")  # a recovery may read what is to be removed
        return True

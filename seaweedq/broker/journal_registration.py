"""The journal of this broker's start: named in coordination before there is one, chosen by the settings, let go at the
end.

A broker that has put everything away says so in the journal's key (`recovered`), and begins to remove the content. What
it does not get done in time whoever comes next does (broker/recovery/journal_recovery): no stop waits for thousands of
deletions.
"""

import asyncio
import logging

import msgspec

from seaweedq.clock import Clock, Ids
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Coordination, Delete, Put
from seaweedq.coordination.membership import Membership
from seaweedq.coordination.records import JournalRecord
from seaweedq.errors import NotReady, SeaweedqError
from seaweedq.failpoints import reach
from seaweedq.journal.file_journal import FileJournal
from seaweedq.journal.interface import Journal
from seaweedq.journal.object_journal import ObjectJournal
from seaweedq.settings import Settings
from seaweedq.storage.interface import ObjectStore

RETIRE_S = 1.0
logger = logging.getLogger(__name__)


class OwnJournal:
    """Its key and its content. `place` is the id of this process's own folder."""

    def __init__(self, settings: Settings, coordination: Coordination, membership: Membership, place: str) -> None:
        self._settings = settings
        self._coordination = coordination
        self._membership = membership
        self._key = keys.JOURNALS.key(membership.broker)
        self._record = JournalRecord("file", place, str(settings.home.absolute()))
        if settings.journal_kind == "object":
            self._record = JournalRecord("object", place)

    async def register(self) -> None:
        """Name it, before there is one: if this broker dies starting, the next one knows whose lease to end. Raises
        NotReady."""
        put = Put(self._key, keys.JOURNALS.encode(self._record))
        if not await self._coordination.commit([Compare(self._key, 0), self._membership.compare()], [put]):
            raise NotReady("this broker's lease expired while it was starting")

    def make(self, store: ObjectStore, clock: Clock, ids: Ids) -> Journal:
        """The journal, empty."""
        settings, broker = self._settings, self._membership.broker
        if settings.journal_kind == "file":
            return FileJournal(settings.home / "journals" / broker, ids, settings.journal_file_bytes)
        return ObjectJournal(
            store,
            broker,
            clock,
            ids,
            settings.journal_window,
            settings.journal_linger_s,
            settings.journal_linger_max_s,
        )

    async def retire(self, journal: Journal) -> None:
        """Once it is closed and nothing of it is needed: say so, then let the content go, then the key."""
        reach("stop.retire")
        record = msgspec.structs.replace(self._record, recovered=True)
        try:
            async with asyncio.timeout(RETIRE_S):
                await self._coordination.commit(
                    [self._membership.compare()], [Put(self._key, keys.JOURNALS.encode(record))]
                )
                reach("stop.remove")
                await journal.remove()
                reach("stop.removed")
                await self._coordination.commit([], [Delete(self._key)])
        except (TimeoutError, OSError, SeaweedqError) as error:
            logger.info("the next broker removes this journal: %s", str(error) or "it would take too long")

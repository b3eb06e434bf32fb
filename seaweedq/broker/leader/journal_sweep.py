"""The leader's sweep of journals: has their backends delete what dead brokers have left, and nobody needs any more."""

import logging

from seaweedq.coordination import keys
from seaweedq.coordination.interface import Coordination
from seaweedq.coordination.transactions import read_all
from seaweedq.journal.interface import Journals

logger = logging.getLogger(__name__)


class JournalSweep:
    """The sweep over all journals."""

    def __init__(self, coordination: Coordination, journals: Journals) -> None:
        self._coordination = coordination
        self._journals = journals

    async def sweep(self) -> None:
        """Deletes the rest of journals that are long forgotten."""
        if removed := await self._journals.sweep(self._known):
            logger.info("removed %d objects of journals of brokers that are long gone", removed)

    async def _known(self) -> set[str]:
        """Returns the brokers that live, or whose journals are still to be recovered, be their records readable or
        not."""
        brokers, _ = await read_all(self._coordination, keys.BROKERS.prefix())
        journals, _ = await read_all(self._coordination, keys.JOURNALS.prefix())
        return {keys.BROKERS.parse(e.key)[0] for e in brokers} | {keys.JOURNALS.parse(e.key)[0] for e in journals}

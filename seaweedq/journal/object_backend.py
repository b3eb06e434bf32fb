"""The backend of object journals: slots in the store, below `_journals/{broker}/`. Every broker reaches all of them."""

from collections.abc import Awaitable, Callable, Container

from seaweedq.clock import Clock, Ids
from seaweedq.coordination.records import JournalRecord
from seaweedq.formats import Level
from seaweedq.journal.home_folder import HomeFolder
from seaweedq.journal.object_format import SlotHeaders
from seaweedq.journal.object_journal import ObjectJournal
from seaweedq.journal.object_recovery import DeadObjectJournal
from seaweedq.journal.object_sweep import sweep
from seaweedq.journal.pacing import Pace
from seaweedq.storage.interface import ObjectStore

KIND = "object"


class ObjectJournals:
    """Object journals in `store`, as the process sees them whose home folder, locked, is `home`."""

    def __init__(self, home: HomeFolder, store: ObjectStore, clock: Clock, ids: Ids, pace: Pace, level: Level) -> None:
        self._home = home
        self._store = store
        self._clock = clock
        self._ids = ids
        self._pace = pace
        self._level = level

    def describe(self, broker: str) -> JournalRecord:
        return JournalRecord(KIND, self._home.id)

    def create(self, broker: str) -> ObjectJournal:
        return ObjectJournal(self._store, self._headers(broker), self._clock, self._pace)

    def is_exclusive(self, record: JournalRecord) -> bool:
        return False

    def open_dead(self, broker: str, record: JournalRecord) -> DeadObjectJournal:
        return DeadObjectJournal(self._store, self._headers(broker), record.recovered)

    async def sweep(self, read_known: Callable[[], Awaitable[Container[str]]]) -> int:
        return await sweep(self._store, read_known)

    def _headers(self, broker: str) -> SlotHeaders:
        return SlotHeaders(broker, self._ids, self._level)

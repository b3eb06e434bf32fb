"""The backend of file journals: each in `journals/{broker}` below the home folder of its broker's process."""

from collections.abc import Awaitable, Callable, Container
from pathlib import Path

from seaweedq.clock import Ids
from seaweedq.coordination.records import JournalRecord
from seaweedq.formats import Level
from seaweedq.journal.disk import Disk
from seaweedq.journal.file_journal import FileJournal
from seaweedq.journal.file_recovery import DeadFileJournal, PlaceLock
from seaweedq.journal.folder_lock import FolderLock
from seaweedq.journal.home_folder import HomeFolder

KIND = "file"


class FileJournals:
    """File journals as the process sees them whose home folder, locked, is `home`."""

    def __init__(self, home: HomeFolder, disk: Disk, ids: Ids, file_bytes: int, level: Level) -> None:
        self._home = home
        self._disk = disk
        self._ids = ids
        self._file_bytes = file_bytes
        self._level = level

    def describe(self, broker: str) -> JournalRecord:
        return JournalRecord(KIND, self._home.id, str(self._home.path.absolute()))

    def create(self, broker: str) -> FileJournal:
        folder = _folder(self._home.path, broker)
        return FileJournal(folder, self._disk, self._ids, self._file_bytes, self._level)

    def is_exclusive(self, record: JournalRecord) -> bool:
        return record.place == self._home.id

    def open_dead(self, broker: str, record: JournalRecord) -> DeadFileJournal:
        if self.is_exclusive(record):
            return DeadFileJournal(_folder(self._home.path, broker), self._disk, None)
        home = Path(record.path)
        lock = PlaceLock(FolderLock(home, self._disk), record.place, self._disk)
        return DeadFileJournal(_folder(home, broker), self._disk, lock)

    async def sweep(self, read_known: Callable[[], Awaitable[Container[str]]]) -> int:
        return 0


def _folder(home: Path, broker: str) -> Path:
    return home / "journals" / broker

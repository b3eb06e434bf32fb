"""Chooses the journals that the settings name: the only place where a journal's kind is chosen."""

import time
from collections.abc import Callable

from seaweedq.clock import Clock, Ids
from seaweedq.formats import Level
from seaweedq.journal import file_backend, object_backend
from seaweedq.journal.disk import Disk
from seaweedq.journal.file_backend import FileJournals
from seaweedq.journal.home_folder import HomeFolder
from seaweedq.journal.interface import Journals, JournalSetup
from seaweedq.journal.kinds import JournalKinds
from seaweedq.journal.object_backend import ObjectJournals
from seaweedq.journal.object_journal import Pace
from seaweedq.settings import Settings
from seaweedq.storage.interface import ObjectStore


def journal_setup(
    settings: Settings,
    clock: Clock,
    ids: Ids,
    disk: Disk | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> JournalSetup:
    """Returns the home folder of a broker with these settings, and its journals: it writes the kind that the settings
    name, and recovers all kinds. `sleep` waits for an earlier holder of the folder."""
    disk = disk or Disk()
    home = HomeFolder(settings.home, disk, ids, sleep)
    pace = Pace(settings.journal_window, settings.journal_linger_s, settings.journal_linger_max_s)

    def open_journals(store: ObjectStore, level: Level) -> Journals:
        files = FileJournals(home, disk, ids, settings.journal_file_bytes, level)
        objects = ObjectJournals(home, store, clock, ids, pace, level)
        return JournalKinds({file_backend.KIND: files, object_backend.KIND: objects}, settings.journal_kind)

    return JournalSetup(home, open_journals)

"""A child process of test_journal_kill: locks a folder, appends for ever, prints each acknowledged number."""

import asyncio
import sys
from itertools import count
from pathlib import Path

from seaweedq.clock import SystemIds
from seaweedq.journal.disk import Disk
from seaweedq.journal.file_journal import FileJournal
from seaweedq.journal.home_folder import FolderLock
from tests.support.journal.sim_disk import acks, payload
from tests.support.levels import newest


async def main(folder: Path) -> None:
    FolderLock(folder, Disk()).acquire()
    journal = FileJournal(folder, Disk(), SystemIds(), file_bytes=40_000, level=newest)
    for expected in count():
        print(await journal.append(acks(payload(expected))), flush=True)


asyncio.run(main(Path(sys.argv[1])))

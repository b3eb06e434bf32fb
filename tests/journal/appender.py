"""A child process of test_journal_kill: locks a folder, appends for ever, prints each acknowledged number."""

import asyncio
import sys
from itertools import count
from pathlib import Path

from sim_disk import acks, payload

from seaweedq.broker.file_journal import FileJournal
from seaweedq.broker.lock import FolderLock
from seaweedq.clock import SystemIds


async def main(folder: Path) -> None:
    FolderLock(folder).acquire()
    journal = FileJournal(folder, SystemIds(), file_bytes=40_000)
    for expected in count():
        print(await journal.append(acks(payload(expected))), flush=True)


asyncio.run(main(Path(sys.argv[1])))

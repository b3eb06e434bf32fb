"""The recovery of a file journal: its files are read as segments/frames says, and must follow one another.

It is fenced by the lock of the folder in which its broker lived. A process holds the lock of its home folder for as
long as it lives, so the next holder of that lock knows that nothing more is written there. The folder is another one's
if its id is not that of the journal's key: then it is not even locked, since a broker may be starting there. `close`
gives the lock back, behind everything else that was begun: it waits for that, but not for a disk that hangs, as one of
a dead NFS server does, since a leader's stop waits for it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from seaweedq.errors import DataFolderInUse, JournalDamaged, JournalUnavailable
from seaweedq.journal.disk import Disk
from seaweedq.journal.file_journal import file_path, is_done, journal_files, remove_journal
from seaweedq.journal.home_folder import FolderLock, known_id
from seaweedq.journal.interface import NOTHING_SEEN, Claim, JournalUnreachable, Seen, highest
from seaweedq.segments.frames import (
    FILE_HEADER_BYTES,
    Commit,
    FileHeader,
    read_commits,
    read_header,
    read_indices,
    terms_of,
)
from seaweedq.segments.terms import Term

CLOSE_S = 2.0
READ_BYTES = 1024 * 1024  # of commits, read in one go: a hop to the worker for each costs more than reading it
T = TypeVar("T")
logger = logging.getLogger(__name__)


class PlaceLock:
    """The lock of the folder that had the id `place` when a journal was written there."""

    def __init__(self, lock: FolderLock, place: str, disk: Disk) -> None:
        self._lock = lock
        self._place = place
        self._disk = disk
        self._is_held = False

    def acquire(self) -> None:
        """Takes the lock unless it is held. Raises JournalUnreachable."""
        if self._is_held:
            return
        try:
            self._check()
            self._lock.acquire()
            self._is_held = True
            self._check()  # now it cannot change any more
        except (DataFolderInUse, OSError) as error:
            self.release()
            raise JournalUnreachable(f"{self._lock.folder}: {error}") from error

    def release(self) -> None:
        """Gives the lock back, if it is held."""
        self._is_held = False
        self._lock.release()

    def _check(self) -> None:
        if known_id(self._lock.folder, self._disk) != self._place:
            raise OSError("the journal is in a folder that this broker cannot reach, or on another machine")


class DeadFileJournal:
    """The file journal in `folder`. Without a `lock` it is in the home folder of this process, which has its lock.

    All disk work runs in one worker, in order, so that none goes on once the lock is given back.
    """

    def __init__(self, folder: Path, disk: Disk, lock: PlaceLock | None) -> None:
        self._folder = folder
        self._disk = disk
        self._lock = lock
        self._worker = disk.worker()
        self._closed = False

    async def fence(self) -> None:
        if self._lock:
            await self._run(self._lock.acquire)

    async def commits(self, claim: Claim) -> AsyncGenerator[Commit, None]:
        reading = read_journal(self._folder, self._disk)
        try:
            while True:
                found, error = await self._run(lambda: _some(reading))
                if not found and error is None:
                    break
                await claim(sum(commit.size_bytes for commit in found))
                while found:
                    yield found.popleft()
                if error:
                    raise error
        finally:
            if not self._closed:
                self._worker.submit(reading.close)  # behind a read that is under way

    async def terms(self) -> dict[tuple[str, int], Term]:
        return await self._run(lambda: _terms(self._folder, self._disk))

    async def remove(self, stated: Seen = NOTHING_SEEN) -> None:
        await self._run(lambda: remove_journal(self._folder, self._disk, stated))

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            released = [self._worker.submit(self._lock.release)] if self._lock else []
            self._worker.shutdown(wait=False)  # it still does what was begun
            if released and (await asyncio.wait(map(asyncio.wrap_future, released), timeout=CLOSE_S))[1]:
                logger.warning(
                    "the disk of the folder %s does not respond; the folder's lock is released as soon "
                    "as the disk responds",
                    self._folder,
                )

    async def _run(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._worker, work)
        except OSError as error:
            raise JournalUnavailable(f"the journal in {self._folder} cannot be read or removed: {error}") from error


def _some(reading: Iterator[Commit]) -> tuple[deque[Commit], Exception | None]:
    """Returns the next commits, of READ_BYTES or a little more, none at the end; and the damage behind them, if any."""
    found: deque[Commit] = deque()
    size = 0
    try:
        for commit in reading:
            found.append(commit)
            size += commit.size_bytes
            if size >= READ_BYTES:
                break
    except JournalDamaged as error:
        return found, error
    return found, None


def read_journal(folder: Path, disk: Disk) -> Generator[Commit, None, None]:
    """Yields the commits that a dead broker's journal still holds, numbers rising by one; a missing folder holds none,
    nor does one that is done.

    Reads a commit at a time. Blocks, and needs the folder's lock. Raises JournalDamaged,
    with path and position, if it meets damage; the commits that were yielded before are sound.
    """
    headers = [] if is_done(folder, disk) else _headers(folder, disk)
    expected = headers[0].first_commit if headers else 0
    for at, header in enumerate(headers):
        path = file_path(folder, header.number)
        if header.first_commit != expected:
            raise _damaged(path, f"begins with commit {header.first_commit}, not {expected}")
        end = headers[at + 1].previous_end if at + 1 < len(headers) else None
        with closing(disk.open(path)) as file:
            for commit in read_commits(file, str(path), end):
                assert commit.number == expected, "numbers are dense over the files of a journal"
                expected += 1
                yield commit
                del commit  # its memory may be let go of before the next one is read


def newest_commit(folder: Path, disk: Disk) -> Seen | None:
    """Returns what the newest commit of a journal states; None if there is no commit, or the journal is done. Needs no
    lock: the newest of a broker that lives may not be durable yet. Blocks. Raises JournalDamaged, NeedsNewerBroker,
    LevelMismatch."""
    for number in [] if is_done(folder, disk) else journal_files(folder, disk)[::-1]:
        path = file_path(folder, number)
        with closing(disk.open(path)) as file:
            newest = deque(read_indices(file, str(path)), 1)
        if newest:
            return Seen(*newest[0].seen)
    return None


def _terms(folder: Path, disk: Disk) -> dict[tuple[str, int], Term]:
    """Blocks. Those of commits that were never acknowledged, since they are torn or failed, are among them: their
    broker was the owner all the same."""
    found: list[dict[tuple[str, int], Term]] = []
    for number in [] if is_done(folder, disk) else journal_files(folder, disk):
        path = file_path(folder, number)
        with closing(disk.open(path)) as file:
            found.append(highest(terms_of(commit.index) for commit in read_indices(file, str(path))))
    return highest(found)


def _headers(folder: Path, disk: Disk) -> list[FileHeader]:
    """Returns the headers of all files that were begun, in order; only the last may not have been."""
    numbers = journal_files(folder, disk)
    headers: list[FileHeader] = []
    for at, number in enumerate(numbers):
        path = file_path(folder, number)
        header = read_header(disk.read(path, FILE_HEADER_BYTES), disk.size(path), str(path))
        if header is None and at + 1 < len(numbers):
            raise _damaged(path, "has no header, though another file follows")
        if header is not None and (header.number, number) != (number, numbers[0] + at):
            raise _damaged(path, f"is file {header.number}; file {numbers[0] + at} was to follow")
        if header is not None:
            headers.append(header)
    return headers


def _damaged(path: Path, what: str) -> JournalDamaged:
    return JournalDamaged(f"{path} {what}", path=str(path), position=0)

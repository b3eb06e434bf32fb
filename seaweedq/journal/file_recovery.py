"""The recovery of a file journal: its files are read as segments/frames says, and must follow one another.

It is fenced by the lock of the folder in which its broker lived. A process holds the lock of its home folder for as
long as it lives, so the next holder of that lock knows that nothing more is written there. The folder is another one's
if its id is not that of the journal's key: then it is not even locked, since a broker may be starting there. `close`
gives the lock back, behind everything else that was begun: it waits for that, but not for a disk that hangs, as one of
a dead NFS server does, since a leader's stop waits for it.

If the loss of the journal was accepted (`is_given_up`), a folder that cannot be reached has no commits, and one that is
damaged, or that the disk cannot read, has those before that place: nobody waits for the rest. Its broker's segments end
without the others, and may have successors, before the folder comes back: its commits are then not used, but set aside,
as a whole.
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
from seaweedq.journal.file_journal import aside_path, file_path, is_done, journal_files, remove_journal, set_aside
from seaweedq.journal.home_folder import FolderLock, known_id
from seaweedq.journal.interface import NOTHING_SEEN, Claim, JournalInUse, JournalUnreachable, Seen, highest
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
        """Takes the lock unless it is held. Raises JournalInUse, JournalUnreachable."""
        if self._is_held:
            return
        try:
            self._check()
            self._lock.acquire()
            self._is_held = True
            self._check()  # now it cannot change any more
        except (DataFolderInUse, OSError) as error:
            self.release()
            reached = JournalInUse if isinstance(error, DataFolderInUse) else JournalUnreachable
            raise reached(f"{self._lock.folder}: {error}") from error

    def release(self) -> None:
        """Gives the lock back, if it is held."""
        self._is_held = False
        self._lock.release()

    def _check(self) -> None:
        if known_id(self._lock.folder, self._disk) != self._place:
            raise OSError("the journal is in a folder that this broker cannot reach, or on another machine")


class DeadFileJournal:
    """The file journal in `folder`. Without a `lock` it is in the home folder of this process, which has its lock. Of
    one that `is_given_up`, what can be reached counts as all.

    All disk work runs in one worker, in order, so that none goes on once the lock is given back.
    """

    def __init__(self, folder: Path, disk: Disk, lock: PlaceLock | None, is_given_up: bool = False) -> None:
        self._is_given_up = is_given_up
        self._is_lost, self._is_read = False, False
        self._folder = folder
        self._disk = disk
        self._lock = lock
        self._worker = disk.worker()
        self._closed = False

    async def fence(self) -> None:
        try:
            if self._lock:
                await self._run(self._lock.acquire)
        except JournalUnreachable:
            if not self._is_given_up:
                raise
            self._is_lost = True

    async def look(self) -> None:
        await self.fence()  # a lock writes nothing of the journal

    async def commits(self, claim: Claim) -> AsyncGenerator[Commit, None]:
        if self._is_lost:
            return
        reading = read_journal(self._folder, self._disk)
        try:
            is_more = True
            while is_more:
                found, error = await self._run(lambda: _some(reading))
                is_more = bool(found) and error is None
                self._is_read = not is_more and error is None
                if found:
                    await claim(sum(commit.size_bytes for commit in found))
                while found:
                    yield found.popleft()
                if error and not self._is_given_up:
                    raise error if isinstance(error, JournalDamaged) else self._unavailable(error)
                if error:
                    logger.error(
                        "the journal in %s cannot be read any further (%s); the loss of this journal was accepted, "
                        "so its remaining messages are lost",
                        self._folder,
                        error,
                    )
        finally:
            if not self._closed:
                self._worker.submit(reading.close)  # behind a read that is under way

    async def terms(self) -> dict[tuple[str, int], Term]:
        return {} if self._is_lost else await self._run(lambda: _terms(self._folder, self._disk))

    async def remove(self, stated: Seen = NOTHING_SEEN) -> None:
        """Removes the content, or sets it aside if it was given up and not read. Raises JournalUnreachable,
        JournalUnavailable."""
        if self._is_lost:
            raise JournalUnreachable(
                f"an administrator accepted the loss of the journal in {self._folder}; "
                "if this folder becomes available again, a broker renames it and does not read it"
            )
        try:
            await self._run(lambda: self._remove(stated))
        except JournalUnavailable as error:
            if self._is_given_up:  # its key stays, and nobody waits for that
                raise JournalUnreachable(error.detail) from error
            raise

    def _remove(self, stated: Seen) -> None:
        is_used = self._is_read or not self._is_given_up or is_done(self._folder, self._disk)
        is_left = not is_used and journal_files(self._folder, self._disk)
        if not is_left and not (self._is_given_up and self._disk.names(aside_path(self._folder))):
            remove_journal(self._folder, self._disk, stated)
            return
        aside = set_aside(self._folder, self._disk)
        logger.error(
            "the folder of a journal is available again, but no broker reads this journal, because the journal's loss "
            "was accepted; the journal was renamed to %s, which you can delete",
            aside,
        )

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
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> JournalUnavailable:
        return JournalUnavailable(f"the journal in {self._folder} cannot be read or removed: {error}")


def _some(reading: Iterator[Commit]) -> tuple[deque[Commit], JournalDamaged | OSError | None]:
    """Returns the next commits, of READ_BYTES or a little more, none at the end; and the damage, or the error of the
    disk, behind them, if any."""
    found: deque[Commit] = deque()
    size = 0
    try:
        for commit in reading:
            found.append(commit)
            size += commit.size_bytes
            if size >= READ_BYTES:
                break
    except (JournalDamaged, OSError) as error:
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
            raise _damaged(path, f"the file begins with commit {header.first_commit}, not with commit {expected}")
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
            raise _damaged(path, "the file has no header, although it is not the journal's last file")
        if header is not None and (header.number, number) != (number, numbers[0] + at):
            raise _damaged(path, f"the file's header has file number {header.number} instead of {numbers[0] + at}")
        if header is not None:
            headers.append(header)
    return headers


def _damaged(path: Path, what: str) -> JournalDamaged:
    return JournalDamaged(f"{path}: {what}", path=str(path), position=0)

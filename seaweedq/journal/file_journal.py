"""A file journal and its writer: commits in files of a local folder, durable by fsync. One folder for each start.

Owns the order of writes on the disk, and why:

1. A file's header, then its name, are durable before its first commit is written, so that a reader can tell a file
   that was never begun from a damaged one.
2. A commit is answered only after its sync. A failed write or sync ends the file where its last durable commit ends,
   and is never tried again on it: the kernel may have dropped the pages (https://lwn.net/Articles/752063/).
3. The next file's header states that end, so it is durable before any later commit is. Until then a recovery may find
   the commit that failed: `discard_failed` begins the next file, before a segment of that commit may go to another
   broker, whose rows take the same offsets.
4. A file gets its name by rename, and one without commits is replaced by the next try under the same name: a full
   disk collects no half-made files.
5. Files go oldest first, each removal durable before the next, so that no gap can appear.
6. When all of them go, the file `done` is durable before the first is removed: it says that nothing in the folder is
   needed, whatever coordination knows, and states a moment of it. It stays behind the last, and those of earlier
   journals of the same home folder go, which state less, once the removal of their files is durable.

It takes no lock: its process holds the lock of the folder above, which keeps recoveries away (journal/home_folder).
"""

import asyncio
import errno
import logging
import re
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from seaweedq.checks import reach
from seaweedq.clock import Ids
from seaweedq.errors import JournalUnavailable
from seaweedq.formats import Level
from seaweedq.journal.disk import LARGE_BYTES, Disk
from seaweedq.journal.interface import NOTHING_SEEN, Seen, SeenNow, decode_seen, encode_seen, seen_nothing
from seaweedq.segments.frames import FILE_HEADER_BYTES, FileHeader, Frame, check_frames, encode_commit

log = logging.getLogger(__name__)
_ALLOCATED_BYTES = 4 * 1024 * 1024
_FULL = {errno.ENOSPC, errno.EDQUOT}
_NAME = re.compile(r"([0-9]{8})\.journal")
DONE = "done"
"""The name, in a journal's folder, that says that nothing in the journal is needed."""
DONE_BYTES = 256  # and fewer
GIVEN_UP = "given-up"
"""The folder, in a home folder, of journals that came back after their loss had been accepted."""


def file_path(folder: Path, number: int) -> Path:
    """Returns the path of a journal's file, counted from 0."""
    return folder / f"{number:08d}.journal"


def draft_path(folder: Path) -> Path:
    """Returns the path of a file that has no name of its own yet."""
    return folder / "next"


def journal_files(folder: Path, disk: Disk) -> list[int]:
    """Returns the numbers of the journal files in a folder, rising."""
    return sorted(int(found[1]) for found in map(_NAME.fullmatch, disk.names(folder)) if found)


def is_done(folder: Path, disk: Disk) -> bool:
    """Returns whether a journal says that nothing in it is needed."""
    return DONE in disk.names(folder)


def read_done(folder: Path, disk: Disk) -> Seen:
    """Returns the moment that a journal which is done states; NOTHING_SEEN if it states none, or is not done."""
    try:
        return decode_seen(disk.read(folder / DONE, DONE_BYTES))
    except FileNotFoundError:
        return NOTHING_SEEN


def remove_journal(folder: Path, disk: Disk, stated: Seen = NOTHING_SEEN) -> None:
    """Removes a recovered journal by rule 6, its files oldest first."""
    numbers = journal_files(folder, disk)
    disk.remove(draft_path(folder))
    if numbers:
        reach("done.put")
        if not is_done(folder, disk):
            _put_done(folder, disk, stated)
        disk.sync_folder(folder)
        reach("done.stored")
    for number in numbers:
        disk.remove(file_path(folder, number))
        disk.sync_folder(folder)
    if is_done(folder, disk):
        if not numbers:
            disk.sync_folder(folder)  # an earlier try removed the files, and perhaps failed to make that durable
        for other in disk.names(folder.parent):
            remove_folder(folder.parent / other, disk, besides=folder)
    else:
        disk.remove_folder(folder)  # unless others have files there


def set_aside(folder: Path, disk: Disk) -> Path:
    """Moves a journal whose loss was accepted to where nobody looks for journals. Returns the place.

    Order of writes: 1. The place has a durable parent. 2. The rename. 3. The new name is durable. 4. So is the end of
    the old one; only then the journal's key may go. A loss of power before 3 leaves either name, between 3 and 4 one or
    both of them, but the key as well: the next recovery begins again, and makes durable what it finds moved.
    """
    aside = aside_path(folder)
    disk.make_folder(aside.parent)
    reach("loss.aside")
    if disk.names(folder):
        disk.rename(folder, aside)
        reach("loss.moved")
    disk.sync_folder(aside.parent)
    reach("loss.named")
    disk.sync_folder(folder.parent)
    return aside


def aside_path(folder: Path) -> Path:
    """Returns the place of a journal that was set aside."""
    return folder.parent.parent / GIVEN_UP / folder.name


def remove_folder(folder: Path, disk: Disk, besides: Path | None = None) -> None:
    """Removes the folder of a journal that is done, and has no file any more; not the one `besides`."""
    if folder != besides and is_done(folder, disk) and not journal_files(folder, disk):
        disk.sync_folder(folder)  # who removed the files may have died before, and they could come back
        disk.remove(folder / DONE)
        disk.remove_folder(folder)  # unless others have files there


def _put_done(folder: Path, disk: Disk, stated: Seen) -> None:
    draft = draft_path(folder)
    fd = disk.create(draft)
    try:
        disk.write_all(fd, [encode_seen(stated)])
        disk.sync(fd)
        disk.rename(draft, folder / DONE)
    finally:
        disk.close(fd)


@dataclass(slots=True)
class _File:
    """The file that receives commits; `end` is where its last durable commit ends. Zeros up to `allocated` follow."""

    fd: int
    header: FileHeader
    end: int = FILE_HEADER_BYTES
    allocated: int = FILE_HEADER_BYTES

    @property
    def is_empty(self) -> bool:
        return self.end == FILE_HEADER_BYTES


class FileJournal:
    """A journal in `folder`, which holds none yet and is made if need be. Files roll once they have `file_bytes`.

    All disk work runs in the disk's worker, in order. State that only the worker uses is marked so.
    """

    window = 1
    most_unreleased = 0
    mirrors: tuple[str, ...] = ()
    budget = None

    def __init__(
        self, folder: Path, disk: Disk, ids: Ids, file_bytes: int, level: Level, seen: SeenNow = seen_nothing
    ) -> None:
        self._folder, self._disk, self._ids, self._file_bytes = folder, disk, ids, file_bytes
        self._level = level
        self._seen = seen
        assert not journal_files(folder, disk), f"{folder} already contains a journal"
        self._worker = disk.worker()
        self._appending = self._closed = False
        self._sizes: deque[tuple[int, int]] = deque()  # (commit, bytes): the worker appends, the loop takes
        self._finished: deque[tuple[int, int]] = deque()  # (file, first commit not in it), changed by the worker
        self._written_bytes = 0  # by the worker
        self._released_bytes = 0  # by the loop
        # The worker's own:
        self._file: _File | None = None
        self._next = FileHeader(b"", 0, 0, 0)  # of the file to open when there is none
        self._commit = 0
        self._is_in_doubt = False  # whether the file that has ended may hold a commit that failed

    @property
    def unreleased_bytes(self) -> int:
        return self._written_bytes - self._released_bytes

    async def append(self, frames: Sequence[Frame]) -> int:
        assert not self._appending, "one append at a time"
        if self._closed:
            raise JournalUnavailable("the journal is closed")
        self._appending = True
        try:
            return await asyncio.get_running_loop().run_in_executor(self._worker, self._append, frames)
        finally:
            self._appending = False

    async def discard_failed(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._worker, self._discard_failed)

    async def pace(self, is_full: asyncio.Event) -> None:
        pass

    def release(self, below: int) -> None:
        while self._sizes and self._sizes[0][0] < below:
            self._released_bytes += self._sizes.popleft()[1]
        finished = tuple(self._finished)  # a copy, since the worker takes from it
        if not self._closed and finished and finished[0][1] <= below:
            self._worker.submit(self._remove_files, below)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await asyncio.get_running_loop().run_in_executor(self._worker, self._end_file)
            self._worker.shutdown(wait=False)

    async def remove(self, stated: Seen = NOTHING_SEEN) -> None:
        """Does as Journal says. Raises JournalUnavailable if the disk refuses."""
        assert self._closed
        worker = self._disk.worker()  # the journal's own ended with close
        try:
            await asyncio.get_running_loop().run_in_executor(worker, remove_journal, self._folder, self._disk, stated)
        except OSError as error:
            raise JournalUnavailable(f"the journal cannot be removed: {error}") from error
        finally:
            worker.shutdown(wait=False)

    def _append(self, frames: Sequence[Frame]) -> int:
        check_frames(frames)
        try:
            if self._file is None:
                self._file = self._open_file()
            file = self._file
            assert self._commit >= file.header.first_commit, "numbers are dense over the files of a journal"
            buffers, size = encode_commit(file.header.file_id, self._commit, frames, self._seen())
            if file.end + size > file.allocated:  # a sync that has to write the file's length too takes twice as long
                more = max(size, min(_ALLOCATED_BYTES, self._file_bytes))
                self._disk.allocate(file.fd, file.end, more)
                file.allocated = file.end + more
            self._disk.write_all(file.fd, buffers)
            self._disk.sync(file.fd)
            if size >= LARGE_BYTES:
                self._disk.forget(file.fd, file.end, size)
            file.end += size
        except BaseException as error:
            self._is_in_doubt = self._is_in_doubt or self._file is not None
            self._end_file(error)
            if isinstance(error, OSError):
                raise _unavailable(error) from error
            raise
        number, self._commit = self._commit, self._commit + 1
        self._sizes.append((number, size))
        self._written_bytes += size
        if file.end >= self._file_bytes:
            self._end_file()
        return number

    def _discard_failed(self) -> None:
        try:
            if self._is_in_doubt and not self._closed:
                self._file = self._open_file()
        except OSError as error:
            raise _unavailable(error) from error

    def _open_file(self) -> _File:
        """Begins the next file by rules 1 and 4. Under its name it is complete; a failure before leaves a draft."""
        header = replace(self._next, file_id=bytes.fromhex(self._ids.nonce()))
        draft = draft_path(self._folder)
        self._disk.make_folder(self._folder)
        self._disk.remove(draft)
        fd = self._disk.create(draft)
        try:
            self._disk.write_all(fd, [header.encode(self._level())])
            self._disk.sync(fd)
            self._disk.rename(draft, file_path(self._folder, header.number))
            self._disk.sync_folder(self._folder)
        except BaseException:
            self._disk.close(fd)
            raise
        self._is_in_doubt = False
        return _File(fd, header)

    def _end_file(self, error: BaseException | None = None) -> None:
        """Ends the file by rule 2. The next one follows it, or takes its name if it holds no commit."""
        file, self._file = self._file, None
        if file is None:
            return
        if isinstance(error, OSError) and error.errno in _FULL:
            with suppress(OSError):
                self._disk.truncate(file.fd, file.end)
        with suppress(OSError):
            self._disk.close(file.fd)
        if not file.is_empty:
            self._finished.append((file.header.number, self._commit))
            self._next = FileHeader(b"", file.header.number + 1, file.end, self._commit)

    def _remove_files(self, below: int) -> None:
        """Removes files by rule 5. The newest one stays, also when it is full."""
        try:
            while self._finished and self._finished[0][1] <= below:
                # The newest one has a name that is certainly durable.
                newest = self._file.header.number if self._file else self._finished[-1][0]
                if newest <= self._finished[0][0]:
                    break
                self._disk.remove(file_path(self._folder, self._finished[0][0]))
                self._disk.sync_folder(self._folder)
                self._finished.popleft()
        except OSError as error:
            log.warning("a file of journal %s could not be removed (%s); trying again later", self._folder, error)


def _unavailable(error: OSError) -> JournalUnavailable:
    return JournalUnavailable(f"the journal cannot be written: {error.strerror}", inside=f"{error}")

"""The calls by which bytes become durable on a local disk, in one place so that tests can make each of them fail."""

import fcntl
import mmap
import os
import sys
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Executor
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from seaweedq.concurrency.pools import Pool

if TYPE_CHECKING:
    from seaweedq.segments.frames import Buffer  # which loads Arrow, and `seaweedq doctor` needs none

LARGE_BYTES = 256 * 1024  # from here on it is worth it to `forget`
_IOV_MAX = os.sysconf("SC_IOV_MAX")

if sys.platform == "darwin":

    def _data_sync(fd: int) -> None:
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # fsync alone leaves the data in the drive's cache there
else:
    _data_sync = os.fdatasync


MODE = 0o600  # messages are nobody else's


class DiskFile:
    """A file that is open for reading: its slices are read when they are taken. Raises OSError."""

    def __init__(self, disk: "Disk", fd: int) -> None:
        self._disk = disk
        self._fd = fd

    def __len__(self) -> int:
        return os.fstat(self._fd).st_size

    def __getitem__(self, where: slice) -> bytes:
        start, end, _ = where.indices(len(self))
        found = self._disk.read_at(self._fd, start, max(0, end - start))
        while found and len(found) < end - start:
            more = self._disk.read_at(self._fd, start + len(found), end - start - len(found))
            if not more:
                break
            found += more
        return found

    def close(self) -> None:
        """Closes the file."""
        self._disk.close(self._fd)


class Disk:
    """Blocking file calls; each raises OSError. Child processes do not inherit the file descriptors."""

    def worker(self) -> Executor:
        """Returns an executor that runs these calls off the event loop, one after the other in their order."""
        return Pool("journal", 1)

    def create(self, path: Path) -> int:
        """Opens a new file for writing; raises FileExistsError."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)

    def write(self, fd: int, buffers: list[memoryview]) -> int:
        """Writes some of at most IOV_MAX buffers; returns how many bytes were taken."""
        return os.writev(fd, buffers)

    def allocate(self, fd: int, start: int, size: int) -> None:
        """Lengthens a file by zeros, for syncs that need not write its length; does nothing if that cannot be."""
        if hasattr(os, "posix_fallocate"):
            with suppress(OSError):
                os.posix_fallocate(fd, start, size)

    def sync(self, fd: int) -> None:
        """Makes the file's content durable."""
        _data_sync(fd)

    def forget(self, fd: int, start: int, size: int) -> None:
        """Drops synced content from the page cache: it is read only after a crash, and pages come back warm."""
        end = (start + size) // mmap.PAGESIZE * mmap.PAGESIZE  # the last page is not full, and will be written again
        if hasattr(os, "posix_fadvise"):
            with suppress(OSError):
                os.posix_fadvise(fd, start, end - start, os.POSIX_FADV_DONTNEED)

    def sync_folder(self, folder: Path) -> None:
        """Makes the names in a folder durable."""
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, old: Path, new: Path) -> None:
        """Renames a file, in place of the file that had the new name."""
        os.replace(old, new)

    def truncate(self, fd: int, size: int) -> None:
        """Frees the space beyond `size` bytes."""
        os.ftruncate(fd, size)

    def remove(self, path: Path) -> None:
        """Removes a file, if it exists."""
        path.unlink(missing_ok=True)

    def close(self, fd: int) -> None:
        """Closes a file descriptor."""
        os.close(fd)

    def make_folder(self, folder: Path) -> None:
        """Makes a folder, and those above it, durable, unless it exists."""
        if not folder.is_dir():
            self.make_folder(folder.parent)
            folder.mkdir(exist_ok=True)
            self.sync_folder(folder.parent)

    def remove_folder(self, folder: Path) -> None:
        """Removes a folder, if it is empty."""
        with suppress(OSError):
            folder.rmdir()

    def names(self, folder: Path) -> list[str]:
        """Returns the names in a folder; none if the folder does not exist."""
        return os.listdir(folder) if folder.is_dir() else []

    def size(self, path: Path) -> int:
        """Returns the size of a file in bytes."""
        return path.stat().st_size

    def read(self, path: Path, size: int) -> bytes:
        """Returns at most the first `size` bytes of a file."""
        with open(path, "rb") as file:
            return file.read(size)

    def open(self, path: Path) -> "DiskFile":
        """Opens a file for reading. It is not mapped: an error of the disk would end the process."""
        return DiskFile(self, os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def read_at(self, fd: int, start: int, size: int) -> bytes:
        """Returns at most `size` bytes of an open file from a place on."""
        return os.pread(fd, size, start)

    def lock(self, path: Path) -> int | None:
        """Opens a file, made if need be, and takes its lock, which goes with the descriptor that is returned.

        Returns None if another descriptor holds the lock.
        """
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, MODE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException as error:
            os.close(fd)
            if isinstance(error, BlockingIOError):
                return None
            raise
        return fd

    def process_id(self) -> int:
        """Returns the id of the process that makes these calls, which names it to those that find its locks."""
        return os.getpid()

    def write_all(self, fd: int, buffers: "Iterable[Buffer]") -> None:
        """Writes all of the buffers."""
        left: deque[memoryview] = deque()
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            if view.nbytes:
                left.append(view)
        while left:
            taken = self.write(fd, list(islice(left, _IOV_MAX)))
            if not taken:
                raise OSError(f"the disk accepted no byte of a write of {left[0].nbytes} bytes")
            while left and taken >= left[0].nbytes:
                taken -= left.popleft().nbytes
            if taken:
                left[0] = left[0][taken:]

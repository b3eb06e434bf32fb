"""The calls by which bytes become durable on a local disk, in one place so that tests can make each of them fail."""

import mmap
import os
import sys
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path

from seaweedq.segments.frames import Buffer

_LARGE_BYTES = 256 * 1024
_IOV_MAX = os.sysconf("SC_IOV_MAX")

if sys.platform == "darwin":
    import fcntl

    def _data_sync(fd: int) -> None:
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # fsync alone leaves the data in the drive's cache there
else:
    _data_sync = os.fdatasync


class Disk:
    """Blocking file calls; each raises OSError. File descriptors are not inherited by child processes."""

    def create(self, path: Path) -> int:
        """Open a new file for writing; raises FileExistsError."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)

    def write(self, fd: int, buffers: list[memoryview]) -> int:
        """Write some of at most IOV_MAX buffers: how many bytes were taken."""
        return os.writev(fd, buffers)

    def allocate(self, fd: int, start: int, size: int) -> None:
        """Lengthen a file by zeros, for syncs that need not write its length; where that cannot be, nothing happens."""
        if hasattr(os, "posix_fallocate"):
            with suppress(OSError):
                os.posix_fallocate(fd, start, size)

    def sync(self, fd: int) -> None:
        """Make the file's content durable."""
        _data_sync(fd)

    def forget(self, fd: int, start: int, size: int) -> None:
        """Let the page cache go of large synced content that is read only after a crash; pages come back warm."""
        end = (start + size) // mmap.PAGESIZE * mmap.PAGESIZE  # the last page is not full, and will be written again
        if size >= _LARGE_BYTES and hasattr(os, "posix_fadvise"):
            with suppress(OSError):
                os.posix_fadvise(fd, start, end - start, os.POSIX_FADV_DONTNEED)

    def sync_folder(self, folder: Path) -> None:
        """Make the names in a folder durable."""
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file, in place of what had the new name."""
        os.replace(old, new)

    def truncate(self, fd: int, size: int) -> None:
        """Give back what is beyond `size` bytes."""
        os.ftruncate(fd, size)

    def remove(self, path: Path) -> None:
        """Remove a file; one that is not there is no error."""
        path.unlink(missing_ok=True)

    def close(self, fd: int) -> None:
        """Close a file descriptor."""
        os.close(fd)

    def make_folder(self, folder: Path) -> None:
        """Make a folder, and those above it, durable; one that is there is no error."""
        if not folder.is_dir():
            self.make_folder(folder.parent)
            folder.mkdir(exist_ok=True)
            self.sync_folder(folder.parent)

    def write_all(self, fd: int, buffers: Iterable[Buffer]) -> int:
        """Write all of the buffers: their size in bytes."""
        left = deque(view for view in (memoryview(buffer).cast("B") for buffer in buffers) if view.nbytes)
        written = 0
        while left:
            taken = self.write(fd, list(islice(left, _IOV_MAX)))
            if not taken:
                raise OSError(f"a write of {left[0].nbytes} bytes took none")
            written += taken
            while left and taken >= left[0].nbytes:
                taken -= left.popleft().nbytes
            if taken:
                left[0] = left[0][taken:]
        return written

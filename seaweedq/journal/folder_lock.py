"""The lock on a folder that one living process may use. It goes with its process, however that ends.

Nothing may fork after locking: a forked child shares the lock, and holds it on when the parent has died. Programs
started by exec do not (O_CLOEXEC).
"""

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

from seaweedq.clock import Ids
from seaweedq.errors import DataFolderInUse
from seaweedq.journal.disk import Disk

LOCK_FILE = "lock"
IDENTITY_FILE = "folder-id"
POLL_S = 0.05


class FolderLock:
    """The lock of one folder; its file, `lock`, holds the process id of the latest holder and is never removed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._fd: int | None = None

    def acquire(self, wait_s: float = 0) -> None:
        """Take the lock, making the folder if need be. Raises DataFolderInUse where another still holds it after
        `wait_s` seconds, through which the thread sleeps."""
        assert self._fd is None, "locked already"
        Disk().make_folder(self.folder)
        fd = os.open(self.folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            tries = round(wait_s / POLL_S)
            while not _locked(fd):
                if tries <= 0:
                    raise self._in_use(fd)
                tries -= 1
                time.sleep(POLL_S)
        except BaseException:
            os.close(fd)
            raise
        with suppress(OSError):  # a full disk must not keep a broker from recovering
            os.pwrite(fd, f"{os.getpid():<20}".encode(), 0)
        self._fd = fd

    def _in_use(self, fd: int) -> DataFolderInUse:
        text = os.pread(fd, 20, 0).decode("ascii", "replace").strip()
        pid = int(text) if text.isdecimal() else None
        return DataFolderInUse(f"{self.folder} is in use by process {pid or 'unknown'}", path=str(self.folder), pid=pid)

    def release(self) -> None:
        """Give the lock back; without one nothing happens."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def known_identity(folder: Path) -> str | None:
    """The id of a data folder, None where it has none yet, or is not there."""
    with suppress(FileNotFoundError):
        return (folder / IDENTITY_FILE).read_text("ascii").strip() or None
    return None


def folder_identity(folder: Path, ids: Ids) -> str:
    """The id of a data folder, drawn once; it goes where the folder is moved. To be called under the folder's lock."""
    if found := known_identity(folder):
        return found
    path = folder / IDENTITY_FILE
    disk = Disk()
    draft = path.with_suffix(".new")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
    try:
        os.write(fd, (identity := ids.nonce()).encode())
        disk.sync(fd)
    finally:
        os.close(fd)
    disk.rename(draft, path)
    disk.sync_folder(folder)
    return identity

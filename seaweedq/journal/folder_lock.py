"""The lock on a folder that one living process may use. It goes with its process, however that ends.

Nothing may fork after locking: a forked child shares the lock, and holds it on when the parent has died. Programs
started by exec do not (O_CLOEXEC).
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from seaweedq.errors import DataFolderInUse
from seaweedq.journal.disk import Disk

LOCK_FILE = "lock"
POLL_S = 0.05
_PID_BYTES = 20


class FolderLock:
    """The lock of one folder; its file, `lock`, holds the process id of the latest holder and is never removed."""

    def __init__(self, folder: Path, disk: Disk, sleep: Callable[[float], None] = time.sleep) -> None:
        self.folder = folder
        self._disk = disk
        self._sleep = sleep
        self._fd: int | None = None

    def acquire(self, wait_s: float = 0) -> None:
        """Takes the lock, making the folder if need be. Raises DataFolderInUse where another process still holds it
        after `wait_s` seconds, through which the thread sleeps."""
        assert self._fd is None, "locked already"
        self._disk.make_folder(self.folder)
        path = self.folder / LOCK_FILE
        tries = round(wait_s / POLL_S)
        while (fd := self._disk.lock(path)) is None:
            if tries <= 0:
                raise self._in_use(path)
            tries -= 1
            self._sleep(POLL_S)
        with suppress(OSError):  # a full disk must not keep a broker from recovering
            self._disk.write_all(fd, [f"{os.getpid():<{_PID_BYTES}}".encode()])
        self._fd = fd

    def _in_use(self, path: Path) -> DataFolderInUse:
        text = self._disk.read(path, _PID_BYTES).decode("ascii", "replace").strip()
        pid = int(text) if text.isdecimal() else None
        return DataFolderInUse(f"{self.folder} is in use by process {pid or 'unknown'}", path=str(self.folder), pid=pid)

    def release(self) -> None:
        """Gives the lock back, if it is held."""
        fd, self._fd = self._fd, None
        if fd is not None:
            self._disk.close(fd)

"""The home folder of a broker's process: its lock says that the brokers that lived there before are dead.

The lock goes with its process, however that ends. Nothing may fork after locking: a forked child shares the lock, and
holds it on when the parent has died. Programs started by exec do not (O_CLOEXEC).

Owns the folder's id, which goes where the folder is moved. Order of writes: the id is drawn under the lock, durable
under another name, then renamed; a crash before leaves a draft that nobody reads.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from seaweedq.clock import Ids
from seaweedq.errors import DataFolderInUse
from seaweedq.journal.disk import Disk

LOCK_FILE = "lock"
POLL_S = 0.05
_PID_BYTES = 20
IDENTITY_FILE = "folder-id"
_MAX_BYTES = 100


class FolderLock:
    """The lock of one folder; its file, `lock`, holds the process id of the latest holder and is never removed."""

    def __init__(self, folder: Path, disk: Disk, sleep: Callable[[float], None] = time.sleep) -> None:
        self.folder = folder
        self._disk = disk
        self._sleep = sleep
        self._fd: int | None = None

    def acquire(self, wait_s: float = 0) -> None:
        """Takes the lock, making the folder if need be. Raises DataFolderInUse if another process still holds it
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
            self._disk.write_all(fd, [f"{self._disk.process_id():<{_PID_BYTES}}".encode()])
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


class HomeFolder:
    """The folder of one process. `id` is known once it is locked."""

    def __init__(self, path: Path, disk: Disk, ids: Ids, sleep: Callable[[float], None] = time.sleep) -> None:
        self.path = path
        self._disk = disk
        self._ids = ids
        self._lock = FolderLock(path, disk, sleep)
        self._id: str | None = None

    @property
    def id(self) -> str:
        """Returns the folder's id."""
        assert self._id is not None, "the folder is not locked"
        return self._id

    def lock(self, wait_s: float = 0) -> None:
        """Locks the folder and reads its id, drawing one if need be. Raises DataFolderInUse after `wait_s` seconds."""
        self._lock.acquire(wait_s)
        self._id = known_id(self.path, self._disk) or self._draw()

    def release(self) -> None:
        """Gives the lock back, if it is held."""
        self._lock.release()

    def _draw(self) -> str:
        path = self.path / IDENTITY_FILE
        draft = path.with_suffix(".new")
        self._disk.remove(draft)
        fd = self._disk.create(draft)
        try:
            self._disk.write_all(fd, [(drawn := self._ids.nonce()).encode()])
            self._disk.sync(fd)
        finally:
            self._disk.close(fd)
        self._disk.rename(draft, path)
        self._disk.sync_folder(self.path)
        return drawn


def known_id(folder: Path, disk: Disk) -> str | None:
    """Returns the id of a data folder; None if it has none yet, or does not exist."""
    with suppress(FileNotFoundError):
        return disk.read(folder / IDENTITY_FILE, _MAX_BYTES).decode("ascii").strip() or None
    return None

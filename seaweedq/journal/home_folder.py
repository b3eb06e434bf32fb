"""The home folder of a broker's process: its lock says that the brokers that lived there before are dead.

Owns the folder's id, which goes where the folder is moved. Order of writes: the id is drawn under the lock, durable
under another name, then renamed; a crash before leaves a draft that nobody reads.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from seaweedq.clock import Ids
from seaweedq.journal.disk import Disk
from seaweedq.journal.folder_lock import FolderLock

IDENTITY_FILE = "folder-id"
_MAX_BYTES = 100


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
    """Returns the id of a data folder; None where it has none yet, or does not exist."""
    with suppress(FileNotFoundError):
        return disk.read(folder / IDENTITY_FILE, _MAX_BYTES).decode("ascii").strip() or None
    return None

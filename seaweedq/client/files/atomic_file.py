"""A file that appears whole, or not at all: written beside its destination, and renamed at the end."""

import os
from pathlib import Path
from typing import BinaryIO

from seaweedq.client.files.upload_source import Progress


class AtomicFile:
    """Writes a file of `size` bytes to `path`. An existing file is replaced at the end, and only then."""

    def __init__(self, path: str | os.PathLike[str], size: int, progress: Progress | None) -> None:
        self._path, self._size, self._progress = Path(path), size, progress
        self._part = self._path.with_name(f".{self._path.name}.{os.urandom(8).hex()}.part")
        self._file: BinaryIO = self._part.open("xb")
        self._done = 0

    def write(self, data: bytes) -> None:
        """Writes the next bytes."""
        self._file.write(data)
        self._done += len(data)
        if self._progress:
            self._progress(self._done, self._size)

    def commit(self) -> None:
        """Makes the file durable, and renames it to its destination."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._part.replace(self._path)

    def discard(self) -> None:
        """Removes the file, unless it was committed."""
        self._file.close()
        self._part.unlink(missing_ok=True)

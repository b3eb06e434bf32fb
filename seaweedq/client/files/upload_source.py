"""The bytes of an upload: a file or memory, read in chunks, by several threads."""

import hashlib
import io
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import Queue
from typing import BinaryIO

from seaweedq.errors import UploadMismatch

CHUNK_BYTES = 256 * 1024
_DIGEST_BYTES = 1024 * 1024
Progress = Callable[[int, int], None]


class Source:
    """A seekable file, read from beginning to end. Threads may share it; nobody else may use the file at the same
    time."""

    def __init__(self, file: BinaryIO, owned: bool = True) -> None:
        if not file.seekable():
            raise ValueError("the file must be seekable, since an upload reads it more than once")
        self._file, self._owned = file, owned
        self._lock = threading.Lock()
        self.size = file.seek(0, io.SEEK_END)

    @staticmethod
    def of(what: str | os.PathLike[str] | bytes | BinaryIO) -> "Source":
        """Returns the source of a path, of bytes, or of an open binary file, which stays open. Raises OSError,
        ValueError."""
        if isinstance(what, str | os.PathLike):
            return Source(open(what, "rb"))
        return Source(io.BytesIO(what)) if isinstance(what, bytes) else Source(what, owned=False)

    def read(self, start: int, size: int) -> bytes:
        """Returns exactly these bytes. Raises UploadMismatch if the file has become shorter, OSError."""
        with self._lock:
            self._file.seek(start)
            data = self._file.read(size)
        if len(data) != size:
            raise UploadMismatch(f"the file changed during the upload: it no longer has its {self.size} bytes")
        return data

    def digest(self) -> str:
        """Returns the SHA-256 of all bytes, in hex. One chunk is hashed while the next one is read."""
        found = hashlib.sha256()
        chunks: Queue[bytes | Exception] = Queue(1)
        threading.Thread(target=self._read_all, args=(chunks,), name="reading", daemon=True).start()
        for _ in range(0, self.size, _DIGEST_BYTES):
            chunk = chunks.get()
            if isinstance(chunk, Exception):
                raise chunk
            found.update(chunk)
        return found.hexdigest()

    def _read_all(self, chunks: "Queue[bytes | Exception]") -> None:
        try:
            for start in range(0, self.size, _DIGEST_BYTES):
                chunks.put(self.read(start, min(_DIGEST_BYTES, self.size - start)))
        except Exception as error:  # whoever hashes learns of it
            chunks.put(error)

    def close(self) -> None:
        """Closes the file, if it was opened here."""
        if self._owned:
            self._file.close()


@dataclass(frozen=True, slots=True)
class Slice:
    """Some bytes of a source, as the body of a request. `tell` gets the number of its bytes sent so far."""

    source: Source
    start: int
    size: int
    tell: Callable[[int], None]

    def chunks(self) -> Iterator[bytes]:
        """Yields its bytes, at most CHUNK_BYTES at a time."""
        for at in range(0, self.size, CHUNK_BYTES):
            data = self.source.read(self.start + at, min(CHUNK_BYTES, self.size - at))
            yield data
            self.tell(at + len(data))


class Meter:
    """Adds up the progress of an upload's slices, and calls `progress(bytes, of these)`.

    The sum falls when a part is sent again. Any sending thread calls it, one at a time.
    """

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total, self._progress = total, progress
        self._lock = threading.Lock()
        self._done: dict[int, int] = {}
        self._sum = 0

    def teller(self, part: int) -> Callable[[int], None]:
        """Returns the callback for the slice of that part, of which nothing was sent so far."""

        def tell(done: int) -> None:
            with self._lock:
                self._sum += done - self._done.get(part, 0)
                self._done[part] = done
                if self._progress:
                    self._progress(self._sum, self._total)

        return tell

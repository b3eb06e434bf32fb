"""Where the bytes of an upload come from: a file or what is in memory, read piece by piece, by several at a time."""

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
    """A file that can seek, from its begin to its end. Threads may share it: nobody else may use the file meanwhile."""

    def __init__(self, file: BinaryIO, owned: bool = True) -> None:
        if not file.seekable():
            raise ValueError("the file must be seekable, since an upload reads it more than once")
        self._file, self._owned = file, owned
        self._lock = threading.Lock()
        self.size = file.seek(0, io.SEEK_END)

    @staticmethod
    def of(what: str | os.PathLike[str] | bytes | BinaryIO) -> "Source":
        """The source of a path, of bytes, or of an open binary file, which stays open. Raises OSError, ValueError."""
        if isinstance(what, str | os.PathLike):
            return Source(open(what, "rb"))
        return Source(io.BytesIO(what)) if isinstance(what, bytes) else Source(what, owned=False)

    def read(self, start: int, size: int) -> bytes:
        """Exactly these bytes. Raises UploadMismatch where the file has become shorter, OSError."""
        with self._lock:
            self._file.seek(start)
            data = self._file.read(size)
        if len(data) != size:
            raise UploadMismatch(f"the file changed during the upload: it no longer has its {self.size} bytes")
        return data

    def digest(self) -> str:
        """The SHA-256 of all bytes, in hex. A piece is hashed while the next one is read."""
        found = hashlib.sha256()
        pieces: Queue[bytes | Exception] = Queue(1)
        threading.Thread(target=self._read_all, args=(pieces,), name="reading", daemon=True).start()
        for _ in range(0, self.size, _DIGEST_BYTES):
            piece = pieces.get()
            if isinstance(piece, Exception):
                raise piece
            found.update(piece)
        return found.hexdigest()

    def _read_all(self, pieces: "Queue[bytes | Exception]") -> None:
        try:
            for start in range(0, self.size, _DIGEST_BYTES):
                pieces.put(self.read(start, min(_DIGEST_BYTES, self.size - start)))
        except Exception as error:  # whoever hashes learns of it
            pieces.put(error)

    def close(self) -> None:
        """Close the file, if it was opened here."""
        if self._owned:
            self._file.close()


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a source, as the body of a request. `tell` hears how many of its bytes were handed over so far."""

    source: Source
    start: int
    size: int
    tell: Callable[[int], None]

    def chunks(self) -> Iterator[bytes]:
        """Its bytes, at most CHUNK_BYTES at a time."""
        for at in range(0, self.size, CHUNK_BYTES):
            data = self.source.read(self.start + at, min(CHUNK_BYTES, self.size - at))
            yield data
            self.tell(at + len(data))


class Meter:
    """Adds up what the slices of an upload tell, for whoever wants to see it: `progress(bytes, of these)`.

    The sum falls where a part is sent again. It is called by whichever thread sends, by one at a time.
    """

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total, self._progress = total, progress
        self._lock = threading.Lock()
        self._done: dict[int, int] = {}
        self._sum = 0

    def teller(self, part: int) -> Callable[[int], None]:
        """What the slice of that part is to call; nothing of it was sent so far."""

        def tell(done: int) -> None:
            with self._lock:
                self._sum += done - self._done.get(part, 0)
                self._done[part] = done
                if self._progress:
                    self._progress(self._sum, self._total)

        return tell

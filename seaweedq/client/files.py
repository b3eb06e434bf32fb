"""Files that the client reads and writes: the bytes of an upload, a payload that is read, and a file that appears whole
or not at all.
"""

import hashlib
import io
import os
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from types import TracebackType
from typing import Any, BinaryIO, Self, cast

from seaweedq.errors import UploadMismatch

CHUNK_BYTES = 256 * 1024
_DIGEST_BYTES = 1024 * 1024
Progress = Callable[[int, int], None]


class Source:
    """A seekable file that is read from beginning to end. Threads may share the source, but nothing else may use the
    file at the same time."""

    def __init__(self, file: BinaryIO, owned: bool = True) -> None:
        if not file.seekable():
            raise ValueError("the file must be seekable, because an upload reads it more than once")
        self._file, self._owned = file, owned
        self._lock = threading.Lock()
        self.size = file.seek(0, io.SEEK_END)

    @staticmethod
    def open(what: str | os.PathLike[str] | bytes | BinaryIO) -> "Source":
        """Returns the source for a path, for bytes, or for an open binary file, which stays open. Raises OSError,
        ValueError."""
        if isinstance(what, str | os.PathLike):
            return Source(Path(what).open("rb"))
        return Source(io.BytesIO(what)) if isinstance(what, bytes) else Source(what, owned=False)

    def read(self, start: int, size: int) -> bytes:
        """Returns exactly these bytes. Raises OSError, and UploadMismatch if the file has become shorter."""
        with self._lock:
            self._file.seek(start)
            data = self._file.read(size)
        if len(data) != size:
            raise UploadMismatch(f"the file changed during the upload: its size is no longer {self.size} bytes")
        return data

    def digest(self) -> str:
        """Returns the SHA-256 of all bytes, in hex. While one chunk is hashed, the next chunk is read."""
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
        except Exception as error:  # `digest` raises it
            chunks.put(error)

    def close(self) -> None:
        """Closes the file if this source opened it."""
        if self._owned:
            self._file.close()


@dataclass(frozen=True, slots=True)
class Slice:
    """A range of a source's bytes, as the body of a request. `report` receives the number of bytes sent so far."""

    source: Source
    start: int
    size: int
    report: Callable[[int], None]

    def chunks(self) -> Iterator[bytes]:
        """Yields the bytes, at most CHUNK_BYTES at a time."""
        for at in range(0, self.size, CHUNK_BYTES):
            data = self.source.read(self.start + at, min(CHUNK_BYTES, self.size - at))
            yield data
            self.report(at + len(data))


class Meter:
    """Adds up the progress of an upload's slices, and calls `progress(bytes, total)`.

    The sum decreases when a part is sent again. Any sending thread may call `progress`, one thread at a time."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total, self._progress = total, progress
        self._lock = threading.Lock()
        self._done: dict[int, int] = {}
        self._sum = 0

    def reporter(self, part: int) -> Callable[[int], None]:
        """Returns the progress callback for a part of the upload, of which no byte has been sent yet."""

        def report(done: int) -> None:
            with self._lock:
                self._sum += done - self._done.get(part, 0)
                self._done[part] = done
                if self._progress:
                    self._progress(self._sum, self._total)

        return report


class AtomicFile:
    """Writes a file of `size` bytes to `path`. An existing file is replaced only when the new one is complete."""

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
        """Removes the file, unless the file is already committed."""
        self._file.close()
        self._part.unlink(missing_ok=True)


_BUFFER_BYTES = 256 * 1024


class _Raw(io.RawIOBase):
    """A raw file over chunks of bytes. After an error every read raises it again, so that it is not mistaken for the
    end."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._chunk = chunks, memoryview(b"")
        self._error: BaseException | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._chunk:
            self._chunk = memoryview(self._next())
        room = memoryview(buffer).cast("B")
        size = min(len(room), len(self._chunk))
        room[:size] = self._chunk[:size]
        self._chunk = self._chunk[size:]
        return size

    def readall(self) -> bytes:
        chunks = [bytes(self._chunk)]
        self._chunk = memoryview(b"")
        while chunk := self._next():
            chunks.append(chunk)
        return b"".join(chunks)

    def _next(self) -> bytes:
        if self._error:
            raise self._error
        try:
            return next(self._chunks, b"")
        except BaseException as error:
            self._error = error
            raise

    def close(self) -> None:
        if not self.closed and isinstance(self._chunks, Generator):
            self._chunks.close()
        super().close()


def reader(chunks: Iterator[bytes]) -> BinaryIO:
    """Returns a file-like object with the given bytes. The file is not seekable. Closing the file ends the iteration
    over its chunks."""
    return cast(BinaryIO, io.BufferedReader(_Raw(chunks), _BUFFER_BYTES))


class AsyncPayload:
    """A payload, to use in an `async with` statement: read it with `read`, or chunk by chunk in an `async for` loop."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self._left = b""
        self._error: BaseException | None = None

    async def read(self, size: int = -1) -> bytes:
        """Returns at most `size` bytes, or all remaining bytes if `size` is negative. Returns no bytes at the end.

        Raises Damaged, PayloadNotFound, ConnectionFailed. After an error, every further read raises that error again.
        """
        chunks, length = [self._left], len(self._left)
        while size < 0 or length < size:
            if not (chunk := await self._next()):
                break
            chunks.append(chunk)
            length += len(chunk)
        data = b"".join(chunks)
        end = len(data) if size < 0 else size
        self._left = data[end:]
        return data[:end]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while chunk := self._left or await self._next():
            self._left = b""
            yield chunk

    async def close(self) -> None:
        """Returns the connection."""
        async with aclosing(self._chunks):  # type: ignore[type-var]
            pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _next(self) -> bytes:
        if self._error:
            raise self._error
        try:
            return await anext(self._chunks, b"")
        except BaseException as error:
            self._error = error
            raise

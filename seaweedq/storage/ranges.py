"""A seekable file over range requests, for readers of Parquet in worker threads.

Parquet is read from its end: the tail, which came with the first request, usually holds the whole footer. Small
consecutive reads share a request.
"""

import io
from collections.abc import Callable
from typing import Any

from seaweedq.errors import StoreUnavailable

TAIL_BYTES = 64 * 1024  # what pyarrow asks for first
AHEAD_BYTES = 256 * 1024


class RangeReader(io.RawIOBase):
    """An object of `size` bytes that ends with `tail`; `fetch(start, end)` gets the other bytes.

    A read returns all requested bytes, up to the end, or raises: the errors of `fetch`, and StoreUnavailable for a
    short answer.
    """

    def __init__(self, fetch: Callable[[int, int], bytes], size: int, tail: bytes) -> None:
        self._fetch = fetch
        self._size = size
        self._at = 0
        self._tail = (size - len(tail), tail)
        self._ahead = (0, b"")
        self._on_fetch: Callable[[int], None] | None = None

    def observe(self, on_fetch: Callable[[int], None]) -> int:
        """Calls `on_fetch` with the bytes of each further request. Returns those of the first one."""
        self._on_fetch = on_fetch
        return len(self._tail[1])

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        """Returns the position in bytes."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves the position, as in any file. Raises ValueError for a position before the start."""
        position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if position < 0:
            raise ValueError(f"the seek position {position} is negative")
        self._at = position
        return position

    def read(self, size: int | None = -1) -> bytes:
        """Returns `size` bytes, fewer only at the end; all up to the end if `size` is negative or None."""
        end = self._size if size is None or size < 0 else min(self._at + size, self._size)
        if self.closed:
            raise ValueError("the file is closed")
        found = self._bytes(self._at, end) if self._at < end else b""
        self._at += len(found)
        return found

    def readall(self) -> bytes:
        """Returns all bytes up to the end."""
        return self.read()

    def readinto(self, buffer: Any) -> int:
        """Fills the buffer, unless the end comes first. Returns the number of bytes."""
        space = memoryview(buffer).cast("B")
        found = self.read(len(space))
        space[: len(found)] = found
        return len(found)

    def _bytes(self, start: int, end: int) -> bytes:
        for first, held in (self._tail, self._ahead):
            if first <= start and end <= first + len(held):
                return held[start - first : end - first]
        stop = min(max(end, start + AHEAD_BYTES), self._size)
        found = self._fetch(start, stop)
        if len(found) != stop - start:
            raise StoreUnavailable(
                f"the store returned {len(found)} bytes instead of the bytes from {start} to {stop - 1}"
            )
        if self._on_fetch is not None:
            self._on_fetch(len(found))
        self._ahead = (start, found if end < stop else b"")
        return found[: end - start]

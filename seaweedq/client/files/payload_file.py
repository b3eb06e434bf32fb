"""A payload as a file to read from, for those that wait for it, and for those on an event loop."""

import io
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import aclosing
from types import TracebackType
from typing import Any, BinaryIO, Self, cast

_BUFFER_BYTES = 256 * 1024


class _Raw(io.RawIOBase):
    """An error is raised again by every read after it, so that nobody takes it for the end."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._piece = pieces, memoryview(b"")
        self._error: BaseException | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._piece:
            self._piece = memoryview(self._next())
        room = memoryview(buffer).cast("B")
        size = min(len(room), len(self._piece))
        room[:size] = self._piece[:size]
        self._piece = self._piece[size:]
        return size

    def readall(self) -> bytes:
        parts = [bytes(self._piece)]
        self._piece = memoryview(b"")
        while piece := self._next():
            parts.append(piece)
        return b"".join(parts)

    def _next(self) -> bytes:
        if self._error:
            raise self._error
        try:
            return next(self._pieces, b"")
        except BaseException as error:
            self._error = error
            raise

    def close(self) -> None:
        if not self.closed and isinstance(self._pieces, Generator):
            self._pieces.close()
        super().close()


def reader(pieces: Iterator[bytes]) -> BinaryIO:
    """A file with these bytes, that cannot seek. Closing it ends the pieces."""
    return cast(BinaryIO, io.BufferedReader(_Raw(pieces), _BUFFER_BYTES))


class AsyncPayload:
    """A payload to be read in an `async with`: by `read`, or piece by piece in an `async for`."""

    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces = pieces
        self._left = b""
        self._error: BaseException | None = None

    async def read(self, size: int = -1) -> bytes:
        """At most `size` bytes, all that are left where it is negative; none at the end.

        Raises Damaged, PayloadNotFound, ConnectionFailed; after that every read does.
        """
        parts, length = [self._left], len(self._left)
        while size < 0 or length < size:
            if not (piece := await self._next()):
                break
            parts.append(piece)
            length += len(piece)
        data = b"".join(parts)
        end = len(data) if size < 0 else size
        self._left = data[end:]
        return data[:end]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while piece := self._left or await self._next():
            self._left = b""
            yield piece

    async def close(self) -> None:
        """Give the connection back."""
        async with aclosing(self._pieces):  # type: ignore[type-var]
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
            return await anext(self._pieces, b"")
        except BaseException as error:
            self._error = error
            raise

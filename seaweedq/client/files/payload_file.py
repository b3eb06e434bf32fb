"""A payload as a file to read from, blocking or on an event loop."""

import io
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import aclosing
from types import TracebackType
from typing import Any, BinaryIO, Self, cast

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
    """Returns a file with these bytes, which is not seekable. Closing it ends the chunks."""
    return cast(BinaryIO, io.BufferedReader(_Raw(chunks), _BUFFER_BYTES))


class AsyncPayload:
    """A payload to be read in an `async with`: by `read`, or chunk by chunk in an `async for`."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self._left = b""
        self._error: BaseException | None = None

    async def read(self, size: int = -1) -> bytes:
        """Returns at most `size` bytes, all that are left if it is negative; none at the end.

        Raises Damaged, PayloadNotFound, ConnectionFailed; after an error every read raises it again.
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

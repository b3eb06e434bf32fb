"""A file made of a stream: memory is bounded, and the event loop never waits for the disk.

One piece is hashed and written in a thread while the next one is gathered; there are two buffers, and no more. What the
threads do to one file they do one at a time, and nothing once it was discarded: a cancelled stream does not wait for
the disk, and yet leaves nothing.
"""

import asyncio
import fcntl
import hashlib
import mmap
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import aclosing, suppress
from typing import TypeVar, cast

from seaweedq.errors import InvalidUpload, StoreUnavailable
from seaweedq.storage.direct import write_all
from seaweedq.storage.interface import Data

T = TypeVar("T")
PIECE_BYTES = 1024 * 1024


class Spool:
    """A new file at `path`, locked while its writer lives. It must be discarded in the end: its name goes, not what was
    linked to it."""

    def __init__(self, path: str, threads: Executor) -> None:
        self._path = path
        self._threads = threads
        self._sha256 = hashlib.sha256()
        self._descriptor = -1
        self._discarded = False
        self._one = threading.Lock()

    async def fill(self, chunks: AsyncIterator[bytes], size: int, sha256: str | None) -> str:
        """Write all chunks and fsync: their SHA-256 in hex. Raises InvalidUpload, StoreUnavailable, and what `chunks`
        raises."""
        await self.run(self._open)
        writing: asyncio.Future[None] | None = None
        async with aclosing(_pieces(chunks, size)) as pieces:
            async for piece in pieces:
                if writing is not None:
                    await _answer(writing)
                writing = self._begin(self._append, piece)
        if writing is not None:
            await _answer(writing)
        check_digest(digest := self._sha256.hexdigest(), sha256)
        await self.run(os.fsync, self._descriptor)
        return digest

    async def run(self, act: Callable[..., T], *arguments: object) -> T:
        """What `act` gives, in a thread and after all that began before. Raises StoreUnavailable for OSError."""
        return await _answer(self._begin(act, *arguments))

    async def discard(self) -> None:
        """Close the file and remove its name; that happens also where nobody waits for it."""
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, self._discard))

    def _begin(self, act: Callable[..., T], *arguments: object) -> "asyncio.Future[T]":
        def alone() -> T:
            with self._one:
                if self._discarded:
                    raise StoreUnavailable("the upload was cancelled")
                return act(*arguments)

        begun = asyncio.get_running_loop().run_in_executor(self._threads, alone)
        begun.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may wait for it any more
        return begun

    def _open(self) -> None:
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def _append(self, piece: memoryview) -> None:
        self._sha256.update(piece)
        write_all(self._descriptor, piece)

    def _discard(self) -> None:
        with self._one:
            self._discarded = True
            if self._descriptor >= 0:
                with suppress(OSError):
                    os.unlink(self._path)
                os.close(self._descriptor)
                self._descriptor = -1


def check_size(found: int, size: int) -> None:
    """Raises InvalidUpload unless so many bytes were announced."""
    if found != size:
        more = "more" if found > size else f"{found}"
        raise InvalidUpload(f"{size} bytes were announced, but {more} arrived", field="size", value=found, bound=size)


def check_digest(found: str, sha256: str | None) -> None:
    """Raises InvalidUpload where another digest was announced."""
    if sha256 is not None and found != sha256.lower():
        raise InvalidUpload(
            f"the SHA-256 of the bytes is {found}, not {sha256} as announced", field="sha256", value=found, bound=sha256
        )


def unavailable(error: OSError) -> StoreUnavailable:
    """What the disk refuses, as callers know it."""
    return StoreUnavailable(
        f"the store's folder cannot be used: {error.strerror}", inside=f"{error}", errno=error.errno
    )


async def _answer(begun: "asyncio.Future[T]") -> T:
    try:
        return await begun
    except OSError as error:
        raise unavailable(error) from error


async def _pieces(chunks: AsyncIterator[bytes], size: int) -> AsyncGenerator[memoryview, None]:
    """The stream in pieces of PIECE_BYTES, the last one smaller. A piece stays as it is until the next but one is asked
    for. They begin at pages of memory: such pieces go around the page cache."""
    buffer, spare = _pages(size), _pages(size)
    filled = total = 0
    async for chunk in chunks:
        total += len(chunk)
        if total > size:
            check_size(total, size)
        rest = memoryview(chunk)
        while rest:
            taken = min(len(rest), len(buffer) - filled)
            buffer[filled : filled + taken] = rest[:taken]
            rest, filled = rest[taken:], filled + taken
            if filled == len(buffer):
                yield buffer
                buffer, spare, filled = spare, buffer, 0
    check_size(total, size)
    if filled:
        yield buffer[:filled]


def _pages(size: int) -> memoryview:
    return memoryview(cast(Data, mmap.mmap(-1, min(max(size, 1), PIECE_BYTES))))

"""Writes files of a local store: content that is whole, and streams with bounded memory.

Large content bypasses the page cache if the operating system and the file system support it. Otherwise the kernel would
keep a copy that this process hardly ever reads; making it costs as much CPU as half of the encoding.

The event loop never waits for the disk. One buffer of a stream is hashed and written in a thread while the next one is
filled; there are two, and no more. The threads work on a file one at a time, and not at all once it was discarded: a
cancelled stream does not wait for the disk, and yet leaves nothing behind.
"""

import asyncio
import errno
import fcntl
import hashlib
import mmap
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import aclosing, suppress
from typing import TypeVar, cast

import numpy as np

from seaweedq.errors import InvalidUpload, StoreUnavailable
from seaweedq.storage.interface import Data

MIN_BYTES = 1024 * 1024
_AT_ONCE_BYTES = 8 * 1024 * 1024
_DIRECT = getattr(os, "O_DIRECT", 0)
T = TypeVar("T")
BUFFER_BYTES = 1024 * 1024


def write_all(descriptor: int, data: Data) -> None:
    """Writes all of `data` at the file's position; large data that begins at a memory page goes directly to the
    disk."""
    rest = memoryview(data).cast("B")
    if _DIRECT and len(rest) >= MIN_BYTES and np.frombuffer(rest, np.uint8).ctypes.data % mmap.PAGESIZE == 0:
        rest = _write_pages(descriptor, rest)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _write_pages(descriptor: int, rest: memoryview) -> memoryview:
    """Writes whole pages. Returns the rest for the page cache: all of it on a file system without direct writes."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | _DIRECT)
        while whole := len(rest) // mmap.PAGESIZE * mmap.PAGESIZE:
            rest = rest[os.write(descriptor, rest[: min(whole, _AT_ONCE_BYTES)]) :]
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
    return rest


class Spool:
    """A new file at `path`, locked while its writer lives. The caller must discard it in the end, which removes its
    name but not what was linked to it."""

    def __init__(self, path: str, threads: Executor) -> None:
        self._path = path
        self._threads = threads
        self._sha256 = hashlib.sha256()
        self._descriptor = -1
        self._discarded = False
        self._one = threading.Lock()

    async def fill(self, chunks: AsyncIterator[bytes], size: int, sha256: str | None) -> str:
        """Writes all chunks and fsyncs. Returns their SHA-256 in hex. Raises InvalidUpload, StoreUnavailable, and the
        errors of `chunks`."""
        await self.run(self._open)
        writing: asyncio.Future[None] | None = None
        async with aclosing(_buffers(chunks, size)) as buffers:
            async for filled in buffers:
                if writing is not None:
                    await _answer(writing)
                writing = self._begin(self._append, filled)
        if writing is not None:
            await _answer(writing)
        check_digest(digest := self._sha256.hexdigest(), sha256)
        await self.run(os.fsync, self._descriptor)
        return digest

    async def run(self, act: Callable[..., T], *arguments: object) -> T:
        """Calls `act` in a thread, after all calls begun before, and returns its result. Raises StoreUnavailable for
        OSError."""
        return await _answer(self._begin(act, *arguments))

    async def discard(self) -> None:
        """Closes the file and removes its name, even if the caller is cancelled."""
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._threads, self._discard))

    def _begin(self, act: Callable[..., T], *arguments: object) -> "asyncio.Future[T]":
        def alone() -> T:
            with self._one:
                if self._discarded:
                    raise StoreUnavailable("the upload was cancelled")
                return act(*arguments)

        begun = asyncio.get_running_loop().run_in_executor(self._threads, alone)
        begun.add_done_callback(lambda done: done.cancelled() or done.exception())  # no caller may wait for it any more
        return begun

    def _open(self) -> None:
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def _append(self, data: memoryview) -> None:
        self._sha256.update(data)
        write_all(self._descriptor, data)

    def _discard(self) -> None:
        with self._one:
            self._discarded = True
            if self._descriptor >= 0:
                with suppress(OSError):
                    os.unlink(self._path)
                os.close(self._descriptor)
                self._descriptor = -1


def check_size(found: int, size: int) -> None:
    """Raises InvalidUpload unless this number of bytes was announced."""
    if found != size:
        more = "more" if found > size else f"{found}"
        raise InvalidUpload(
            f"the upload announced {size} bytes, but {more} arrived", field="size", value=found, bound=size
        )


def check_digest(found: str, sha256: str | None) -> None:
    """Raises InvalidUpload if another digest was announced."""
    if sha256 is not None and found != sha256.lower():
        raise InvalidUpload(
            f"the SHA-256 of the received bytes is {found}, not the announced {sha256}",
            field="sha256",
            value=found,
            bound=sha256,
        )


def unavailable(error: OSError) -> StoreUnavailable:
    """Returns the StoreUnavailable that stands for an error of the disk."""
    return StoreUnavailable(
        f"the store's folder cannot be used: {error.strerror}", inside=f"{error}", errno=error.errno
    )


async def _answer(begun: "asyncio.Future[T]") -> T:
    try:
        return await begun
    except OSError as error:
        raise unavailable(error) from error


async def _buffers(chunks: AsyncIterator[bytes], size: int) -> AsyncGenerator[memoryview, None]:
    """Yields the stream in buffers of BUFFER_BYTES, the last one smaller. A buffer stays unchanged until the next but
    one is requested. They begin at memory pages: so they bypass the page cache."""
    buffer, spare = _new_buffer(size), _new_buffer(size)
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


def _new_buffer(size: int) -> memoryview:
    return memoryview(cast(Data, mmap.mmap(-1, min(max(size, 1), BUFFER_BYTES))))

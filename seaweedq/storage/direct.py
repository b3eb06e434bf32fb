"""Writes a file's content; large content bypasses the page cache if the operating system and the file system support
it.

Otherwise the kernel would keep a copy that this process hardly ever reads; making it costs as much CPU as half of the
encoding.
"""

import errno
import fcntl
import mmap
import os

import numpy as np

from seaweedq.storage.interface import Data

MIN_BYTES = 1024 * 1024
_AT_ONCE_BYTES = 8 * 1024 * 1024
_DIRECT = getattr(os, "O_DIRECT", 0)


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

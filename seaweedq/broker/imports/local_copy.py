"""The file of an import as an open descriptor for its reader, which needs no access to the store.

A store of files gives its own file, which never changes. An object from elsewhere is copied to a file without a name in
the data folder, a few chunks at a time, and must have the size and digest that were claimed: on S3 a holder of the URL
may put other bytes there until it expires.
"""

import asyncio
import hashlib
import io
import os
import shutil
import tempfile
from pathlib import Path

from seaweedq.errors import InvalidImport, StoreUnavailable
from seaweedq.storage.interface import ObjectStore

PIECE_BYTES = 4 * 1024 * 1024
PIECES = 4  # in flight
SPARE_BYTES, SPARE_PART = 1024 * 1024 * 1024, 10  # of the disk, which a copy leaves alone: the lesser; a part in ten


async def opened(store: ObjectStore, name: str, size: int, sha256: str, folder: Path) -> int:
    """Returns a descriptor of the object, to be closed by the caller. Raises StoreUnavailable, also where the disk has
    no room for a copy, and InvalidImport where the object is gone or is another one."""
    try:
        own = await store.readers.run(_own, store, name, size)
        return own if own is not None else await _copied(store, name, size, sha256, folder)
    except FileNotFoundError:
        raise InvalidImport("the uploaded file is no longer in the store", reason="gone") from None


def _own(store: ObjectStore, name: str, size: int) -> int | None:
    with store.open(name) as handle:
        try:
            descriptor = os.dup(handle.fileno())
        except (io.UnsupportedOperation, AttributeError, OSError):
            return None
    if os.fstat(descriptor).st_size != size:
        os.close(descriptor)
        raise _other("its size")
    return descriptor


async def _copied(store: ObjectStore, name: str, size: int, sha256: str, folder: Path) -> int:
    disk = shutil.disk_usage(folder)
    spare = min(SPARE_BYTES, disk.total // SPARE_PART)  # on a small disk a fixed reserve would bar every import
    if disk.free < size + spare:
        raise StoreUnavailable(
            f"the import needs {size} bytes of disk for a copy of its file, beside {spare} that it leaves free, but "
            f"only {disk.free} are free"
        )
    with tempfile.TemporaryFile(dir=folder, buffering=0) as copy:
        if await _fill(store, name, size, copy.fileno()) != sha256:
            raise _other("its SHA-256")
        return os.dup(copy.fileno())


async def _fill(store: ObjectStore, name: str, size: int, descriptor: int) -> str:
    """Copies the object, several chunks at once. Returns its digest."""
    hashed, starts = hashlib.sha256(), list(range(0, size, PIECE_BYTES))
    reads = [asyncio.create_task(_read(store, name, start, size)) for start in starts[:PIECES]]
    try:
        for at, start in enumerate(starts):
            piece = await reads.pop(0)
            if at + PIECES < len(starts):
                reads.append(asyncio.create_task(_read(store, name, starts[at + PIECES], size)))
            await store.readers.run(_take, hashed, descriptor, piece, start)
    finally:
        for read in reads:
            read.cancel()
        await asyncio.gather(*reads, return_exceptions=True)
    return hashed.hexdigest()


async def _read(store: ObjectStore, name: str, start: int, size: int) -> bytes:
    end = min(start + PIECE_BYTES, size)
    piece = await store.read(name, start, end)
    if len(piece) != end - start:
        raise _other("its size")
    return piece


def _take(hashed: "hashlib._Hash", descriptor: int, piece: bytes, start: int) -> None:
    hashed.update(piece)
    if os.pwrite(descriptor, piece, start) != len(piece):
        raise StoreUnavailable("the disk accepted only some bytes of the import's file; is it full?")


def _other(what: str) -> InvalidImport:
    return InvalidImport(f"the file in the store is not the one that was claimed: {what} differs", reason=what)

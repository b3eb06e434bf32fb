"""Objects as files below one folder of this machine. Several processes may share it.

Order of writes: the bytes are written to `_tmp/{nonce}` and fsynced, so that a named object is complete; `link` gives
the name only if it is free; the folder is fsynced before the answer, so that the answer survives a power loss. A crash
leaves nothing but files in `_tmp`. Each is locked while its writer lives, so that `sweep_temporary` spares it.
"""

import errno
import fcntl
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO, cast

from fsspec.implementations.local import LocalFileSystem

from seaweedq.clock import Ids
from seaweedq.concurrency.futures import Signal
from seaweedq.concurrency.pools import Pools
from seaweedq.storage.interface import (
    TEMPORARY,
    Data,
    ListedObject,
    NoPresignedUrls,
    by_parts,
    check_name,
    check_place,
    check_prefix,
)
from seaweedq.storage.spool import Spool, unavailable, write_all


class LocalStore(NoPresignedUrls):
    """A PayloadStore in the folder `root`, a path or a file:// URL. The first object creates the folder."""

    def __init__(self, root: Path | str, ids: Ids, pools: Pools | None = None) -> None:
        pools = pools or Pools()
        self._files = LocalFileSystem()
        self._root: str = self._files._strip_protocol(str(root)).rstrip("/")
        self._ids = ids
        self.readers = pools.reads
        self.worked = Signal()
        self._writers = pools.writes
        self._receivers = pools.payloads  # so that payloads do not stand before what the chains write
        self._durable: set[str] = set()  # folders whose own names are known to be fsynced

    async def create(self, name: str, data: Data) -> bool:
        """As ObjectStore. True once file and name are fsynced; False, as durably, if the name exists."""
        return await self._writers.run(self._create, check_name(name), data, self._ids.nonce())

    async def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """As ObjectStore; a range beyond the end is cut. Raises ValueError unless 0 <= start <= end."""
        if start < 0 or (end is not None and end < start):
            raise ValueError(f"[{start}, {end}) is not a valid byte range")
        return await self.readers.run(self._read, self._path(name), start, end)

    async def size(self, name: str) -> int:
        return await self.readers.run(self._size, self._path(name))

    async def age_s(self, name: str) -> float:
        """As ObjectStore. The time of a file that is made for it is the file system's present time."""
        return await self.readers.run(self._age_s, self._path(name))

    async def delete(self, name: str) -> None:
        """As ObjectStore. Also removes folders left empty. Not fsynced: after a power loss the object may be back."""
        await self._writers.run(self._delete, self._path(name))

    def open(self, name: str) -> BinaryIO:
        with _answers():
            return cast(BinaryIO, self._files.open(self._path(name), "rb"))

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[str]:
        """As ObjectStore, by the names' parts. Reads the folders that contain the answer, with one stat per name."""
        check_place(prefix, after)
        return [*await self.readers.run(self._list, check_prefix(prefix), after, limit)]

    async def listed(self, prefix: str, after: str = "", limit: int = 1000) -> Sequence[ListedObject]:
        """As ObjectStore. The time of a file is its mtime."""
        check_place(prefix, after)
        return await self.readers.run(self._listed, check_prefix(prefix), after, limit)

    def uri(self, name: str) -> str:
        """As PayloadStore: file:///..., with nothing escaped, which is how Spark and fsspec read it."""
        return f"file://{self._path(name)}"

    async def receive(self, name: str, chunks: AsyncIterator[bytes], size: int, sha256: str | None) -> str | None:
        """As PayloadStore. Also raises the errors of `chunks`, and StoreUnavailable if the disk is full. Holds two
        buffers of 1 MiB in memory. If it is cancelled at its very end, the object may exist, whole and checked."""
        path, temporary = self._path(name), f"{self._root}/{TEMPORARY}{self._ids.nonce()}"
        spool = Spool(temporary, self._receivers)
        try:
            digest = await spool.fill(chunks, size, sha256)
            return digest if await spool.run(self._link, temporary, path) else None
        finally:
            await spool.discard()

    async def copy(self, name: str, to: str) -> None:
        """As PayloadStore: a link to the same file, which stays until both are deleted."""
        await self._receivers.run(self._copy, self._path(name), self._path(to))

    async def digest(self, name: str) -> tuple[int, str | None]:
        """As PayloadStore; a folder has no digests."""
        return await self.size(name), None

    async def sweep_temporary(self) -> int:
        """Removes the files of crashed writers from `_tmp`; to be called at start. Returns their number."""
        return await self._writers.run(self._sweep)

    async def close(self) -> None:
        """Does nothing: no file is held open, and the threads that write payloads end with the store."""

    def _path(self, name: str) -> str:
        return f"{self._root}/{check_name(name)}"

    def _create(self, name: str, data: Data, nonce: str) -> bool:
        temporary = f"{self._root}/{TEMPORARY}{nonce}"
        try:
            os.makedirs(os.path.dirname(temporary), exist_ok=True)
            with _written(temporary, data):
                return self._link(temporary, self._path(name))
        except OSError as error:
            raise unavailable(error) from error
        finally:
            with suppress(OSError):
                os.unlink(temporary)

    def _copy(self, path: str, to: str) -> None:
        with _answers():
            self._link(path, to)

    def _link(self, temporary: str, path: str) -> bool:
        folder = os.path.dirname(path)
        created = self._try_link(temporary, path, folder)
        while created is None:
            created = self._try_link(temporary, path, folder)
        with suppress(FileNotFoundError):  # deleted already
            _sync_folder(folder)  # 'taken' must survive a power loss as well
        return created

    def _try_link(self, temporary: str, path: str, folder: str) -> bool | None:
        """Tells whether the name was free. None: a concurrent delete removed the folder, since it was empty."""
        try:
            self._make_durable(folder)
            os.link(temporary, path)
        except FileExistsError:
            return False
        except FileNotFoundError:
            if not os.path.exists(temporary):
                raise
            self._forget(folder)
            return None
        return True

    def _make_durable(self, folder: str) -> None:
        """Makes a folder and its parents durable; one that another process made may not be fsynced yet."""
        if folder == self._root or folder in self._durable:
            return
        parent = os.path.dirname(folder)
        self._make_durable(parent)
        with suppress(FileExistsError):
            os.mkdir(folder)
        _sync_folder(parent)
        self._durable.add(folder)

    def _forget(self, folder: str) -> None:
        while folder != self._root:
            self._durable.discard(folder)
            folder = os.path.dirname(folder)

    def _read(self, path: str, start: int, end: int | None) -> bytes:
        with _answers():
            return cast(bytes, self._files.cat_file(path, start, end))

    def _size(self, path: str) -> int:
        with _answers():
            info = self._files.info(path)
            if info["type"] != "file":
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            return cast(int, info["size"])

    def _age_s(self, path: str) -> float:
        with _answers():
            put_ns = os.stat(path).st_mtime_ns
            with TemporaryFile(dir=self._root) as file:
                return (os.fstat(file.fileno()).st_mtime_ns - put_ns) / 1e9

    def _delete(self, path: str) -> None:
        with suppress(FileNotFoundError), _answers():
            self._files.rm_file(path)
        folder = os.path.dirname(path)
        self._forget(folder)
        with suppress(OSError):  # not empty, or somebody else was first
            while folder != self._root:
                os.rmdir(folder)
                folder = os.path.dirname(folder)

    def _list(self, prefix: str, after: str, limit: int) -> tuple[str, ...]:
        with _answers():
            return (*islice(self._walk(prefix[: prefix.rfind("/") + 1], prefix, after), limit),)

    def _listed(self, prefix: str, after: str, limit: int) -> Sequence[ListedObject]:
        found = []
        for name in self._list(prefix, after, limit):
            with suppress(FileNotFoundError), _answers():
                there = os.stat(f"{self._root}/{name}")
                found.append(ListedObject(name, there.st_size, there.st_mtime_ns // 1000))
        return found

    def _walk(self, folder: str, prefix: str, after: str) -> Iterator[str]:
        """Yields the names in `folder` (empty, or ending in `/`) and below."""
        place = by_parts(after)
        for name in sorted(self._children(folder)):
            if not name.startswith(prefix) or not (by_parts(name) >= place or after.startswith(name + "/")):
                continue
            if self._files.isdir(f"{self._root}/{name}"):
                yield from self._walk(name + "/", prefix, after)
            elif by_parts(name) > place:
                yield name

    def _children(self, folder: str) -> Iterator[str]:
        with suppress(FileNotFoundError, NotADirectoryError):
            for path in self._files.ls(f"{self._root}/{folder}", detail=False):
                name = path.removeprefix(self._root + "/")
                if not f"{name}/".startswith(TEMPORARY):
                    yield name

    def _sweep(self) -> int:
        with suppress(FileNotFoundError), _answers():
            return sum(_sweep_one(path) for path in self._files.ls(f"{self._root}/{TEMPORARY}", detail=False))
        return 0


@contextmanager
def _answers() -> Iterator[None]:
    """Translates the errors of reads and deletes: a folder is not an object, and a disk error is StoreUnavailable."""
    try:
        yield
    except (NotADirectoryError, IsADirectoryError) as error:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), error.filename) from error
    except FileNotFoundError:
        raise
    except OSError as error:
        raise unavailable(error) from error


@contextmanager
def _written(path: str, data: Data) -> Iterator[None]:
    """Creates a file with these bytes, fsynced, and locked until the end of the block."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        write_all(descriptor, data)
        os.fsync(descriptor)
        yield
    finally:
        os.close(descriptor)


def _sync_folder(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sweep_one(path: str) -> bool:
    """Removes a temporary file unless its writer lives (or has just removed it)."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    except (BlockingIOError, FileNotFoundError):
        return False
    finally:
        os.close(descriptor)
    return True

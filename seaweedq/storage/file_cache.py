"""A cache of ranges of the store's files, in a folder of this machine, for the readers of one life of a broker.

Which ranges are held, and in which blocks, is decided by `CachePlan`, and is known in memory alone. The blocks are one
file without a name: it has no more than `limit_bytes`, the system removes it with the process, however that ends, and
the next life begins with an empty cache. So no crash leaves anything that could be taken for a file's bytes.

A range is fetched once for all threads that want it meanwhile. Order: 1. the fetched bytes are given to those who wait;
2. their blocks are written, and not fsynced; 3. the range is held. Each range has a CRC-32, computed before 2: bytes
that do not match it are not given out, and fetched again. A range that is read while its blocks go to another one is
told by the plan, not by the CRC.

The names of files are never used again in a life: segments of a topic that is created anew have other numbers. What is
known of a deleted topic is forgotten. A file that its reader cannot decode is forgotten, too: what the store sent may
have been wrong.
"""

import errno
import io
import logging
import os
import tempfile
import threading
import weakref
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from seaweedq.clock import Clock
from seaweedq.errors import StoreUnavailable
from seaweedq.storage.cache_plan import BLOCK_BYTES, CachePlan, FileRange, HeldRange
from seaweedq.storage.interface import ObjectStore
from seaweedq.storage.ranges import TAIL_BYTES, RangeReader

FULL = (errno.ENOSPC, errno.EDQUOT)
logger = logging.getLogger("seaweedq")


class _Fetched(NamedTuple):
    data: bytes
    file_bytes: int  # of the whole file, known of its tail


class FileCache:
    """A cache in `folder` of at most `limit_bytes`, for any thread. Raises OSError if the folder cannot be used.

    `uses` counts ranges: `hit`, `miss`, and `shared` by a fetch that was under way; `failures` has those of the folder:
    `full`, `write`, `read`, `checksum`. `hit_bytes` are those that were not fetched.
    """

    def __init__(self, folder: Path, limit_bytes: int, clock: Clock) -> None:
        self.uses: Counter[str] = Counter(hit=0, miss=0, shared=0)
        self.failures: Counter[str] = Counter(full=0, write=0, read=0, checksum=0)
        self.hit_bytes = 0
        self.plan = CachePlan(limit_bytes // BLOCK_BYTES)
        self._clock = clock
        self._lock = threading.Lock()  # of the plan and the counts, never held over a call of the system
        self._fetching: dict[FileRange, Future[_Fetched]] = {}
        self._forgets = 0
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - it has no name
        self.descriptor = file.fileno()
        weakref.finalize(self, file.close)  # once no thread can write there any more

    def over(self, store: ObjectStore) -> ObjectStore:
        """Returns a store that opens files through this cache, and does all else as `store` does."""
        return cast(ObjectStore, _CachedStore(store, self))

    def open(self, name: str, store: ObjectStore) -> BinaryIO:
        """Opens a file as the store does, and reads it through the cache."""
        source = _Source(name, store)
        try:
            tail = self._get(FileRange(name, -TAIL_BYTES, 0), source.tail)
        except BaseException:
            source.close()
            raise
        return cast(BinaryIO, CachedFile(self, source, tail))

    def part(self, source: "_Source", start: int, end: int) -> bytes:
        """Returns the bytes [start, end) of a file; fewer if it has no more."""
        return self._get(FileRange(source.name, start, end), lambda: source.part(start, end)).data

    def forget(self, prefix: str) -> None:
        """Drops all ranges of the files whose names begin so."""
        with self._lock:
            self._forgets += 1
            self.plan.forget(prefix)

    def close(self) -> None:
        """Gives the disk's space back. A thread that still reads fetches what is gone."""
        try:
            os.ftruncate(self.descriptor, 0)
        except OSError as error:
            logger.warning("the file of the read cache cannot be emptied: %s", error)

    def _get(self, wanted: FileRange, fetch: Callable[[], _Fetched]) -> _Fetched:
        while True:
            with self._lock:
                held = self.plan.find(wanted, self._clock.monotonic_s())
                waiting = self._fetching.get(wanted) if held is None else None
                if held is None:
                    self.uses["shared" if waiting else "miss"] += 1
                    if waiting is None:
                        future = self._fetching[wanted] = Future()
            if waiting is not None:
                return waiting.result()
            if held is None:
                return self._fetched(wanted, fetch, future)
            if (data := self._read(wanted, held)) is not None:
                return _Fetched(data, held.file_bytes)

    def _fetched(self, wanted: FileRange, fetch: Callable[[], _Fetched], future: "Future[_Fetched]") -> _Fetched:
        forgets = self._forgets
        try:
            found = fetch()
        except BaseException as error:
            with self._lock:
                del self._fetching[wanted]
            future.set_exception(error)
            raise
        future.set_result(found)
        try:
            if wanted.start < 0 or len(found.data) == wanted.end - wanted.start:
                self._write(wanted, found, forgets)
        finally:
            with self._lock:
                del self._fetching[wanted]
        return found

    def _write(self, wanted: FileRange, found: _Fetched, forgets: int) -> None:
        """Writes a range to its blocks, if it is admitted, and nothing was forgotten since its fetch began."""
        with self._lock:
            if forgets != self._forgets:
                return
            blocks = self.plan.begin(wanted, len(found.data), self._clock.monotonic_s())
        if not blocks:
            return
        crc, rest = zlib.crc32(found.data), memoryview(found.data)
        try:
            for at, count in _runs(blocks):
                piece, rest = rest[: count * BLOCK_BYTES], rest[count * BLOCK_BYTES :]
                _write_all(self.descriptor, piece, at * BLOCK_BYTES)
        except OSError as error:
            is_full = error.errno in FULL
            with self._lock:
                self.plan.fail(wanted, is_full, self._clock.monotonic_s())
            self._failed("full" if is_full else "write", error)
            return
        with self._lock:
            self.plan.hold(wanted, len(found.data), crc, found.file_bytes, self._clock.monotonic_s())

    def _read(self, wanted: FileRange, held: HeldRange) -> bytes | None:
        """Returns the bytes of a range, or None if they are gone, or wrong."""
        pieces, left, failure = [], held.size, ""
        try:
            for at, count in _runs(held.blocks):
                size = min(left, count * BLOCK_BYTES)
                pieces.append(os.pread(self.descriptor, size, at * BLOCK_BYTES))
                left -= size
            data = b"".join(pieces)
            if len(data) != held.size or zlib.crc32(data) != held.crc:
                failure, why = "checksum", "the bytes are not those that were written"
        except OSError as error:
            failure, why = "read", str(error)
        with self._lock:
            if not self.plan.is_held(wanted, held):
                return None  # other bytes may be there
            if not failure:
                self.uses["hit"] += 1
                self.hit_bytes += held.size
                return data
            self.plan.drop(wanted, is_broken=failure == "read")
        self._failed(failure, why)
        return None

    def _failed(self, kind: str, why: object) -> None:
        with self._lock:
            self.failures[kind] += 1
            is_first = self.failures[kind] == 1
        log = logger.warning if is_first else logger.debug
        log("the disk of the read cache failed, so readers use the store (%s): %s", kind, why)


class CachedFile(RangeReader):
    """A file of the store that is read through a cache."""

    def __init__(self, cache: FileCache, source: "_Source", tail: _Fetched) -> None:
        super().__init__(lambda start, end: cache.part(source, start, end), tail.file_bytes, tail.data)
        self._cache = cache
        self._source = source

    def close(self) -> None:
        """Closes the file of the store, if it was opened."""
        self._source.close()
        super().close()

    def distrust(self) -> None:
        """Has the cache forget the file."""
        self._cache.forget(self._source.name)


def distrust(file: BinaryIO) -> None:
    """Has the cache forget a file that cannot be decoded, so that the next reader gets it from the store."""
    if isinstance(file, CachedFile):
        file.distrust()


class _CachedStore:
    """An ObjectStore that opens files through a cache. All other attributes are those of the other store."""

    def __init__(self, store: ObjectStore, cache: FileCache) -> None:
        self._store = store
        self._cache = cache

    def open(self, name: str) -> BinaryIO:
        return self._cache.open(name, self._store)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class _Source:
    """A file of the store, which is opened for the first range that the cache lacks."""

    def __init__(self, name: str, store: ObjectStore) -> None:
        self.name = name
        self._store = store
        self._file: BinaryIO | None = None

    def tail(self) -> _Fetched:
        """Returns the last TAIL_BYTES, or all."""
        file = self._opened()
        size = file.seek(0, io.SEEK_END)
        file.seek(max(size - TAIL_BYTES, 0))
        tail = file.read(TAIL_BYTES)
        if len(tail) != min(size, TAIL_BYTES):
            raise StoreUnavailable(
                f"the store returned {len(tail)} bytes instead of the last {TAIL_BYTES} of the object's {size} bytes"
            )
        return _Fetched(tail, size)

    def part(self, start: int, end: int) -> _Fetched:
        """Returns the bytes [start, end), cut at the file's end."""
        file = self._opened()
        file.seek(start)
        return _Fetched(file.read(end - start), 0)

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()

    def _opened(self) -> BinaryIO:
        self._file = self._file or self._store.open(self.name)
        return self._file


def _runs(blocks: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yields the runs of consecutive blocks: the first one, and how many there are."""
    first = blocks[0]
    for one, following in pairwise((*blocks, -1)):
        if following != one + 1:
            yield first, one + 1 - first
            first = following


def _write_all(descriptor: int, data: memoryview, at: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, at)
        data, at = data[written:], at + written

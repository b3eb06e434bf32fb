"""Objects in a dictionary: the twin of the real stores for tests, with a hook for faults."""

import hashlib
import heapq
import io
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO

from seaweedq.clock import Clock, SystemClock
from seaweedq.concurrency.futures import Signal
from seaweedq.concurrency.pools import READS, Pool
from seaweedq.storage.interface import (
    Data,
    ListedObject,
    NoPresignedUrls,
    by_parts,
    check_name,
    check_place,
    check_prefix,
)
from seaweedq.storage.spool import check_digest, check_size


def _no_faults(moment: str, name: str) -> None:
    pass


class MemoryStore(NoPresignedUrls):
    """A PayloadStore in memory.

    `faults(moment, name)` is called before and after each operation, with moments like "before create" and "after
    create" (create, read, size, age, list, delete, open, receive; for list the name is the prefix). The caller gets the
    error that it raises: StoreUnavailable at "after create" stands for a connection reset after the create took effect.
    `clock` is the store's own, by which objects have their times.
    `objects` is what it holds.
    """

    def __init__(self, faults: Callable[[str, str], None] = _no_faults, clock: Clock | None = None) -> None:
        self.faults = faults
        self.clock = clock or SystemClock()
        self.readers = Pool("store reads", READS)
        self.worked = Signal()
        self.objects: dict[str, bytes] = {}
        self.ages_s: dict[str, float] = {}
        self._times_us: dict[str, int] = {}

    async def create(self, name: str, data: Data) -> bool:
        with self._act("create", check_name(name)):
            if name in self.objects:
                return False
            self.objects[name] = bytes(data)
            self._times_us[name] = self.clock.now_us()
            return True

    async def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """As ObjectStore; a range beyond the end is cut. Raises ValueError unless 0 <= start <= end."""
        if start < 0 or (end is not None and end < start):
            raise ValueError(f"[{start}, {end}) is not a valid byte range")
        with self._act("read", check_name(name)):
            return self._get(name)[start:end]

    async def size(self, name: str) -> int:
        with self._act("size", check_name(name)):
            return len(self._get(name))

    async def age_s(self, name: str) -> float:
        """As ObjectStore, by `ages_s`; 0 for all others."""
        with self._act("age", check_name(name)):
            self._get(name)
            return self.ages_s.get(name, 0.0)

    async def delete(self, name: str) -> None:
        with self._act("delete", check_name(name)):
            self.objects.pop(name, None)

    def open(self, name: str) -> BinaryIO:
        with self._act("open", check_name(name)):
            return io.BytesIO(self._get(name))

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[str]:
        """As ObjectStore, by the names' parts."""
        check_place(prefix, after)
        with self._act("list", check_prefix(prefix)):
            place = by_parts(after)
            found = (n for n in self.objects if n.startswith(prefix) and by_parts(n) > place)
            return heapq.nsmallest(limit, found, key=by_parts)

    async def listed(self, prefix: str, after: str = "", limit: int = 1000) -> Sequence[ListedObject]:
        names = await self.list(prefix, after, limit)
        there = ((name, self.objects.get(name)) for name in names)
        return [ListedObject(name, len(data), self._times_us.get(name, 0)) for name, data in there if data is not None]

    def uri(self, name: str) -> str:
        """As PayloadStore; no other process can open it."""
        return f"memory:///{check_name(name)}"

    async def receive(self, name: str, chunks: AsyncIterator[bytes], size: int, sha256: str | None) -> str | None:
        with self._act("receive", check_name(name)):
            data = bytearray()
            async for chunk in chunks:
                data += chunk
                if len(data) > size:
                    break
            check_size(len(data), size)
            check_digest(digest := hashlib.sha256(data).hexdigest(), sha256)
            if name in self.objects:
                return None
            self.objects[name] = bytes(data)
            self._times_us[name] = self.clock.now_us()
            return digest

    async def copy(self, name: str, to: str) -> None:
        with self._act("copy", check_name(to)):
            self.objects.setdefault(to, self._get(name))
            self._times_us.setdefault(to, self.clock.now_us())

    async def digest(self, name: str) -> tuple[int, str | None]:
        """As PayloadStore; it has no digests."""
        return await self.size(name), None

    def _get(self, name: str) -> bytes:
        try:
            return self.objects[name]
        except KeyError:
            raise FileNotFoundError(name) from None

    @contextmanager
    def _act(self, act: str, name: str) -> Iterator[None]:
        self.faults(f"before {act}", name)
        yield
        self.faults(f"after {act}", name)

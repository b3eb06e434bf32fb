"""How many requests a store got, by operation: what a store on the network is paid by."""

from collections import Counter
from typing import Any, BinaryIO, cast

from seaweedq.storage.interface import Data, ObjectStore, PayloadStore

OF_PAYLOADS = {"receive", "digest", "begin_parts", "list_parts", "end_parts", "abort_parts"}  # signing asks nobody


class Counted:
    """An ObjectStore that counts in `requests` what is asked of another: create, read, size, list, delete, open, and
    OF_PAYLOADS.

    Calls are counted, when they begin; those of payloads when they are looked up. All else that the other has is had
    through it; `payloads` is this store as one of payloads.
    """

    def __init__(self, store: ObjectStore) -> None:
        self.requests: Counter[str] = Counter()
        self._store = store
        self.payloads = cast(PayloadStore, self)

    async def create(self, name: str, data: Data) -> bool:
        """As ObjectStore."""
        self.requests["create"] += 1
        return await self._store.create(name, data)

    async def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """As ObjectStore."""
        self.requests["read"] += 1
        return await self._store.read(name, start, end)

    async def size(self, name: str) -> int:
        """As ObjectStore."""
        self.requests["size"] += 1
        return await self._store.size(name)

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[str]:
        """As ObjectStore."""
        self.requests["list"] += 1
        return await self._store.list(prefix, after, limit)

    async def delete(self, name: str) -> None:
        """As ObjectStore."""
        self.requests["delete"] += 1
        await self._store.delete(name)

    def open(self, name: str) -> BinaryIO:
        """As ObjectStore."""
        self.requests["open"] += 1
        return self._store.open(name)

    def __getattr__(self, name: str) -> Any:
        if name in OF_PAYLOADS:
            self.requests[name] += 1
        return getattr(self._store, name)

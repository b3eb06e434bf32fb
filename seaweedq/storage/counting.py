"""Counts a store's requests by operation, since a store on the network charges for them."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, BinaryIO, cast

from seaweedq.concurrency.pools import Pool
from seaweedq.concurrency.signal import Signal
from seaweedq.storage.interface import Data, Listed, ObjectStore, PayloadStore

PAYLOAD_REQUESTS = {
    "receive",
    "copy",
    "digest",
    "begin_parts",
    "list_parts",
    "end_parts",
    "abort_parts",
}  # signing sends no request


class Counted:
    """An ObjectStore that passes all calls to another and counts them in `requests`: create, read, size, list, delete,
    open, and PAYLOAD_REQUESTS.

    A call is counted when it begins; a payload request when its method is looked up. All other attributes are those of
    the other store. `payloads` is this object, typed as a PayloadStore.
    """

    def __init__(self, store: ObjectStore) -> None:
        self.requests: Counter[str] = Counter()
        self._store = store
        self.payloads = cast(PayloadStore, self)

    @property
    def readers(self) -> Pool:
        """As ObjectStore."""
        return self._store.readers

    @property
    def worked(self) -> Signal:
        """As ObjectStore."""
        return self._store.worked

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

    async def age_s(self, name: str) -> float:
        """As ObjectStore."""
        self.requests["age"] += 1
        return await self._store.age_s(name)

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[str]:
        """As ObjectStore."""
        self.requests["list"] += 1
        return await self._store.list(prefix, after, limit)

    async def listed(self, prefix: str, after: str = "", limit: int = 1000) -> Sequence[Listed]:
        """As ObjectStore; it counts as `list`."""
        self.requests["list"] += 1
        return await self._store.listed(prefix, after, limit)

    async def delete(self, name: str) -> None:
        """As ObjectStore."""
        self.requests["delete"] += 1
        await self._store.delete(name)

    def open(self, name: str) -> BinaryIO:
        """As ObjectStore."""
        self.requests["open"] += 1
        return self._store.open(name)

    def __getattr__(self, name: str) -> Any:
        if name in PAYLOAD_REQUESTS:
            self.requests[name] += 1
        return getattr(self._store, name)

"""Counts a store's requests by operation, with their bytes and durations, since a store on the network charges for
them.
"""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any, BinaryIO, TypeVar, cast

from seaweedq.clock import Clock, Durations, by_outcome
from seaweedq.concurrency.futures import Signal
from seaweedq.concurrency.pools import Pool
from seaweedq.storage.interface import Data, ListedObject, ObjectStore, PayloadStore
from seaweedq.storage.ranges import RangeReader

TIMED = ("create", "read", "size", "age", "list", "delete", "open")
PAYLOAD_REQUESTS = {"copy", "digest", "begin_parts", "list_parts", "end_parts", "abort_parts"}  # signing sends none
T = TypeVar("T")


class InstrumentedStore:
    """An ObjectStore that passes all calls to another and counts them in `requests`: those of TIMED, `range` for each
    further part of an open file, `receive`, and PAYLOAD_REQUESTS.

    A call is counted when it begins; a payload request when its method is looked up. `sent` and `received` are bytes of
    objects by operation: payloads that clients exchange with the store itself, and files that a local store opens, do
    not pass here. `durations` are those of TIMED by outcome; a store that answers that there is no such object, or one
    already, is ok. All other attributes are those of the other store. `payloads` is this object as a PayloadStore.
    """

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self.requests: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self.durations: dict[str, dict[str, Durations]] = {one: by_outcome("ok", "failed") for one in TIMED}
        self._store = store
        self._clock = clock
        self.payloads = cast(PayloadStore, self)

    @property
    def readers(self) -> Pool:
        return self._store.readers

    @property
    def worked(self) -> Signal:
        return self._store.worked

    async def create(self, name: str, data: Data) -> bool:
        self.sent["create"] += memoryview(data).nbytes
        return await self._timed("create", self._store.create(name, data))

    async def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        data = await self._timed("read", self._store.read(name, start, end))
        self.received["read"] += len(data)
        return data

    async def size(self, name: str) -> int:
        return await self._timed("size", self._store.size(name))

    async def age_s(self, name: str) -> float:
        return await self._timed("age", self._store.age_s(name))

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[str]:
        return await self._timed("list", self._store.list(prefix, after, limit))

    async def listed(self, prefix: str, after: str = "", limit: int = 1000) -> Sequence[ListedObject]:
        """As ObjectStore; it counts as `list`."""
        return await self._timed("list", self._store.listed(prefix, after, limit))

    async def delete(self, name: str) -> None:
        await self._timed("delete", self._store.delete(name))

    def open(self, name: str) -> BinaryIO:
        self.requests["open"] += 1
        began_s = self._clock.monotonic_s()
        try:
            file = self._store.open(name)
        except Exception as error:
            self._took("open", error, began_s)
            raise
        self._took("open", None, began_s)
        if isinstance(file, RangeReader):
            self.received["open"] += file.observe(self._fetched)
        return file

    async def receive(self, name: str, chunks: AsyncIterator[bytes], size: int, sha256: str | None) -> str | None:
        self.requests["receive"] += 1
        self.sent["receive"] += size
        return await cast(PayloadStore, self._store).receive(name, chunks, size, sha256)

    async def _timed(self, operation: str, answer: Awaitable[T]) -> T:
        self.requests[operation] += 1
        began_s = self._clock.monotonic_s()
        try:
            found = await answer
        except Exception as error:
            self._took(operation, error, began_s)
            raise
        self._took(operation, None, began_s)
        return found

    def _took(self, operation: str, error: Exception | None, began_s: float) -> None:
        outcome = "ok" if error is None or isinstance(error, FileNotFoundError) else "failed"
        self.durations[operation][outcome].add(self._clock.monotonic_s() - began_s)

    def _fetched(self, size: int) -> None:
        self.requests["range"] += 1
        self.received["range"] += size

    def __getattr__(self, name: str) -> Any:
        if name in PAYLOAD_REQUESTS:
            self.requests[name] += 1
        return getattr(self._store, name)

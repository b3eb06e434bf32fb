"""One store with several endpoints, such as the gateways of a SeaweedFS cluster, all with equal rights.

Any endpoint serves any request, so the current one is used until it fails. A request that is safe to repeat is then
sent to the next. A create is never repeated here: its caller puts the same bytes again, and that goes to the next.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import BinaryIO, Protocol, TypeVar

from seaweedq.concurrency.futures import Signal
from seaweedq.concurrency.pools import Pool
from seaweedq.errors import StoreUnavailable
from seaweedq.storage.interface import Data, ListedObject, ObjectStore, Part, PayloadStore, SignedRequest

T = TypeVar("T")
logger = logging.getLogger("seaweedq")


class Endpoint(PayloadStore, Protocol):
    """A store at one endpoint, with connections of its own."""

    endpoint: str | None

    async def close(self) -> None:
        """Closes the connections."""


class Endpoints:
    """A PayloadStore over one or more endpoints of the same store."""

    presigns: bool = True

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._endpoints = list(endpoints)
        self._all = tuple(endpoints)  # those that were left out have connections, too
        self.worked = Signal()  # one, whichever endpoint a put has worked at

    @property
    def readers(self) -> Pool:
        return self._endpoints[0].readers

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        """Returns the endpoints that are in use, the current one first."""
        return tuple(self._endpoints)

    def leave_out(self, endpoint: ObjectStore) -> None:
        """Excludes an endpoint from now on."""
        self._endpoints = [each for each in self._endpoints if each is not endpoint]

    async def check_bucket(self) -> None:
        """As PayloadStore, at every endpoint: each must serve the same bucket."""
        for each in self.endpoints:
            await each.check_bucket()

    async def create(self, name: str, data: Data) -> bool:
        """As ObjectStore, at one endpoint. If it fails, the next create goes to another one."""
        used = self._endpoints[0]
        try:
            return await used.create(name, data)
        except StoreUnavailable as error:
            self._turn_from(used, error)
            raise

    async def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        return await self._anywhere(lambda store: store.read(name, start, end))

    async def size(self, name: str) -> int:
        return await self._anywhere(lambda store: store.size(name))

    async def age_s(self, name: str) -> float:
        return await self._anywhere(lambda store: store.age_s(name))

    async def list_parts(self, name: str, parts: str) -> list[Part]:
        return await self._anywhere(lambda store: store.list_parts(name, parts))

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[str]:
        return await self._anywhere(lambda store: store.list(prefix, after, limit))

    async def listed(self, prefix: str, after: str = "", limit: int = 1000) -> Sequence[ListedObject]:
        return await self._anywhere(lambda store: store.listed(prefix, after, limit))

    async def delete(self, name: str) -> None:
        await self._anywhere(lambda store: store.delete(name))

    def open(self, name: str) -> BinaryIO:
        """As ObjectStore. The reader stays with the endpoint that opened it."""
        for used in self.endpoints[:-1]:
            try:
                return used.open(name)
            except StoreUnavailable as error:
                self._turn_from(used, error)
        return self.endpoints[-1].open(name)

    def uri(self, name: str) -> str:
        """As PayloadStore; the same for all endpoints."""
        return self._endpoints[0].uri(name)

    async def receive(self, name: str, chunks: AsyncIterator[bytes], size: int, sha256: str | None) -> str | None:
        """As PayloadStore, at the current endpoint."""
        return await self._endpoints[0].receive(name, chunks, size, sha256)

    async def digest(self, name: str) -> tuple[int, str | None]:
        return await self._anywhere(lambda store: store.digest(name))

    async def presign_put(
        self, name: str, expires_s: int, size: int, content_type: str, sha256: str | None
    ) -> SignedRequest:
        """As PayloadStore, for the current endpoint: a signature is valid for one host alone."""
        return await self._endpoints[0].presign_put(name, expires_s, size, content_type, sha256)

    async def presign_get(self, name: str, expires_s: int) -> SignedRequest:
        """As PayloadStore, for the current endpoint."""
        return await self._endpoints[0].presign_get(name, expires_s)

    async def presign_part(self, name: str, parts: str, number: int, expires_s: int, size: int) -> SignedRequest:
        """As PayloadStore, for the current endpoint; the parts of one upload may arrive through several."""
        return await self._endpoints[0].presign_part(name, parts, number, expires_s, size)

    async def begin_parts(self, name: str, content_type: str) -> str:
        return await self._anywhere(lambda store: store.begin_parts(name, content_type))

    async def end_parts(self, name: str, parts: str, found: Sequence[Part]) -> None:
        await self._anywhere(lambda store: store.end_parts(name, parts, found))

    async def abort_parts(self, name: str, parts: str) -> None:
        await self._anywhere(lambda store: store.abort_parts(name, parts))

    async def sweep_temporary(self) -> int:
        """Removes nothing, since an interrupted put leaves nothing behind. Returns 0."""
        return 0

    async def close(self) -> None:
        """Closes all connections."""
        for each in self._all:
            await each.close()

    async def _anywhere(self, act: Callable[[Endpoint], Awaitable[T]]) -> T:
        *others, last = self.endpoints
        for used in others:
            try:
                return await act(used)
            except StoreUnavailable as error:
                self._turn_from(used, error)
        return await act(last)

    def _turn_from(self, used: Endpoint, error: StoreUnavailable) -> None:
        """Moves the endpoint to the end of the list, unless another call has done so already."""
        first, *others = self._endpoints
        if others and first is used:
            self._endpoints = [*others, first]
            logger.warning("switching from the store's endpoint %s to %s: %s", used.endpoint, others[0].endpoint, error)

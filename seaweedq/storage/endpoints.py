"""One store that is reached in several ways, such as the gateways of a SeaweedFS cluster, none of them special.

Any endpoint serves any request, so the one in use stays in use until it fails. What may be sent again then goes to the
next; a create never does by itself, for its callers put the same bytes again, and that goes to the next.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import BinaryIO, Protocol, TypeVar

from seaweedq.errors import StoreUnavailable
from seaweedq.storage.interface import Data, ObjectStore

T = TypeVar("T")
logger = logging.getLogger("seaweedq")


class Endpoint(ObjectStore, Protocol):
    """A store that knows where it is asked for, holds connections, and gives URLs to others."""

    endpoint: str | None

    async def presign_upload(
        self, name: str, expires_s: int, content_type: str | None = None, size: int | None = None
    ) -> str:
        """A URL for one PUT."""

    async def presign_download(self, name: str, expires_s: int) -> str:
        """A URL for GET."""

    async def close(self) -> None:
        """Close the connections."""


class Endpoints:
    """An ObjectStore over at least one endpoint of the same store."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._endpoints = list(endpoints)

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        """Those that are turned to, the one in use first."""
        return tuple(self._endpoints)

    def leave_out(self, endpoint: ObjectStore) -> None:
        """Never turn to this one."""
        self._endpoints = [each for each in self._endpoints if each is not endpoint]

    async def create(self, name: str, data: Data) -> bool:
        """As ObjectStore, at one endpoint; where that fails the next create goes to another."""
        used = self._endpoints[0]
        try:
            return await used.create(name, data)
        except StoreUnavailable as error:
            self._turn_from(used, error)
            raise

    async def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """As ObjectStore."""
        return await self._anywhere(lambda store: store.read(name, start, end))

    async def size(self, name: str) -> int:
        """As ObjectStore."""
        return await self._anywhere(lambda store: store.size(name))

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[str]:
        """As ObjectStore."""
        return await self._anywhere(lambda store: store.list(prefix, after, limit))

    async def delete(self, name: str) -> None:
        """As ObjectStore."""
        await self._anywhere(lambda store: store.delete(name))

    def open(self, name: str) -> BinaryIO:
        """As ObjectStore. The reader stays with the endpoint that it was opened at."""
        for used in self.endpoints[:-1]:
            try:
                return used.open(name)
            except StoreUnavailable as error:
                self._turn_from(used, error)
        return self.endpoints[-1].open(name)

    async def presign_upload(
        self, name: str, expires_s: int, content_type: str | None = None, size: int | None = None
    ) -> str:
        """A URL of the endpoint in use that takes one PUT of the object."""
        return await self._endpoints[0].presign_upload(name, expires_s, content_type, size)

    async def presign_download(self, name: str, expires_s: int) -> str:
        """A URL of the endpoint in use that takes a GET of the object."""
        return await self._endpoints[0].presign_download(name, expires_s)

    async def sweep_temporary(self) -> int:
        """A put that was cut off leaves nothing."""
        return 0

    async def close(self) -> None:
        """Close all connections."""
        for each in self._endpoints:
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
        """Put it last, unless somebody has done so already."""
        first, *others = self._endpoints
        if others and first is used:
            self._endpoints = [*others, first]
            logger.warning("turning from %s to %s: %s", used.endpoint, others[0].endpoint, error)

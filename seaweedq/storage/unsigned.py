"""The payload methods that a store of one machine lacks: signed requests and multipart uploads."""

from collections.abc import Sequence
from typing import NoReturn

from seaweedq.storage.interface import Part, SignedRequest


class Unsigned:
    """A store whose payloads pass through `receive`. All other payload methods raise NotImplementedError: check
    `presigns` first."""

    presigns: bool = False

    async def check_bucket(self) -> None:
        """As PayloadStore: nothing has to be there before the first object."""

    async def presign_put(
        self, name: str, expires_s: int, size: int, content_type: str, sha256: str | None
    ) -> SignedRequest:
        """Raises NotImplementedError."""
        self._refuse()

    async def presign_get(self, name: str, expires_s: int) -> SignedRequest:
        """Raises NotImplementedError."""
        self._refuse()

    async def begin_parts(self, name: str, content_type: str) -> str:
        """Raises NotImplementedError."""
        self._refuse()

    async def presign_part(self, name: str, parts: str, number: int, expires_s: int, size: int) -> SignedRequest:
        """Raises NotImplementedError."""
        self._refuse()

    async def list_parts(self, name: str, parts: str) -> list[Part]:
        """Raises NotImplementedError."""
        self._refuse()

    async def end_parts(self, name: str, parts: str, found: Sequence[Part]) -> None:
        """Raises NotImplementedError."""
        self._refuse()

    async def abort_parts(self, name: str, parts: str) -> None:
        """Raises NotImplementedError."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise NotImplementedError(f"{type(self).__name__} has no signed requests and no multipart uploads")

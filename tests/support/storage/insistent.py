"""An S3 store for the contract of creates over a server that loses answers."""

from seaweedq.errors import StoreUnavailable
from seaweedq.storage.interface import Data
from seaweedq.storage.s3 import S3Store

TRIES = 20


class Insistent(S3Store):
    """Creates as chains and journals do: after an unknown outcome it puts the same bytes again, and compares.

    Others may get the answers in between, so it tries more often than answers are lost in a row.
    """

    async def create(self, name: str, data: Data) -> bool:
        was_there = await self._is_there(name)
        for attempt in range(TRIES):
            try:
                created = await super().create(name, data)
                return created or (attempt > 0 and not was_there and await self.read(name) == bytes(data))
            except StoreUnavailable:
                if attempt == TRIES - 1:
                    raise
        raise AssertionError("unreachable")

    async def _is_there(self, name: str) -> bool:
        try:
            return await self.size(name) >= 0
        except FileNotFoundError:
            return False

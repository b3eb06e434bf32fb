"""A store whose answers about segments wait until a test lets them go."""

import asyncio
from collections.abc import Sequence
from typing import Any

from seaweedq.storage.interface import ListedObject
from seaweedq.storage.memory import MemoryStore
from tests.support.brokers.in_process import Gate


class HeldStore(MemoryStore):
    """A store whose answers about segments a test can hold up, for everybody or for one task."""

    def __init__(self) -> None:
        super().__init__()
        self.gate: Gate | None = None
        self.who: asyncio.Task[Any] | None = None

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[str]:
        await self._hold()
        return await super().list(prefix, after, limit)

    async def listed(self, prefix: str, after: str = "", limit: int = 1000) -> Sequence[ListedObject]:
        await self._hold()
        return await super().listed(prefix, after, limit)

    async def size(self, name: str) -> int:
        await self._hold()
        return await super().size(name)

    async def _hold(self) -> None:
        if self.gate and self.who in (None, asyncio.current_task()):
            await self.gate()

"""A store in memory that fails, is slow, or does what it was asked for later, when who asked has long gone."""

import asyncio
from collections.abc import Callable

from seaweedq.errors import StoreUnavailable
from seaweedq.storage.interface import Data
from seaweedq.storage.memory import MemoryStore

Which = Callable[[str, bytes], bool]


class LateStore(MemoryStore):
    """What a test has told it to do holds for creates alone."""

    def __init__(self) -> None:
        super().__init__()
        self.slow_s = 0.0
        self.late: list[asyncio.Task[bool]] = []  # puts on their way
        self.gate = asyncio.Event()
        self._hold: Which | None = None
        self._fail: tuple[Which, bool] | None = None
        self._left = 0

    def hold(self, which: Which) -> None:
        """The next such put is under way until `deliver`."""
        self._hold, self.gate = which, asyncio.Event()

    async def deliver(self) -> list[bool]:
        """What is under way lands: whether it has created its object."""
        self.gate.set()
        return await asyncio.gather(*self.late)

    def fail(self, which: Which, happens: bool, times: int = 1) -> None:
        """The next such puts end with an error; whether they happen nevertheless."""
        self._fail, self._left = (which, happens), times

    @property
    def failures_left(self) -> int:
        """How many are still to come."""
        return self._left

    async def create(self, name: str, data: Data) -> bool:
        """As MemoryStore."""
        content = bytes(data)
        if self.slow_s and name.startswith("topics/"):
            await asyncio.sleep(self.slow_s)
        if self._hold and self._hold(name, content):
            self._hold = None
            loop = asyncio.get_running_loop()
            put = asyncio.Task(self._later(name, content), loop=loop)  # nobody's: it outlives who asked
            self.late.append(put)
            return await asyncio.shield(put)
        if self._left and self._fail and self._fail[0](name, content):
            self._left -= 1
            if self._fail[1]:
                await super().create(name, content)
            raise StoreUnavailable("503 from the store")
        return await super().create(name, content)

    async def _later(self, name: str, content: bytes) -> bool:
        await self.gate.wait()
        return await super().create(name, content)


def is_seal(name: str, data: bytes) -> bool:
    """Whether this is the last entry of a chain."""
    return name.startswith("topics/") and b'"seal":{' in data


def is_entry(name: str, data: bytes) -> bool:
    """Whether this is an entry of a chain."""
    return name.startswith("topics/")

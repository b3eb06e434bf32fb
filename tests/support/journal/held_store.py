"""A store whose creates wait until a test says what becomes of each, and hands that a test turns itself."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from seaweedq.errors import StoreUnavailable
from seaweedq.journal.object_format import SlotHeaders
from seaweedq.journal.object_journal import ObjectJournal
from seaweedq.journal.pacing import Pace
from seaweedq.storage.interface import Data
from seaweedq.storage.memory import MemoryStore
from tests.support.journal.sim_disk import CountedIds
from tests.support.levels import newest


@dataclass(eq=False)
class HeldPut:
    """A create under way: it lands when told so, and its answer comes, or is lost."""

    store: "HeldStore"
    name: str
    data: bytes
    answer: asyncio.Future[bool] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def slot(self) -> int:
        return int(self.name[-8:])

    def land(self) -> bool:
        """It takes effect; whoever waits hears nothing yet."""
        there = self.store.objects
        return there.setdefault(self.name, self.data) is self.data

    async def end(self) -> None:
        """It takes effect and is answered."""
        self.answer.set_result(self.land())
        await settle()

    async def lose(self) -> None:
        """Its answer is lost. Whether it has landed is another matter."""
        self.answer.set_exception(StoreUnavailable("no answer"))
        await settle()


class HeldStore(MemoryStore):
    """Creates of slots wait in `puts`, also those that nobody waits for any more. `requests` counts everything else."""

    def __init__(self) -> None:
        super().__init__(self._count)
        self.puts: list[HeldPut] = []
        self.requests: list[str] = []
        self.refuse: Callable[[str, str], bool] = lambda moment, name: False

    @property
    def slots(self) -> list[int]:
        return sorted(int(name[-8:]) for name in self.objects if name[-8:].isdigit())

    async def create(self, name: str, data: Data) -> bool:
        if not name[-8:].isdigit():
            return await super().create(name, data)
        put = HeldPut(self, name, bytes(bytearray(data)))  # a copy: no two are the same object
        self.puts.append(put)
        return await put.answer

    def _count(self, moment: str, name: str) -> None:
        self.requests.append(f"{moment} {name}")
        if self.refuse(moment, name):
            raise StoreUnavailable("as told")


class Hands:
    """A clock, and the sleeps that wait for it."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._sleeps: list[tuple[float, asyncio.Future[None]]] = []

    def monotonic_s(self) -> float:
        return self.now_s

    def now_us(self) -> int:
        return round(self.now_s * 1e6)

    async def sleep(self, seconds: float) -> None:
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleeps.append((self.now_s + seconds, ended))
        await ended

    async def turn(self, seconds: float) -> None:
        """Let time pass, and everybody act on it."""
        await settle()
        self.now_s += seconds
        due, self._sleeps = (
            [each for each in self._sleeps if each[0] <= self.now_s],
            [each for each in self._sleeps if each[0] > self.now_s],
        )
        for _, ended in due:
            if not ended.done():
                ended.set_result(None)
        await settle()


async def settle() -> None:
    """Let every task run until it waits for the test."""
    for _ in range(30):
        await asyncio.sleep(0)


def journal_on(
    store: MemoryStore, hands: Hands, window: int = 4, linger_s: float = 0, puts_per_s: float = 0
) -> ObjectJournal:
    return ObjectJournal(
        store, SlotHeaders("b", CountedIds(), newest), hands, Pace(window, linger_s, 0.25, puts_per_s), hands.sleep
    )

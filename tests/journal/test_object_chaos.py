"""A broker and two recoveries on a store that answers late, wrongly not at all, or twice: nothing acknowledged is lost.

The broker goes on while it is fenced, and the recoveries crash and begin again. What counts as safe in the end: every
commit that was acknowledged was released, or was read by the recovery that finished first.
"""

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count

import pytest

from seaweedq.clock import SystemClock
from seaweedq.errors import Fenced, JournalDamaged, StoreUnavailable
from seaweedq.journal.object_format import SlotHeaders, SlotKind, list_slots, read_header
from seaweedq.journal.object_journal import ObjectJournal
from seaweedq.journal.object_recovery import fence, read_slots, remove_slots
from seaweedq.journal.pacing import Pace
from seaweedq.storage.interface import Data
from seaweedq.storage.memory import MemoryStore
from tests.support.journal.claims import unbounded
from tests.support.journal.sim_disk import CountedIds, acks
from tests.support.levels import newest


class ShakyStore(MemoryStore):
    """Everything takes a while. Creates may fail before or after they happened, and happen again much later."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.chance = chance
        self.late: set[asyncio.Task[bool]] = set()

    async def create(self, name: str, data: Data) -> bool:
        await self.wait()
        fate = self.chance.random()
        if fate < 0.1:
            raise StoreUnavailable("before it happened")
        created = await super().create(name, data)
        if fate < 0.4:
            self.late.add(asyncio.create_task(self._again(name, data)))
        await self.wait()
        if fate < 0.25:
            raise StoreUnavailable("after it happened")
        return created

    async def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        await self.wait()
        return await super().read(name, start, end)

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[str]:
        await self.wait()
        return await super().list(prefix, after, self.chance.choice((limit, 1000)))

    async def delete(self, name: str) -> None:
        await self.wait()
        if self.chance.random() < 0.1:
            raise StoreUnavailable("not deleted")
        await super().delete(name)

    async def wait(self) -> None:
        await ticks(self.chance.choice((0, 1, 2, 8, 30)))

    async def _again(self, name: str, data: Data) -> bool:
        await ticks(self.chance.choice((1, 10, 100, 400)))
        return await MemoryStore.create(self, name, data)


@dataclass
class Seen:
    """What became of each commit, by its content."""

    acknowledged: set[int] = field(default_factory=set)
    released: set[int] = field(default_factory=set)
    recovered: list[set[int]] = field(default_factory=list)


async def broker(journal: ObjectJournal, seen: Seen, chance: random.Random) -> None:
    """Appends until it is fenced, several at a time, and releases some of what it acknowledged."""
    done: dict[int, int] = {}
    flights: list[asyncio.Task[None]] = []

    async def one(message: int) -> None:
        number = await journal.append(acks(b"%d" % message))
        done[number] = message
        seen.acknowledged.add(message)
        if chance.random() < 0.4:
            below = chance.choice(sorted(done)[-20:]) + 1
            seen.released |= {m for n, m in done.items() if n < below}
            journal.release(below)

    for message in count():
        await journal.pace(asyncio.Event())
        flights.append(asyncio.create_task(one(message)))
        await ticks(chance.choice((1, 1, 10, 100, 400)))
        if any(flight.done() and flight.exception() for flight in flights):
            break
    outcomes = await asyncio.gather(*flights, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} <= {type(None), Fenced}


async def ticks(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def recoverer(store: ShakyStore, seen: Seen, chance: random.Random) -> None:
    """Fences and reads, as often as it takes; then deletes, as often as it takes."""
    ids = CountedIds()
    ids.given = chance.randrange(10**9)
    while True:
        with suppress(StoreUnavailable):
            found: set[int] = set()
            headers = SlotHeaders("b", ids, newest)
            try:
                async with asyncio.timeout(chance.choice((0.001, 5))):  # a crash, maybe
                    async for commit in read_slots(store, "b", await fence(store, headers), unbounded):
                        found |= {int(bytes(frame.payload)) for frame in commit.frames}
            except TimeoutError:
                continue
            except JournalDamaged:
                assert seen.recovered, "nothing is lost here, so the other one has finished and deletes"
                break
            seen.recovered.append(found)
            break
    gone = False
    while not gone:
        with suppress(StoreUnavailable):
            await remove_slots(store, "b")
            gone = True


@pytest.mark.parametrize("seed", range(60))
async def test_nothing_acknowledged_is_lost(seed: int) -> None:
    chance, seen = random.Random(seed), Seen()
    store = ShakyStore(chance)

    headers = SlotHeaders("b", CountedIds(), newest)
    journal = ObjectJournal(store, headers, SystemClock(), Pace(4, idle_s=5), lambda seconds: ticks(int(seconds * 20)))
    working = asyncio.create_task(broker(journal, seen, chance))
    await ticks(chance.randrange(4000))
    await asyncio.gather(*(recoverer(store, seen, chance) for _ in range(2)))
    await asyncio.wait_for(working, 20)
    await asyncio.gather(*store.late)
    assert seen.acknowledged <= seen.released | seen.recovered[0]
    fences = [n for n in await list_slots(store, "b") if (await read_header(store, "b", n)).kind is SlotKind.FENCE]
    assert fences
    await journal.close()

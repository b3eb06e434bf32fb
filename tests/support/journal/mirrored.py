"""A mirrored journal over mirrors in memory, a store in memory, and the recoveries of it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from seaweedq.clock import Clock, SystemClock, SystemIds
from seaweedq.coordination import keys
from seaweedq.coordination.records import MirrorsRecord
from seaweedq.journal.mirrored_journal import MirroredJournal, MirrorRules
from seaweedq.journal.mirrored_recovery import DeadMirroredJournal
from seaweedq.journal.object_format import SlotHeaders
from seaweedq.journal.object_journal import ObjectJournal
from seaweedq.journal.pacing import Pace
from seaweedq.storage.memory import MemoryStore
from tests.support.journal.claims import unbounded
from tests.support.journal.mirrors import MemoryMirrors
from tests.support.levels import newest

BROKER = "b"
KEY = keys.MIRRORS.key(BROKER)


async def until(holds: Callable[[], bool]) -> None:
    """Waits, at most 30 s."""
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.005)


@dataclass
class Mirrored:
    """The journal of BROKER, and what it stands on."""

    rules: MirrorRules = field(default_factory=lambda: MirrorRules(exposure_s=None, patience_s=0.2))
    mirrors: MemoryMirrors = field(default_factory=MemoryMirrors)
    store: MemoryStore = field(default_factory=MemoryStore)
    clock: Clock = field(default_factory=SystemClock)

    async def begin(self, *mirrors: str) -> MirroredJournal:
        """A journal whose set has these mirrors."""
        self.mirrors.add(*mirrors)
        slots = ObjectJournal(self.store, self.headers, SystemClock(), Pace(4))
        journal = MirroredJournal(slots, self.store, self.mirrors, BROKER, self.rules, self.clock)
        await until(lambda: len(journal.mirrors) == min(len(mirrors), self.rules.count))
        return journal

    @property
    def headers(self) -> SlotHeaders:
        return SlotHeaders(BROKER, SystemIds(), newest)

    async def set_of(self) -> MirrorsRecord | None:
        """What the key says."""
        there = await self.mirrors.coordination.get(KEY)
        return keys.MIRRORS.require(there).record if there else None

    def dead(self, is_given_up: bool = False) -> DeadMirroredJournal:
        """The journal as one more recovery sees it."""
        return DeadMirroredJournal(self.store, self.headers, self.mirrors, SystemIds(), False, is_given_up)

    async def recovered(self, is_given_up: bool = False) -> list[bytes]:
        """The payloads that a recovery finds."""
        dead = self.dead(is_given_up)
        await dead.fence()
        return [bytes(frame.payload) async for commit in dead.commits(unbounded) for frame in commit.frames]

    def kill(self, *brokers: str) -> None:
        """Ends mirrors, with what they hold."""
        for broker in brokers:
            self.mirrors.all[broker].dead = True

    @property
    def slots(self) -> list[str]:
        """The names of all slots in the store."""
        return sorted(name for name in self.store.objects if name.startswith("_journals/"))

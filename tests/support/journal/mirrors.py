"""The cluster as mirrored journals see it, in memory: brokers with their holdings, and calls that a test may spoil."""

import asyncio
from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from seaweedq.clock import SystemClock, SystemIds
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Put
from seaweedq.coordination.memory import MemoryCoordination
from seaweedq.coordination.records import BrokerRecord, JournalRecord, MirrorsRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import Unavailable
from seaweedq.journal.holdings import HeldCall, HoldAnswer, Holdings
from seaweedq.journal.interface import FoundHolding, MirrorBroker
from tests.support import privates

LIMIT = 1 << 30


@dataclass
class OneMirror:
    """A broker: its zone, what it holds, whether it is dead or silent, and whether it takes more."""

    holdings: Holdings
    zone: str = ""
    dead: bool = False
    silent: bool = False
    takes_more: bool = True


@dataclass
class MemoryMirrors:
    """The brokers by id, as `owner` sees them."""

    owner: str = "b"
    zone: str = ""
    coordination: MemoryCoordination = field(default_factory=lambda: MemoryCoordination(SystemClock()))
    all: dict[str, OneMirror] = field(default_factory=dict)
    calls: int = 0

    def __post_init__(self) -> None:
        """The key of the set comes with that of the journal, while the owner lives."""
        of_set = Put(keys.MIRRORS.key(self.owner), keys.MIRRORS.encode(Versioned.new(MirrorsRecord("open"))))
        record = Versioned.new(JournalRecord("mirrored", "home"))
        of_journal = Put(keys.JOURNALS.key(self.owner), keys.JOURNALS.encode(record))
        of_owner = Put(keys.BROKERS.key(self.owner), keys.BROKERS.encode(Versioned.new(BrokerRecord("", "b", 0))))
        privates.engine(self.coordination).commit([], [of_set, of_journal, of_owner])

    def add(self, *brokers: str, zone: str = "", limit: int = LIMIT) -> None:
        """Lets brokers live, empty."""
        for broker in brokers:
            self.all[broker] = OneMirror(Holdings(limit, SystemIds()), zone)

    def brokers(self) -> Mapping[str, MirrorBroker]:
        return {id: MirrorBroker(one.zone, one.takes_more) for id, one in self.all.items() if not one.dead}

    async def hold(self, broker: str, data: bytes, timeout_s: float) -> HoldAnswer:
        self.calls += 1
        return (await self._reach(broker, timeout_s)).hold(self.owner, data)

    async def fence(self, owner: str) -> tuple[list[FoundHolding], list[str]]:
        found, silent = [], []
        for broker in self.brokers():
            try:
                held = await self._reach(broker, 0.1)
            except Unavailable:
                silent.append(broker)
            else:
                found += [FoundHolding(broker, one) for one in held.fence(owner)]
        return found, silent

    def own(self, owner: str) -> Set[str]:
        return set()

    async def held(self, broker: str, call: HeldCall) -> bytes:
        return (await self._reach(broker, 0.1)).held(call)

    async def _reach(self, broker: str, timeout_s: float) -> Holdings:
        await asyncio.sleep(0)
        one = self.all[broker]
        if one.silent and not one.dead:
            await asyncio.sleep(timeout_s)
        if one.dead or one.silent:
            raise Unavailable(f"{broker} does not answer")
        return one.holdings

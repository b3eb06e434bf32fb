"""What a process holds of other brokers' journals: it goes when nobody can need it, and a stop waits for that."""

import asyncio
from typing import Any

import pytest

from seaweedq.broker.recovery.held_journals import HeldJournals
from seaweedq.clock import SystemClock, SystemIds
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Delete, Put
from seaweedq.coordination.memory import MemoryCoordination
from seaweedq.coordination.records import JournalRecord, MirrorMember, MirrorsRecord
from seaweedq.coordination.roster import Roster
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import CoordinationUnavailable
from seaweedq.journal.backends import ObjectJournals
from seaweedq.journal.holdings import HoldHeader, Holdings, PackedCommit, encode_hold
from seaweedq.journal.object_format import put_done
from seaweedq.storage.memory import MemoryStore
from tests.support.journal.sim_disk import acks


class World:
    """A process that holds one commit of the broker `o`."""

    def __init__(self) -> None:
        self.coordination = MemoryCoordination(SystemClock())
        self.roster = Roster(self.coordination)
        self.holdings = Holdings(1 << 20, SystemIds())
        self.store = MemoryStore()
        nothing: Any = None
        journals = ObjectJournals(nothing, self.store, nothing, SystemIds(), nothing, nothing)
        self.held = HeldJournals(self.holdings, journals, self.coordination, self.roster)
        opened = self.holdings.hold("o", encode_hold(HoldHeader(), ()))
        self.holding = opened.holding
        commits = [PackedCommit.pack(acks(b"0"))]
        self.holdings.hold("o", encode_hold(HoldHeader(self.holding), commits))
        assert self.holdings.size_bytes

    async def journal(self, **more: bool) -> None:
        """The key of the owner's journal."""
        record = Versioned.new(JournalRecord("mirrored", "home", **more))  # type: ignore[arg-type]
        await self.coordination.commit([], [Put(keys.JOURNALS.key("o"), keys.JOURNALS.encode(record))])

    async def set_of(self, *holdings: str) -> None:
        """The key of the owner's set."""
        members = tuple(MirrorMember("m", one) for one in holdings)
        record = Versioned.new(MirrorsRecord("open", members))
        await self.coordination.commit([], [Put(keys.MIRRORS.key("o"), keys.MIRRORS.encode(record))])


async def test_it_stays_as_long_as_the_journal_may_be_needed() -> None:
    """Also where the view is behind, and where no set names it yet."""
    world = World()
    await world.journal()
    await world.held.drop()
    assert world.holdings.of("o")
    await world.roster.load()
    await world.held.drop()
    assert world.holdings.of("o")


async def test_it_stays_if_coordination_forgets_the_journal() -> None:
    """As a restored backup of coordination from before the owner joined does. The last copies were dropped then."""
    world = World()
    await world.journal()
    await world.roster.load()
    await world.coordination.commit([], [Delete(keys.JOURNALS.key("o"))])
    await world.roster.load()
    await world.held.drop()
    assert world.holdings.count("o") == 1


async def test_an_empty_one_goes_with_the_key() -> None:
    world = World()
    world.holdings.hold("o", encode_hold(HoldHeader(world.holding, stored=1, first=1), ()))
    await world.held.drop()
    assert world.holdings.of("o") == set()


@pytest.mark.parametrize("how", ["done", "recovered"])
async def test_it_goes_with_the_journal(how: str) -> None:
    world = World()
    await world.journal()
    await world.roster.load()
    if how == "done":
        await put_done(world.store, "o")
        await world.coordination.commit([], [Delete(keys.JOURNALS.key("o"))])
    else:
        await world.journal(recovered=True)
    await world.roster.load()
    await world.held.drop()
    assert world.holdings.of("o") == set()
    assert world.holdings.size_bytes == 0


async def test_a_stop_waits_until_no_set_names_it() -> None:
    world = World()
    await world.journal()
    await world.set_of(world.holding)
    waiting = asyncio.create_task(world.held.hand_over())
    await asyncio.sleep(0.3)
    assert not waiting.done()
    await world.set_of("another")
    async with asyncio.timeout(15):
        await waiting


async def test_a_stop_waits_while_coordination_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    await world.journal()
    await world.set_of(world.holding)
    asked = asyncio.Event()

    async def away(key: str) -> None:
        asked.set()
        raise CoordinationUnavailable("as told")

    with monkeypatch.context() as patch:
        patch.setattr(world.coordination, "get", away)
        waiting = asyncio.create_task(world.held.hand_over())
        await asked.wait()
        await asyncio.sleep(0)
        assert not waiting.done()
    await asyncio.sleep(0.3)
    assert not waiting.done(), "the set names it still"
    await world.set_of("another")
    async with asyncio.timeout(15):
        await waiting

"""A third kind of journal, here a toy quorum of peers, comes in without an edit in broker/: the seam is enough."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from seaweedq.clock import Clock, Ids
from seaweedq.coordination.interface import Put
from seaweedq.coordination.records import JournalRecord
from seaweedq.errors import Fenced, JournalUnavailable
from seaweedq.formats import Level
from seaweedq.journal.backends import JournalKinds
from seaweedq.journal.disk import Disk
from seaweedq.journal.holdings import Holdings
from seaweedq.journal.home_folder import HomeFolder
from seaweedq.journal.interface import (
    NOTHING_SEEN,
    Claim,
    DeadJournal,
    Journal,
    Journals,
    JournalSetup,
    JournalUnreachable,
    Mirrors,
    NeededJournal,
    Seen,
    SeenNow,
)
from seaweedq.segments.frames import Commit, Frame
from seaweedq.segments.terms import Term
from seaweedq.settings import Settings
from seaweedq.storage.interface import ObjectStore
from tests.support.brokers import environments, inside
from tests.support.brokers.in_process import make_topic, publish
from tests.support.brokers.in_process_cluster import in_loop, until

pytestmark = pytest.mark.brokers

QUORUM = 2


@dataclass
class Peer:
    """One of three that keep commits by broker and number; one that was told of a fence takes nothing more."""

    up: bool = True
    fenced: set[str] = field(default_factory=set)
    commits: dict[str, dict[int, Commit]] = field(default_factory=dict)


class QuorumJournal:
    """A commit is durable when two of three peers have it."""

    window = 1
    most_unreleased = 0
    mirrors: tuple[str, ...] = ()
    unreleased_bytes = 0
    budget = None

    def __init__(self, peers: Sequence[Peer], broker: str) -> None:
        self._peers, self._broker, self._next = peers, broker, 0

    async def append(self, frames: Sequence[Frame]) -> int:
        reached = [peer for peer in self._peers if peer.up]
        if len(reached) < QUORUM:
            raise JournalUnavailable("too few peers answer")
        if any(self._broker in peer.fenced for peer in reached):
            raise Fenced("a recovery was here")
        commit = Commit(self._next, tuple(frames))
        for peer in reached:
            peer.commits.setdefault(self._broker, {})[self._next] = commit
        self._next += 1
        return commit.number

    async def discard_failed(self) -> None:
        pass

    async def pace(self, is_full: asyncio.Event) -> None:
        pass

    def release(self, below: int) -> None:
        pass

    async def close(self) -> None:
        pass

    async def remove(self, stated: Seen = NOTHING_SEEN) -> None:
        for peer in self._peers:
            peer.commits.pop(self._broker, None)


class DeadQuorum:
    """Fenced once two of three peers know it: any two that answer then have every acknowledged commit."""

    def __init__(self, peers: Sequence[Peer], broker: str) -> None:
        self._peers, self._broker = peers, broker

    async def fence(self) -> None:
        reached = [peer for peer in self._peers if peer.up]
        if len(reached) < QUORUM:
            raise JournalUnreachable("too few peers answer")
        for peer in reached:
            peer.fenced.add(self._broker)

    async def look(self) -> None:
        pass

    async def commits(self, claim: Claim) -> AsyncGenerator[Commit, None]:
        found: dict[int, Commit] = {}
        for peer in self._peers:
            found |= peer.commits.get(self._broker, {}) if peer.up else {}
        for number in sorted(found):
            await claim(found[number].size_bytes)
            yield found[number]

    async def terms(self) -> dict[tuple[str, int], Term]:
        return {}

    async def remove(self, stated: Seen = NOTHING_SEEN) -> None:
        await QuorumJournal(self._peers, self._broker).remove()

    async def close(self) -> None:
        pass


class Quorums:
    """The backend: its key says which peers, here all that there are."""

    def __init__(self, home: HomeFolder, peers: Sequence[Peer]) -> None:
        self._home, self._peers = home, peers

    def describe(self, broker: str) -> JournalRecord:
        return JournalRecord("quorum", self._home.id)

    def first_keys(self, broker: str) -> Sequence[Put]:
        return ()

    def create(self, broker: str) -> Journal:
        return QuorumJournal(self._peers, broker)

    def is_exclusive(self, record: JournalRecord) -> bool:
        return False

    def open_dead(self, broker: str, record: JournalRecord) -> DeadJournal:
        return DeadQuorum(self._peers, broker)

    async def needed(self) -> list[NeededJournal]:
        return []

    async def is_done(self, broker: str) -> bool:
        return False

    async def stated(self) -> Seen:
        return NOTHING_SEEN

    async def sweep(self, read_known: Callable[[], Awaitable[Container[str]]]) -> int:
        return 0


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> list[Peer]:
    """Three peers, which all brokers of the test's loop use for their journals."""
    made = [Peer(), Peer(), Peer()]

    def setup(
        settings: Settings, clock: Clock, ids: Ids, environ: Mapping[str, str], disk: Disk | None = None
    ) -> JournalSetup:
        home = HomeFolder(settings.home, disk or Disk(), ids)

        def opened(store: ObjectStore, level: Level, seen: SeenNow, mirrors: Mirrors) -> Journals:
            return JournalKinds({"quorum": Quorums(home, made)}, "quorum")

        return JournalSetup(home, opened, Holdings(1 << 20, ids))

    monkeypatch.setattr(environments, "journal_setup", setup)
    return made


async def test_what_a_quorum_acknowledged_outlives_its_broker(tmp_path: Path, peers: list[Peer]) -> None:
    async with in_loop(tmp_path, 2) as together:
        one, two = together.brokers
        await publish(one, await make_topic(one, "t"), "1", "2", "3")
        peers[0].up = False
        await publish(one, inside.topic(one, "t"), "4")
        peers[0].up = True
        peers[1].up = peers[2].up = False
        dead = one.id
        await together.crash(one)
        await until(lambda: dead in inside.recovery(two)._unreached)
        assert inside.catalog(two).owned_by(dead), "what too few peers can tell is unknown, not empty"
        peers[2].up = True
        await until(lambda: dead not in inside.roster(two).journals)
        topic = inside.topic(two, "t")
        await until(lambda: inside.catalog(two).segment(topic, 0).record.owner == two.id)
        opened = await inside.ownership(two).mine(topic)
        assert [segment.end for segment in opened] == [4]
        assert dead in peers[2].fenced


async def test_a_broker_that_stops_in_order_leaves_no_journal(tmp_path: Path, peers: list[Peer]) -> None:
    async with in_loop(tmp_path, 2) as together:
        one, two = together.brokers
        await publish(one, await make_topic(one, "t"), "1")
        name = one.id
        del together.apps[one.process.url]
        await one.stop()
        await until(lambda: name not in inside.roster(two).journals)
        assert all(name not in peer.commits for peer in peers)

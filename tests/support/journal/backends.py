"""The backends of journals that the contracts run over: a broker's process, and others that recover what it left.

A new backend joins by a line in BACKENDS.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from seaweedq.clock import SystemClock
from seaweedq.coordination.records import JournalRecord
from seaweedq.errors import StoreUnavailable
from seaweedq.journal.backends import (
    MIRRORED,
    OBJECT,
    FileJournals,
    JournalKinds,
    MirroredJournals,
    ObjectJournals,
)
from seaweedq.journal.disk import Disk
from seaweedq.journal.file_journal import file_path, journal_files
from seaweedq.journal.file_recovery import read_journal
from seaweedq.journal.home_folder import HomeFolder
from seaweedq.journal.interface import NOTHING_SEEN, DeadJournal, Journal, Journals
from seaweedq.journal.mirrored_journal import MirroredJournal, MirrorRules
from seaweedq.journal.object_format import SlotHeader, SlotKind, encode_slot, list_journal, list_slots, slot_name
from seaweedq.journal.object_recovery import read_slots
from seaweedq.journal.pacing import Pace
from seaweedq.segments.frames import Commit, Frame
from seaweedq.storage.memory import MemoryStore
from tests.support.fixtures.services import s3_store
from tests.support.journal.claims import unbounded
from tests.support.journal.memory_journal import MemoryJournal, MemoryJournals
from tests.support.journal.mirrors import MemoryMirrors
from tests.support.journal.sim_disk import CountedIds, acks
from tests.support.levels import newest
from tests.support.storage.insistent import Insistent
from tests.support.tiers import marked

BROKER = "b"
FILE_BYTES = 1_000


class FailingDisk(Disk):
    """A disk that refuses the next removals but for the first `allowed`."""

    allowed: int | None = None

    def remove(self, path: Path) -> None:
        if self.allowed is not None:
            if not self.allowed:
                raise OSError("as told")
            self.allowed -= 1
        super().remove(path)


class Backend(ABC):
    """One kind of journals over several processes, each with a home folder of its own."""

    pause_s = 0.001  # between appends that a fence can overtake
    is_listed = True  # a commit is in a place that `needed` lists

    def __init__(self, request: pytest.FixtureRequest, folder: Path) -> None:
        self.folder = folder
        self.ids = CountedIds()
        self.disk = FailingDisk()
        self.seen = NOTHING_SEEN
        self._homes: list[HomeFolder] = []
        self.setup(request)
        self.home = self.new_home()  # of the broker that writes
        self.writer = self.journals(self.home)
        self.record: JournalRecord = self.writer.describe(BROKER)

    def new_home(self) -> HomeFolder:
        """The home folder of one more process, locked."""
        home = HomeFolder(self.folder / str(len(self._homes)), self.disk, self.ids)
        home.lock()
        self._homes.append(home)
        return home

    def create(self) -> Journal:
        """The journal of the broker that writes."""
        return self.writer.create(BROKER)

    def open_dead(self) -> DeadJournal:
        """The broker's journal as one more process sees it."""
        return self.journals(self.new_home()).open_dead(BROKER, self.record)

    def mark(self) -> None:
        """Note in the journal's key that it was recovered, as a recovery does before it removes the content."""
        self.record = replace(self.record, recovered=True)

    def die(self) -> None:
        """End the broker's process: its lock goes with it."""
        self.home.release()

    async def close(self) -> None:
        """Give everything back."""
        for home in self._homes:
            home.release()

    @abstractmethod
    def setup(self, request: pytest.FixtureRequest) -> None:
        """Make what the processes share."""

    @abstractmethod
    def journals(self, home: HomeFolder) -> Journals:
        """The backend as the process of that home folder sees it."""

    @abstractmethod
    async def held(self) -> list[Commit]:
        """What is stored now, without a fence."""

    @abstractmethod
    async def tear(self) -> None:
        """Leave of the last commit what a crash amid an append may leave."""

    @abstractmethod
    async def damage(self, number: int) -> None:
        """Spoil a durable commit that is not the last one."""

    @abstractmethod
    def refuse_removals(self, after: int | None) -> None:
        """Let all removals fail but for the first ones; None: no more."""


class InMemory(Backend):
    def setup(self, request: pytest.FixtureRequest) -> None:
        self.shared: dict[str, MemoryJournal] = {}

    def journals(self, home: HomeFolder) -> Journals:
        return MemoryJournals(self.shared, home.id)

    async def held(self) -> list[Commit]:
        return list(self.shared[BROKER].commits)

    async def tear(self) -> None:
        self.shared[BROKER].commits.pop()

    async def damage(self, number: int) -> None:
        pytest.skip("memory is not damaged")

    def refuse_removals(self, after: int | None) -> None:
        pytest.skip("memory goes at once")


class InFiles(Backend):
    def setup(self, request: pytest.FixtureRequest) -> None:
        pass

    def journals(self, home: HomeFolder) -> Journals:
        return FileJournals(home, self.disk, self.ids, FILE_BYTES, newest, lambda: self.seen)

    @property
    def journal_folder(self) -> Path:
        return self.home.path / "journals" / BROKER

    async def held(self) -> list[Commit]:
        return list(read_journal(self.journal_folder, self.disk))

    async def tear(self) -> None:
        folder = self.journal_folder
        path = file_path(folder, journal_files(folder, self.disk)[-1])
        data = path.read_bytes().rstrip(b"\0")  # zeros may follow
        path.write_bytes(data[:-3])

    async def damage(self, number: int) -> None:
        path = file_path(self.journal_folder, 0)
        data = bytearray(path.read_bytes())
        data[data.index(b"%d:xx" % number)] ^= 1
        path.write_bytes(data)

    def refuse_removals(self, after: int | None) -> None:
        self.disk.allowed = after


class InObjects(Backend):
    window = 4
    settles_s = 0.0  # nothing of a memory store takes longer

    def setup(self, request: pytest.FixtureRequest) -> None:
        self.store: Any = MemoryStore()

    def journals(self, home: HomeFolder) -> Journals:
        return ObjectJournals(home, self.store, SystemClock(), self.ids, Pace(self.window), newest, lambda: self.seen)

    async def held(self) -> list[Commit]:
        """What is there once the deletions under way are done."""
        for _ in range(50):
            await asyncio.sleep(self.settles_s / 50)
        numbers = await list_slots(self.store, BROKER)
        return [c for n in numbers async for c in read_slots(self.store, BROKER, range(n, n + 1), unbounded)]

    async def tear(self) -> None:
        """Slots end in any order: what lies behind a gap was not acknowledged."""
        last = (await list_slots(self.store, BROKER))[-1]
        await self.store.delete(slot_name(BROKER, last))
        later = SlotHeader(SlotKind.DATA, BROKER, last + 1, self.ids.nonce(), 0)
        assert await self.store.create(slot_name(BROKER, last + 1), encode_slot(later, acks(b"later")))

    async def damage(self, number: int) -> None:
        name = slot_name(BROKER, number)
        data = bytearray(await self.store.read(name, 0, 1 << 20))
        data[-1] ^= 1
        await self.store.delete(name)
        await self.store.create(name, bytes(data))

    def refuse_removals(self, after: int | None) -> None:
        left = [after or 0]

        def refuse(moment: str, name: str) -> None:
            if moment == "before delete":
                if not left[0]:
                    raise StoreUnavailable("as told")
                left[0] -= 1

        self.store.faults = refuse if after is not None else lambda moment, name: None


class OneAtATime(InObjects):
    window = 1


class InS3(InObjects):
    settles_s = 0.2
    pause_s = 0.3

    def setup(self, request: pytest.FixtureRequest) -> None:
        self.store = s3_store(request, "moto_server")

    async def close(self) -> None:
        await super().close()
        await self.store.close()

    def refuse_removals(self, after: int | None) -> None:
        pytest.skip("S3 cannot be told to fail")


class MirroredAlone(InObjects):
    """Without mirrors: each commit is in the store before it is answered."""

    def setup(self, request: pytest.FixtureRequest) -> None:
        super().setup(request)
        self.mirrors = MemoryMirrors(BROKER)

    def journals(self, home: HomeFolder) -> Journals:
        objects = ObjectJournals(
            home, self.store, SystemClock(), self.ids, Pace(self.window), newest, lambda: self.seen
        )
        mirrored = MirroredJournals(objects, self.mirrors, MirrorRules())
        return JournalKinds({OBJECT: objects, MIRRORED: mirrored}, MIRRORED)


class Mirrored(MirroredAlone):
    """With two mirrors, from the first commit on."""

    settles_s = 0.02
    is_listed = False

    def setup(self, request: pytest.FixtureRequest) -> None:
        super().setup(request)
        self.mirrors.add("m1", "m2")

    def create(self) -> Journal:
        journal = super().create()
        assert isinstance(journal, MirroredJournal)
        append = journal.append

        async def joined(frames: Sequence[Frame]) -> int:
            while len(journal.mirrors) < 2 and self.mirrors.all:
                await asyncio.sleep(0.01)
            return await append(frames)

        journal.append = joined  # type: ignore[method-assign]
        return journal

    async def held(self) -> list[Commit]:
        """What a mirror has that nobody has fenced, once calls under way are done."""
        await asyncio.sleep(self.settles_s)
        if (await list_journal(self.store, BROKER)).is_done:
            self.mirrors.all["m1"].holdings.forget(BROKER)  # as its broker does once the key says so
        return [commit for one in self.mirrors.all["m1"].holdings.look(BROKER) for commit in one]

    async def tear(self) -> None:
        pytest.skip("memory is not torn")

    async def damage(self, number: int) -> None:
        pytest.skip("memory is not damaged")

    def refuse_removals(self, after: int | None) -> None:
        pytest.skip("memory goes at once")


class Astray(InS3):
    """In a store that lists as SeaweedFS does, and answers late, twice, or not at all."""

    settles_s = 0.5

    def setup(self, request: pytest.FixtureRequest) -> None:
        self.store = s3_store(request, "moto_astray_server", Insistent)


BACKENDS: dict[str, Callable[[pytest.FixtureRequest, Path], Backend]] = {
    "memory": InMemory,
    "file": InFiles,
    "object": InObjects,
    "object, one at a time": OneAtATime,
    "mirrored": Mirrored,
    "mirrored, alone": MirroredAlone,
    "object on S3": InS3,
    "object astray": Astray,
}
IN_BACKENDS = [
    "memory",
    "file",
    "object",
    "object, one at a time",
    "mirrored",
    "mirrored, alone",
    marked("object on S3", "service"),
    marked("object astray", "service", "long"),
]
"""The names of the backends as parameters of a fixture."""

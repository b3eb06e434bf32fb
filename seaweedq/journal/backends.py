"""The backends of journals: a broker writes one kind, and recovers all kinds that it knows.

A file journal is in `journals/{broker}` below the home folder of its broker's process. An object journal has slots in
the store, below `_journals/{broker}/`: every broker reaches all of them. A mirrored one has such slots, and mirrors.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Container, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from seaweedq.clock import Clock, Ids
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Put
from seaweedq.coordination.records import JournalRecord, MirrorsRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import JournalDamaged, JournalUnavailable, LevelMismatch, NeedsNewerBroker, SeaweedqError
from seaweedq.formats import Level, needs_newer
from seaweedq.journal.disk import Disk
from seaweedq.journal.file_journal import FileJournal, is_done, journal_files, read_done, remove_folder, remove_journal
from seaweedq.journal.file_recovery import DeadFileJournal, PlaceLock, newest_commit
from seaweedq.journal.home_folder import FolderLock, HomeFolder
from seaweedq.journal.interface import (
    NOTHING_SEEN,
    Claim,
    DeadJournal,
    Journal,
    Journals,
    Mirrors,
    NeededJournal,
    Seen,
    SeenNow,
    seen_nothing,
)
from seaweedq.journal.mirrored_journal import MirroredJournal, MirrorRules
from seaweedq.journal.mirrored_recovery import DeadMirroredJournal
from seaweedq.journal.object_format import SlotHeader, SlotHeaders, list_journal
from seaweedq.journal.object_journal import ObjectJournal
from seaweedq.journal.object_recovery import DeadObjectJournal, needed, stated, sweep
from seaweedq.journal.pacing import Pace
from seaweedq.segments.frames import Commit
from seaweedq.segments.terms import Term
from seaweedq.storage.interface import ObjectStore

FILE = "file"
OBJECT = "object"
MIRRORED = "mirrored"
JOURNALS = "journals"
"""The folder of file journals in a home folder."""
T = TypeVar("T")


class JournalKinds:
    """The backends by the kind that a journal's key names; `own` is the kind of this process's broker."""

    def __init__(self, backends: Mapping[str, Journals], own: str) -> None:
        self._backends = backends
        self._own = backends[own]

    def describe(self, broker: str) -> JournalRecord:
        return self._own.describe(broker)

    def first_keys(self, broker: str) -> Sequence[Put]:
        return self._own.first_keys(broker)

    def create(self, broker: str) -> Journal:
        return self._own.create(broker)

    def is_exclusive(self, record: JournalRecord) -> bool:
        backend = self._backends.get(record.kind)
        return backend is not None and backend.is_exclusive(record)

    def open_dead(self, broker: str, record: JournalRecord) -> DeadJournal:
        backend = self._backends.get(record.kind)
        return backend.open_dead(broker, record) if backend else _UnknownJournal(broker, record.kind)

    async def sweep(self, read_known: Callable[[], Awaitable[Container[str]]]) -> int:
        return sum([await backend.sweep(read_known) for backend in self._backends.values()])

    async def needed(self) -> list[NeededJournal]:
        return [journal for backend in self._backends.values() for journal in await backend.needed()]

    async def is_done(self, broker: str) -> bool:
        return any([await backend.is_done(broker) for backend in self._backends.values()])

    async def stated(self) -> Seen:
        return max([await backend.stated() for backend in self._backends.values()])


class _UnknownJournal:
    """A journal of a kind that this process does not know. A newer broker may know it; it is never empty."""

    def __init__(self, broker: str, kind: str) -> None:
        self._broker = broker
        self._kind = kind

    async def fence(self) -> None:
        raise needs_newer(
            f"the journal of broker {self._broker} is of the kind {self._kind!r}, which this broker does not know"
        )

    async def look(self) -> None:
        await self.fence()

    async def commits(self, claim: Claim) -> AsyncGenerator[Commit, None]:
        raise AssertionError("the journal was not fenced")
        yield

    async def terms(self) -> dict[tuple[str, int], Term]:
        raise AssertionError("the journal was not fenced")

    async def remove(self, stated: Seen = NOTHING_SEEN) -> None:
        raise AssertionError("the journal was not fenced")

    async def close(self) -> None:
        pass


class FileJournals:
    """File journals as the process sees them whose home folder, locked, is `home`."""

    def __init__(
        self, home: HomeFolder, disk: Disk, ids: Ids, file_bytes: int, level: Level, seen: SeenNow = seen_nothing
    ) -> None:
        self._home = home
        self._disk = disk
        self._ids = ids
        self._file_bytes = file_bytes
        self._level = level
        self._seen = seen

    def describe(self, broker: str) -> JournalRecord:
        return JournalRecord(FILE, self._home.id, str(self._home.path.absolute()))

    def first_keys(self, broker: str) -> Sequence[Put]:
        return ()

    def create(self, broker: str) -> FileJournal:
        folder = _folder(self._home.path, broker)
        return FileJournal(folder, self._disk, self._ids, self._file_bytes, self._level, self._seen)

    def is_exclusive(self, record: JournalRecord) -> bool:
        return record.place == self._home.id

    def open_dead(self, broker: str, record: JournalRecord) -> DeadFileJournal:
        is_given_up = record.loss_accepted_us > 0
        if self.is_exclusive(record):
            return DeadFileJournal(_folder(self._home.path, broker), self._disk, None, is_given_up)
        home = Path(record.path)
        lock = PlaceLock(FolderLock(home, self._disk), record.place, self._disk)
        return DeadFileJournal(_folder(home, broker), self._disk, lock, is_given_up)

    async def sweep(self, read_known: Callable[[], Awaitable[Container[str]]]) -> int:
        """Does as Journals, for the journals of this home folder, which nobody else removes."""
        found = [broker for broker in await self._run(self._folders) if await self._run(partial(self._is_done, broker))]
        known = await read_known() if found else ()
        forgotten = [broker for broker in found if broker not in known]
        return await self._run(lambda: sum(map(self._remove, forgotten)))

    async def needed(self) -> list[NeededJournal]:
        """Does as Journals, for those of this home folder."""
        found = [await self._run(partial(self._needed, broker)) for broker in await self._run(self._folders)]
        return [journal for journal in found if journal is not None]

    async def is_done(self, broker: str) -> bool:
        """Does as Journals, for those of this home folder."""
        return await self._run(partial(self._is_done, broker))

    async def stated(self) -> Seen:
        """Does as Journals, for those of this home folder."""
        found = [await self._run(partial(self._stated, broker)) for broker in await self._run(self._folders)]
        return max(found, default=NOTHING_SEEN)

    async def _run(self, work: Callable[[], T]) -> T:
        """Runs disk work off the event loop. Raises JournalUnavailable."""
        worker = self._disk.worker()
        try:
            return await asyncio.get_running_loop().run_in_executor(worker, work)
        except OSError as error:
            raise JournalUnavailable(f"the journals in {self._home.path} cannot be read or removed: {error}") from error
        finally:
            worker.shutdown(wait=False)

    def _folders(self) -> list[str]:
        return self._disk.names(self._home.path / JOURNALS)

    def _is_done(self, broker: str) -> bool:
        return is_done(_folder(self._home.path, broker), self._disk)

    def _stated(self, broker: str) -> Seen:
        return read_done(_folder(self._home.path, broker), self._disk)

    def _needed(self, broker: str) -> NeededJournal | None:
        try:
            newest = newest_commit(_folder(self._home.path, broker), self._disk)
        except (JournalDamaged, NeedsNewerBroker, LevelMismatch) as error:
            return NeededJournal(broker, self.describe(broker), unread=error.detail)
        return newest and NeededJournal(broker, self.describe(broker), newest)

    def _remove(self, broker: str) -> int:
        folder = _folder(self._home.path, broker)
        files = len(journal_files(folder, self._disk)) + 1
        remove_journal(folder, self._disk)
        remove_folder(folder, self._disk)
        return files


def _folder(home: Path, broker: str) -> Path:
    return home / JOURNALS / broker


class ObjectJournals:
    """Object journals in `store`, as the process sees them whose home folder, locked, is `home`."""

    def __init__(
        self,
        home: HomeFolder,
        store: ObjectStore,
        clock: Clock,
        ids: Ids,
        pace: Pace,
        level: Level,
        seen: SeenNow = seen_nothing,
    ) -> None:
        self._home = home
        self.store = store
        self.clock = clock
        self.ids = ids
        self._pace = pace
        self._level = level
        self._seen = seen

    def describe(self, broker: str) -> JournalRecord:
        return JournalRecord(OBJECT, self._home.id)

    def first_keys(self, broker: str) -> Sequence[Put]:
        return ()

    def create(self, broker: str) -> ObjectJournal:
        return ObjectJournal(self.store, self.headers(broker), self.clock, self._pace)

    def is_exclusive(self, record: JournalRecord) -> bool:
        return False

    def open_dead(self, broker: str, record: JournalRecord) -> DeadObjectJournal:
        return DeadObjectJournal(self.store, self.headers(broker), record.recovered)

    async def sweep(self, read_known: Callable[[], Awaitable[Container[str]]]) -> int:
        return await sweep(self.store, self.headers, read_known)

    async def needed(self) -> list[NeededJournal]:
        """Does as Journals, for those of the store."""
        return [_needed_in_store(broker, found) for broker, found in await needed(self.store)]

    async def is_done(self, broker: str) -> bool:
        """Does as Journals, for those of the store."""
        return (await list_journal(self.store, broker)).is_done

    async def stated(self) -> Seen:
        """Does as Journals, for those of the store."""
        return await stated(self.store)

    def headers(self, broker: str) -> SlotHeaders:
        """Returns the headers of the slots of a broker's journal."""
        return SlotHeaders(broker, self.ids, self._level, self._seen)


def _needed_in_store(broker: str, found: SlotHeader | SeaweedqError) -> NeededJournal:
    if isinstance(found, SeaweedqError):
        return NeededJournal(broker, JournalRecord(OBJECT, ""), unread=found.detail)
    kind = MIRRORED if found.commits else OBJECT
    return NeededJournal(broker, JournalRecord(kind, ""), found.seen)  # no matter whose folder: every broker reaches it


class MirroredJournals:
    """Mirrored journals, whose slots are like those of `objects`: these find and sweep all that the store has."""

    def __init__(self, objects: ObjectJournals, mirrors: Mirrors, rules: MirrorRules) -> None:
        self._objects = objects
        self._mirrors = mirrors
        self._rules = rules

    def describe(self, broker: str) -> JournalRecord:
        return replace(self._objects.describe(broker), kind=MIRRORED)

    def first_keys(self, broker: str) -> Sequence[Put]:
        record = MirrorsRecord("open", exposure_s=self._rules.exposure_s)
        return (Put(keys.MIRRORS.key(broker), keys.MIRRORS.encode(Versioned.new(record))),)

    def create(self, broker: str) -> MirroredJournal:
        of = self._objects
        return MirroredJournal(of.create(broker), of.store, self._mirrors, broker, self._rules, of.clock)

    def is_exclusive(self, record: JournalRecord) -> bool:
        return False

    def open_dead(self, broker: str, record: JournalRecord) -> DeadMirroredJournal:
        of = self._objects
        is_given_up = record.loss_accepted_us > 0
        return DeadMirroredJournal(of.store, of.headers(broker), self._mirrors, of.ids, record.recovered, is_given_up)

    async def sweep(self, read_known: Callable[[], Awaitable[Container[str]]]) -> int:
        return 0

    async def needed(self) -> list[NeededJournal]:
        return []

    async def is_done(self, broker: str) -> bool:
        return False

    async def stated(self) -> Seen:
        return NOTHING_SEEN

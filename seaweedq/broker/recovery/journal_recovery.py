"""Taking over from brokers that are gone: their journals are worked in, then their segments may have a new owner.

Order of writes for a dead broker X, by whoever can reach its journal: 1. X's journal is fenced: its folder's lock is
ours (file), or a slot of it is taken (object); from here X acknowledges nothing. 2. Its journal is worked in
(broker/recovery/replay); nothing changes hands before. 3. X's journal key says `recovered`: now, and not before, the
leader gives X's segments to living brokers. 4. The journal's content goes, then its key. A crash between any two leaves
the key, and whoever comes next begins again; each step does nothing where it was done before, and two may do them at
once.

A journal that cannot be reached is unknown, never empty: its segments wait.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Container
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from seaweedq.broker.recovery.replay import Recovery
from seaweedq.broker.topics.catalog import Catalog
from seaweedq.clock import Ids
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Coordination, Delete, Put
from seaweedq.coordination.membership import Membership
from seaweedq.coordination.records import JournalRecord
from seaweedq.coordination.transactions import read_all
from seaweedq.errors import DataFolderInUse
from seaweedq.failpoints import reach
from seaweedq.journal.file_reader import read_journal, remove_journal
from seaweedq.journal.folder_lock import FolderLock, known_identity
from seaweedq.journal.object_recovery import fence, read_slots, remove_slots
from seaweedq.segments.frames import Frame
from seaweedq.storage.interface import ObjectStore

logger = logging.getLogger(__name__)


class Takeover:
    """Recovers the journals of the dead. `place` is the id of this process's own folder `home`, whose lock it holds."""

    def __init__(
        self,
        catalog: Catalog,
        coordination: Coordination,
        membership: Membership,
        recovery: Recovery,
        store: ObjectStore,
        ids: Ids,
        home: Path,
        place: str,
    ) -> None:
        self._catalog = catalog
        self._coordination = coordination
        self._membership = membership
        self._recovery = recovery
        self._store = store
        self._ids = ids
        self._home = home
        self._place = place
        self._unreached: dict[str, str] = {}  # where the journals are that can not be reached, by broker

    async def revoke(self) -> None:
        """End the leases of the brokers that lived in this folder: its lock is ours, so they are dead.

        Whoever leads need not wait for that: what a killed broker owned goes on as soon as it is started again.
        """
        for broker, _, _ in await self._own():
            there = await self._coordination.get(keys.BROKERS.key(broker))
            if there:
                reach("takeover.revoke")
                await self._coordination.leases.revoke(there.lease)

    async def recover_own(self) -> None:
        """Recover the journals in this process's own folder, which nobody else can reach while it lives."""
        for broker, record, revision in await self._own():
            if record.kind == "file":
                await self.recover(broker, record, revision)

    async def recover(self, broker: str, record: JournalRecord, revision: int) -> bool:
        """Recover the journal of a broker whose lease has ended. False: it can not be reached. Raises Unavailable,
        Damaged."""
        async with self._reached(broker, record) as folder:
            if folder is None and record.kind == "file":
                return False
            if not record.recovered:
                await self._work_in(broker, record, folder)
                reach("takeover.recovered")
                revision = await self._mark(broker, record, revision) or revision
            reach("takeover.remove")
            if folder:
                await asyncio.to_thread(remove_journal, folder / "journals" / broker)
            else:
                if record.recovered:  # by whom it was fenced, or by its broker, which needs no fence to stop
                    await fence(self._store, broker, self._ids)
                await remove_slots(self._store, broker)
            reach("takeover.removed")
            await self._coordination.commit([], [Delete(keys.JOURNALS.key(broker))])
        return True

    def see(self, journals: Container[str]) -> None:
        """These brokers' journals are still there; who could not reach another one need not wait for it any more."""
        for broker in [broker for broker in self._unreached if broker not in journals]:
            logger.info("the journal in %s was recovered by another broker", self._unreached.pop(broker))

    async def _own(self) -> list[tuple[str, JournalRecord, int]]:
        entries, _ = await read_all(self._coordination, keys.JOURNALS.prefix())
        found = [(keys.JOURNALS.parse(e.key)[0], keys.JOURNALS.decode(e.value), e.revision) for e in entries]
        return [one for one in found if one[1].place == self._place and one[0] != self._membership.broker]

    @asynccontextmanager
    async def _reached(self, broker: str, record: JournalRecord) -> AsyncIterator[Path | None]:
        """The folder of a file journal, locked; None where it can not be had, and for a journal in the store."""
        if record.kind == "object" or record.place == self._place:
            yield self._home if record.kind == "file" else None
            return
        lock = FolderLock(Path(record.path))
        locking = asyncio.create_task(asyncio.to_thread(_lock, lock, record))
        try:
            await asyncio.wait([locking])
            locking.result()
        except (DataFolderInUse, OSError) as error:
            if broker not in self._unreached:  # it is tried each second or so
                self._unreached[broker] = record.path
                logger.info("the journal in %s can not be reached, its segments wait: %s", record.path, error)
            yield None
        else:
            if self._unreached.pop(broker, None):
                logger.info("the journal in %s can be reached again", record.path)
            yield lock.folder
        finally:
            await asyncio.wait([locking])
            lock.release()

    async def _work_in(self, broker: str, record: JournalRecord, folder: Path | None) -> None:
        if folder:
            frames = await asyncio.to_thread(_frames, folder / "journals" / broker)
        else:
            slots = await fence(self._store, broker, self._ids)
            frames = [frame async for commit in read_slots(self._store, broker, slots) for frame in commit.frames]
        await self._catalog.load()  # the watch may be behind, and a segment that is not known is not recovered
        done = await self._recovery.work_in(broker, frames)
        if frames:
            logger.info(
                "recovered the journal of %s: %d segments, %d rows that were not in files yet, %d acks",
                broker,
                done.segments,
                done.rows,
                done.acks,
            )

    async def _mark(self, broker: str, record: JournalRecord, revision: int) -> int | None:
        key = keys.JOURNALS.key(broker)
        put = Put(key, keys.JOURNALS.encode(msgspec.structs.replace(record, recovered=True)))
        return await self._coordination.commit([Compare(key, revision)], [put])


def _frames(folder: Path) -> list[Frame]:
    return [frame for commit in read_journal(folder) for frame in commit.frames]


def _lock(lock: FolderLock, record: JournalRecord) -> None:
    """Lock the folder of a journal's place; not another one, whose broker may be starting. Raises DataFolderInUse."""
    _check_place(lock.folder, record)
    lock.acquire()
    _check_place(lock.folder, record)  # now it cannot change any more


def _check_place(folder: Path, record: JournalRecord) -> None:
    if not record.path or known_identity(folder) != record.place:
        raise DataFolderInUse(f"{folder} is another folder, or not on this machine")

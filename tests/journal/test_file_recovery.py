"""The recovery of a file journal when it is broken off: the lock that it takes is never left behind."""

import asyncio
import errno
import os
import threading
from contextlib import aclosing
from pathlib import Path

import pytest
from msgspec.structs import replace

from seaweedq.checks import using
from seaweedq.clock import SystemIds
from seaweedq.coordination.records import JournalRecord
from seaweedq.errors import JournalDamaged, JournalUnavailable
from seaweedq.journal import file_recovery
from seaweedq.journal.backends import FileJournals
from seaweedq.journal.disk import Disk, DiskFile
from seaweedq.journal.file_journal import set_aside
from seaweedq.journal.home_folder import FolderLock, HomeFolder
from seaweedq.journal.interface import JournalInUse, JournalUnreachable
from seaweedq.segments.frames import FILE_HEADER_BYTES
from tests.support.journal.claims import unbounded
from tests.support.journal.sim_disk import acks
from tests.support.levels import newest


class SlowDisk(Disk):
    """A disk whose locks and reads wait until they are let go on."""

    def __init__(self) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()
        self.broken = False

    def lock(self, path: Path) -> int | None:
        self._wait()
        return super().lock(path)

    def read(self, path: Path, size: int) -> bytes:
        if self.broken:
            raise OSError("as told")
        return super().read(path, size)

    def _wait(self) -> None:
        self.reached.set()
        assert self.go_on.wait(30)


@pytest.fixture
def disk() -> SlowDisk:
    return SlowDisk()


async def left_behind(folder: Path, *payloads: bytes) -> JournalRecord:
    """A journal whose process has ended."""
    home = HomeFolder(folder, Disk(), SystemIds())
    home.lock()
    journals = FileJournals(home, Disk(), SystemIds(), 1_000, newest)
    journal = journals.create("b")
    for payload in payloads or (b"x",):
        await journal.append(acks(payload))
    await journal.close()
    home.release()
    return journals.describe("b")


def other(folder: Path, disk: Disk) -> FileJournals:
    home = HomeFolder(folder, Disk(), SystemIds())
    home.lock()
    return FileJournals(home, disk, SystemIds(), 1_000, newest)


async def test_a_lock_that_comes_after_a_cancellation_is_given_back(tmp_path: Path, disk: SlowDisk) -> None:
    record = await left_behind(tmp_path / "dead")
    dead = other(tmp_path / "other", disk).open_dead("b", record)
    disk.go_on.clear()
    fencing = asyncio.create_task(dead.fence())
    assert await asyncio.to_thread(disk.reached.wait, 30)
    fencing.cancel()
    closing = asyncio.create_task(dead.close())
    await asyncio.wait([fencing])
    assert not closing.done(), "it waits for the lock that is being taken"
    disk.go_on.set()
    await closing
    lock = FolderLock(tmp_path / "dead", Disk())
    lock.acquire()
    lock.release()


async def test_a_disk_that_hangs_keeps_nobody_from_closing(
    tmp_path: Path, disk: SlowDisk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The stop of a leader waits for its recoveries, and flock on a dead NFS server never ends."""
    monkeypatch.setattr(file_recovery, "CLOSE_S", 0.01)
    record = await left_behind(tmp_path / "dead")
    dead = other(tmp_path / "other", disk).open_dead("b", record)
    disk.go_on.clear()
    fencing = asyncio.create_task(dead.fence())
    assert await asyncio.to_thread(disk.reached.wait, 30)
    fencing.cancel()
    async with asyncio.timeout(30):
        await dead.close()
    assert "hangs" in caplog.text
    disk.go_on.set()
    lock = FolderLock(tmp_path / "dead", Disk())
    lock.acquire(wait_s=30)
    lock.release()


class BadSector(Disk):
    """A disk that cannot read bytes behind a file's header."""

    broken = True

    def read_at(self, fd: int, start: int, size: int) -> bytes:
        if self.broken and start + size > FILE_HEADER_BYTES:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().read_at(fd, start, size)


async def test_a_disk_that_fails_in_a_read_makes_the_journal_unavailable(tmp_path: Path) -> None:
    """A mapped file would end the process by SIGBUS."""
    record, disk = await left_behind(tmp_path / "dead"), BadSector()
    dead = other(tmp_path / "other", disk).open_dead("b", record)
    await dead.fence()
    with pytest.raises(JournalUnavailable, match="Input/output error"):
        _ = [commit async for commit in dead.commits(unbounded)]
    disk.broken = False
    assert [commit.number async for commit in dead.commits(unbounded)] == [0]
    await dead.close()


async def test_a_disk_that_fails_makes_the_journal_unavailable_not_empty(tmp_path: Path, disk: SlowDisk) -> None:
    record = await left_behind(tmp_path / "dead")
    dead = other(tmp_path / "other", disk).open_dead("b", record)
    await dead.fence()
    disk.broken = True
    with pytest.raises(JournalUnavailable, match="as told"):
        _ = [commit async for commit in dead.commits(unbounded)]
    disk.broken = False
    assert [commit.number async for commit in dead.commits(unbounded)] == [0]
    await dead.close()


class CountingDisk(Disk):
    """A disk that knows how many descriptors are open. Nothing but `close` closes one."""

    def __init__(self) -> None:
        self.reading: set[int] = set()

    def open(self, path: Path) -> DiskFile:
        fd = os.open(path, os.O_RDONLY)
        self.reading.add(fd)
        return DiskFile(self, fd)

    def close(self, fd: int) -> None:
        self.reading.discard(fd)
        super().close(fd)


async def test_one_that_was_given_up_is_empty_while_away_and_set_aside_later(tmp_path: Path) -> None:
    record = replace(await left_behind(tmp_path / "dead"), loss_accepted_us=1)
    away = (tmp_path / "dead").rename(tmp_path / "away")
    journals = other(tmp_path / "other", Disk())
    dead = journals.open_dead("b", record)
    await dead.fence()
    assert [one async for one in dead.commits(unbounded)] == []
    assert await dead.terms() == {}
    with pytest.raises(JournalUnreachable, match="if this folder becomes available again, a broker renames it"):
        await dead.remove()
    await dead.close()

    home = away.rename(tmp_path / "dead")
    place, aside = home / "journals" / "b", home / "given-up" / "b"

    for _ in range(2):
        dead = journals.open_dead("b", record)
        await dead.fence()
        await dead.remove()
        await dead.close()
        assert list(aside.glob("*.journal"))
        assert not place.exists()


class SyncedDisk(Disk):
    """A disk that knows which folders were synced."""

    def __init__(self) -> None:
        self.synced: list[Path] = []

    def sync_folder(self, folder: Path) -> None:
        super().sync_folder(folder)
        self.synced.append(folder)


@pytest.mark.parametrize("at", ["loss.aside", "loss.moved", "loss.named"])
async def test_one_that_was_set_aside_is_so_durably_before_its_key_goes(at: str, tmp_path: Path) -> None:
    """Its removal dies at each step. The next one syncs both names, though it may find nothing left to move."""
    record = replace(await left_behind(tmp_path / "dead"), loss_accepted_us=1)
    disk = SyncedDisk()
    journals = other(tmp_path / "other", disk)

    def die(point: str) -> None:
        if point == at:
            raise OSError(point)

    place, aside = tmp_path / "dead/journals/b", tmp_path / "dead/given-up/b"
    with using(die), pytest.raises(OSError, match=at):
        set_aside(place, disk)
    assert bool(list(place.glob("*.journal"))) == (at == "loss.aside")
    disk.synced.clear()
    dead = journals.open_dead("b", record)
    await dead.fence()
    await dead.remove()
    await dead.close()
    assert disk.synced[-2:] == [aside.parent, place.parent]
    assert list(aside.glob("*.journal"))
    assert not place.exists()


class BadEnd(Disk):
    """A disk that reads nothing of the second commit, or other bytes."""

    def __init__(self, error: OSError | None) -> None:
        self.error = error

    def read_at(self, fd: int, start: int, size: int) -> bytes:
        found = super().read_at(fd, start, size)
        if (at := found.find(b"second")) < 0:
            return found
        if self.error:
            raise self.error
        return found[:at] + b"SECOND" + found[at + 6 :]


@pytest.mark.parametrize("error", [None, OSError(errno.EIO, os.strerror(errno.EIO))], ids=["damaged", "unreadable"])
async def test_one_that_was_given_up_and_is_damaged_has_what_is_before(
    error: OSError | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody waits for the rest, and nothing is deleted."""
    record = await left_behind(tmp_path / "dead", b"first", b"second", b"third")
    journals = other(tmp_path / "other", BadEnd(error))
    for loss_accepted_us in (0, 1):
        dead = journals.open_dead("b", replace(record, loss_accepted_us=loss_accepted_us))
        await dead.fence()
        found = []
        reading = dead.commits(unbounded)
        if loss_accepted_us:
            found += [commit.number async for commit in reading]
            assert found == [0]
            await dead.remove()
        else:
            with pytest.raises((JournalDamaged, JournalUnavailable)):
                found += [commit.number async for commit in reading]
        await dead.close()
    assert "the loss of this journal was accepted, so its remaining" in caplog.text
    assert list((tmp_path / "dead/given-up/b").glob("*.journal"))
    assert not (tmp_path / "dead/journals/b").exists()


async def test_a_folder_in_use_is_told_from_one_that_is_away(tmp_path: Path) -> None:
    record, journals = await left_behind(tmp_path / "dead"), other(tmp_path / "other", Disk())
    lock = FolderLock(tmp_path / "dead", Disk())
    lock.acquire()
    dead = journals.open_dead("b", record)
    with pytest.raises(JournalInUse, match=f"is in use by process {os.getpid()}"):
        await dead.fence()
    lock.release()
    (tmp_path / "dead").rename(tmp_path / "away")
    with pytest.raises(JournalUnreachable, match="cannot reach") as told:
        await dead.fence()
    assert not isinstance(told.value, JournalInUse)
    await dead.close()


async def test_a_replay_that_is_broken_off_closes_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_recovery, "READ_BYTES", 1)
    record, disk = await left_behind(tmp_path / "dead"), CountingDisk()
    dead = other(tmp_path / "other", disk).open_dead("b", record)
    await dead.fence()
    kept = []  # as a traceback or a cycle keeps it
    read = file_recovery.read_journal
    monkeypatch.setattr(file_recovery, "read_journal", lambda *of: kept.append(read(*of)) or kept[-1])
    async with aclosing(dead.commits(unbounded)) as commits:
        assert (await anext(commits)).number == 0
        assert disk.reading
    await dead.close()
    assert not disk.reading

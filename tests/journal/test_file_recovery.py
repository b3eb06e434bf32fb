"""The recovery of a file journal when it is broken off: the lock that it takes is never left behind."""

import asyncio
import errno
import os
import threading
from contextlib import aclosing
from pathlib import Path

import pytest

from seaweedq.clock import SystemIds
from seaweedq.coordination.records import JournalRecord
from seaweedq.errors import JournalUnavailable
from seaweedq.journal import file_recovery
from seaweedq.journal.backends import FileJournals
from seaweedq.journal.disk import Disk, DiskFile
from seaweedq.journal.home_folder import FolderLock, HomeFolder
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


async def left_behind(folder: Path) -> JournalRecord:
    """A journal whose process has ended."""
    home = HomeFolder(folder, Disk(), SystemIds())
    home.lock()
    journals = FileJournals(home, Disk(), SystemIds(), 1_000, newest)
    journal = journals.create("b")
    await journal.append(acks(b"x"))
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

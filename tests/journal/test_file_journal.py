"""The file journal on a disk that fails: what an append answers, which files there are, what it does not try again."""

import errno
from pathlib import Path

import pytest

from seaweedq.errors import JournalDamaged, JournalUnavailable
from seaweedq.journal.disk import Disk
from seaweedq.journal.file_journal import FileJournal, file_path, journal_files, remove_folder, remove_journal
from seaweedq.journal.file_recovery import read_journal
from tests.support.journal.sim_disk import CountedIds, Fault, SimDisk, acks
from tests.support.levels import newest

OPENING = ["remove", "create", "write", "sync", "rename", "sync_folder"]


def journal_on(disk: SimDisk, file_bytes: int = 1 << 20) -> FileJournal:
    disk.folder.mkdir(exist_ok=True)
    return FileJournal(disk.folder, disk, CountedIds(), file_bytes, newest)


def payloads(folder: Path) -> list[bytes]:
    return [bytes(frame.payload) for commit in read_journal(folder, Disk()) for frame in commit.frames]


async def fill(folder: Path, commits: int, file_bytes: int) -> FileJournal:
    journal = FileJournal(folder, Disk(), CountedIds(), file_bytes, newest)
    for n in range(commits):
        await journal.append(acks(b"%d" % n))
    return journal


async def test_a_commit_is_synced_once_and_a_file_is_durable_before_its_first(tmp_path: Path) -> None:
    disk = SimDisk(tmp_path / "j")
    journal = journal_on(disk)
    await journal.append(acks(b"a"))
    await journal.append(acks(b"b") * 2000)
    assert disk.operations[:8] == [*OPENING, "write", "sync"]
    assert disk.operations[-1] == "sync"
    assert set(disk.operations[8:-1]) == {"write"}, "more buffers than IOV_MAX take several writes and one sync"
    assert payloads(disk.folder) == [b"a", *[b"b"] * 2000]
    await journal.close()


@pytest.mark.parametrize("at", [6, 7])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
async def test_after_a_failed_write_or_sync_the_next_append_begins_a_file(tmp_path: Path, at: int, code: int) -> None:
    disk = SimDisk(tmp_path / "j", {at + 2: Fault(code)})
    journal = journal_on(disk)
    await journal.append(acks(b"a"))
    with pytest.raises(JournalUnavailable, match="cannot be written"):
        await journal.append(acks(b"lost"))
    failed = len(disk.operations)
    assert await journal.append(acks(b"b")) == 1
    assert disk.operations[failed:] == [*OPENING, "write", "sync"]
    assert journal_files(disk.folder, Disk()) == [0, 1]
    assert payloads(disk.folder) == [b"a", b"b"]
    await journal.close()


async def test_a_full_disk_leaves_no_trace_of_what_it_could_not_take(tmp_path: Path) -> None:
    disk = SimDisk(tmp_path / "j")
    journal = journal_on(disk)
    await journal.append(acks(b"a"))
    size = file_path(disk.folder, 0).stat().st_size
    disk.faults = {at: Fault(errno.ENOSPC) for at in range(len(disk.operations), 200)}
    for _ in range(5):
        with pytest.raises(JournalUnavailable):
            await journal.append(acks(b"x" * 5000))
    assert sum(each.stat().st_size for each in disk.folder.iterdir()) <= size + 5000 // 2 + 300
    assert len(list(disk.folder.iterdir())) <= 2
    disk.faults = {}
    assert await journal.append(acks(b"b")) == 1
    assert payloads(disk.folder) == [b"a", b"b"]
    assert len(list(disk.folder.iterdir())) == 2
    await journal.close()


async def test_files_that_take_a_header_and_no_commit_do_not_pile_up(tmp_path: Path) -> None:
    """A disk with room for a header only: each try takes the name of the one before."""
    disk = SimDisk(tmp_path / "j")
    journal = journal_on(disk)
    await journal.append(acks(b"a"))
    for tries in range(4):
        write = len(disk.operations) + (len(OPENING) if tries else 0)
        disk.faults = {write: Fault(errno.ENOSPC)}
        with pytest.raises(JournalUnavailable):
            await journal.append(acks(b"x" * 500))
    disk.faults = {}
    await journal.append(acks(b"b"))
    assert journal_files(disk.folder, Disk()) == [0, 1]
    assert payloads(disk.folder) == [b"a", b"b"]
    await journal.close()


async def test_an_error_that_is_not_the_disks_ends_the_file_too(tmp_path: Path) -> None:
    class Broken(Disk):
        def write(self, fd: int, buffers: list[memoryview]) -> int:
            taken = super().write(fd, [buffers[0][:9]])
            if self.armed:
                raise MemoryError
            return taken

        armed = False

    disk = Broken()
    journal = FileJournal(tmp_path, disk, CountedIds(), 1 << 20, newest)
    await journal.append(acks(b"a"))
    disk.armed = True
    with pytest.raises(MemoryError):
        await journal.append(acks(b"b"))
    disk.armed = False
    assert await journal.append(acks(b"c")) == 1
    assert payloads(tmp_path) == [b"a", b"c"]
    await journal.close()


async def test_a_write_that_takes_nothing_is_an_error_and_no_endless_loop(tmp_path: Path) -> None:
    journal = journal_on(SimDisk(tmp_path / "j", short=0))
    with pytest.raises(JournalUnavailable, match="accepted no byte"):
        await journal.append(acks(b"a"))
    await journal.close()


async def test_released_files_go_oldest_first_and_the_newest_stays(tmp_path: Path) -> None:
    journal = await fill(tmp_path, 5, file_bytes=1)
    assert journal_files(tmp_path, Disk()) == [0, 1, 2, 3, 4]
    journal.release(3)
    assert await journal.append(acks(b"5")) == 5
    assert journal_files(tmp_path, Disk()) == [3, 4, 5]
    journal.release(6)
    await journal.close()
    assert journal_files(tmp_path, Disk()) == [5]
    assert [commit.number for commit in read_journal(tmp_path, Disk())] == [5]


async def test_a_removal_that_fails_is_tried_again_with_the_next_release(tmp_path: Path) -> None:
    disk = SimDisk(tmp_path / "j")
    journal = journal_on(disk, file_bytes=1)
    for _ in range(3):
        await journal.append(acks(b"a"))
    disk.faults = {len(disk.operations): Fault(errno.EIO)}
    journal.release(2)
    await journal.append(acks(b"b"))
    assert journal_files(disk.folder, Disk()) == [0, 1, 2, 3]
    journal.release(2)
    await journal.close()
    assert journal_files(disk.folder, Disk()) == [2, 3]


async def test_a_folder_with_a_journal_is_not_taken_over(tmp_path: Path) -> None:
    await (await fill(tmp_path, 1, 100)).close()
    with pytest.raises(AssertionError, match="already contains a journal"):
        FileJournal(tmp_path, Disk(), CountedIds(), 100, newest)


async def test_a_missing_or_empty_folder_or_a_torn_first_header_holds_nothing(tmp_path: Path) -> None:
    assert list(read_journal(tmp_path / "missing", Disk())) == []
    assert list(read_journal(tmp_path, Disk())) == []
    file_path(tmp_path, 0).write_bytes(b"seaw")
    assert list(read_journal(tmp_path, Disk())) == []


@pytest.mark.parametrize("left", [[0, 2], [0, 1, 3], [1, 3]])
async def test_a_missing_file_in_the_middle_is_damage(tmp_path: Path, left: list[int]) -> None:
    await (await fill(tmp_path, 4, file_bytes=1)).close()
    for number in set(range(4)) - set(left):
        file_path(tmp_path, number).unlink()
    with pytest.raises(JournalDamaged, match="has file number"):
        list(read_journal(tmp_path, Disk()))


async def test_files_of_another_journal_are_damage(tmp_path: Path) -> None:
    await (await fill(tmp_path / "one", 2, file_bytes=1)).close()
    await (await fill(tmp_path / "other", 4, file_bytes=250)).close()
    file_path(tmp_path / "other", 1).rename(file_path(tmp_path / "one", 1))
    with pytest.raises(JournalDamaged):
        list(read_journal(tmp_path / "one", Disk()))


async def test_a_torn_header_in_the_last_file_leaves_the_file_before_as_the_last(tmp_path: Path) -> None:
    await (await fill(tmp_path, 2, file_bytes=1)).close()
    whole = file_path(tmp_path, 1).read_bytes()
    file_path(tmp_path, 1).write_bytes(whole[:30])
    assert payloads(tmp_path) == [b"0"]
    file_path(tmp_path, 0).write_bytes(file_path(tmp_path, 0).read_bytes()[:-1])
    assert payloads(tmp_path) == []
    file_path(tmp_path, 2).write_bytes(whole)
    with pytest.raises(JournalDamaged, match="it is not the journal's last file"):
        payloads(tmp_path)


async def test_removing_a_journal_takes_its_files_alone(tmp_path: Path) -> None:
    await (await fill(tmp_path, 3, file_bytes=1)).close()
    (tmp_path / "lock").touch()
    remove_journal(tmp_path, Disk())
    assert [each.name for each in tmp_path.iterdir()] == ["lock"]
    remove_journal(tmp_path / "missing", Disk())


def test_a_removal_whose_sync_failed_is_synced_by_the_next_try(tmp_path: Path) -> None:
    """Nothing was left to remove, so nobody synced, and behind a loss of power the file stayed (seed 440083)."""
    synced: list[str] = []

    class Failing(Disk):
        def sync_folder(self, folder: Path) -> None:
            if folder == tmp_path / "b" and not journal_files(folder, self):
                synced.append(folder.name)
                if len(synced) == 1:
                    raise OSError("a sync failed")
            super().sync_folder(folder)

    folder = tmp_path / "b"
    folder.mkdir()
    for name in ("done", file_path(folder, 0).name):
        (folder / name).touch()
    with pytest.raises(OSError, match="a sync failed"):
        remove_journal(folder, Failing())
    remove_journal(folder, Failing())
    assert synced == ["b", "b"]
    assert [one.name for one in folder.iterdir()] == ["done"]


def test_the_removal_of_files_is_durable_before_done_goes(tmp_path: Path) -> None:
    """A process died between a removal and its sync, another one removed `done`, and the power went: the file was
    there again."""
    calls: list[str] = []

    class Noted(Disk):
        def sync_folder(self, folder: Path) -> None:
            calls.append("sync")
            super().sync_folder(folder)

        def remove(self, path: Path) -> None:
            calls.append(path.name)
            super().remove(path)

    folder = tmp_path / "b"
    folder.mkdir()
    (folder / "done").touch()
    remove_folder(folder, Noted())
    assert calls == ["sync", "done"]
    assert not folder.exists()

"""A disk whose fsync fails, under a group commit: nothing of that commit is acknowledged, its file is left alone for
good, and a recovery finds all that was answered, at its offsets.
"""

import errno
import os
from pathlib import Path

import pytest

from seaweedq.clock import SystemIds
from seaweedq.errors import JournalUnavailable
from seaweedq.journal.disk import Disk
from seaweedq.journal.file_journal import FileJournal
from seaweedq.journal.file_reader import read_journal
from seaweedq.segments.frames import rows_of
from tests.support.brokers.commit_parts import LAYOUT, append, give, running, segment, values
from tests.support.levels import newest


class FailingDisk(Disk):
    """Real files; while `error` is set no sync succeeds. Remembers which files a sync failed on."""

    def __init__(self) -> None:
        self.error = 0
        self.failed: set[int] = set()  # inodes
        self.failures = 0

    def create(self, path: Path) -> int:
        fd = super().create(path)
        self.failed.discard(os.fstat(fd).st_ino)  # a new file may get the number of one that is gone
        return fd

    def sync(self, fd: int) -> None:
        inode = os.fstat(fd).st_ino
        assert inode not in self.failed, "a failed fsync was tried again on the same file"
        if self.error:
            self.failed.add(inode)
            self.failures += 1
            raise OSError(self.error, os.strerror(self.error))
        super().sync(fd)


def recovered(folder: Path) -> dict[int, bytes]:
    """What a recovery would append: values by offset; each offset has one."""
    found: dict[int, bytes] = {}
    for commit in read_journal(folder, Disk()):
        for frame in commit.frames:
            for at, value in enumerate(rows_of(frame, LAYOUT).column("value").to_pylist(), frame.first_offset):
                assert at not in found
                found[at] = value
    return found


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
async def test_only_what_was_answered_is_found_after_the_disk_has_healed(tmp_path: Path, error: int) -> None:
    disk, one = FailingDisk(), segment()
    journal = FileJournal(tmp_path / "journal", disk, SystemIds(), 1 << 20, newest)
    async with running(journal) as commit:
        await give(commit, append(one, b"a", b"b"))
        disk.error = error
        for n in range(3):
            with pytest.raises(JournalUnavailable, match=os.strerror(error)):
                await give(commit, append(one, b"lost-%d" % n))
        assert values(one) == [b"a", b"b"]
        disk.error = 0
        await give(commit, append(one, b"c"))
    assert disk.failures == 3
    assert dict(enumerate(values(one))) == recovered(tmp_path / "journal") == {0: b"a", 1: b"b", 2: b"c"}
    await journal.close()


@pytest.mark.parametrize("first", [True, False])
async def test_what_is_settled_does_not_come_back_in_a_recovery(tmp_path: Path, first: bool) -> None:
    """A segment may go to another broker then, whose rows take the same offsets, and return."""
    disk, one, folder = FailingDisk(), segment(), tmp_path / "journal"
    journal = FileJournal(folder, disk, SystemIds(), 1 << 20, newest)
    async with running(journal) as commit:
        await commit.settle()
        assert not folder.exists(), "there is nothing to settle"
        if first:
            journal._file = journal._open_file()  # a file without a commit, which the next one replaces
        else:
            await give(commit, append(one, b"a"))
        disk.error = errno.EIO
        with pytest.raises(JournalUnavailable):
            await give(commit, append(one, b"failed", b"failed"))
        kept = {} if first else {0: b"a"}
        assert len(recovered(folder)) == len(kept) + 2, "the kernel has the pages"
        with pytest.raises(JournalUnavailable, match="Input/output error"):
            await commit.settle()
        disk.error = 0
        await commit.settle()
        assert recovered(folder) == kept
        await commit.settle()
        await give(commit, append(one, b"b"))
        assert recovered(folder) == {**kept, len(kept): b"b"}
    await journal.close()


async def test_a_crash_while_the_disk_fails_keeps_what_was_answered(tmp_path: Path) -> None:
    disk, one = FailingDisk(), segment()
    journal = FileJournal(tmp_path / "journal", disk, SystemIds(), 1 << 20, newest)
    async with running(journal) as commit:
        await give(commit, append(one, b"a"))
        disk.error = errno.EIO
        with pytest.raises(JournalUnavailable):
            await give(commit, append(one, b"unknown"))
        found = recovered(tmp_path / "journal")
    assert found[0] == b"a"
    assert set(found.items()) <= {(0, b"a"), (1, b"unknown")}, "what was refused may be there, once"
    await journal.close()

"""The group commit: all or nothing, dense offsets after failures, and no answer that is not durable, also on a disk
whose fsync fails.
"""

import asyncio
import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from seaweedq.broker.log import group_commit
from seaweedq.broker.log.group_commit import Append, GroupCommit
from seaweedq.broker.log.open_segment import InFlight, Tail
from seaweedq.checks import InvariantViolated
from seaweedq.clock import SystemIds
from seaweedq.errors import Fenced, JournalUnavailable, NotReady, StoreUnavailable
from seaweedq.journal.disk import Disk
from seaweedq.journal.file_journal import FileJournal
from seaweedq.journal.file_recovery import read_journal
from seaweedq.segments.frames import Frame, FrameKind, rows_of
from seaweedq.segments.producers import Duplicate, New, Sequences
from tests.support.brokers.commit_parts import LAYOUT, StillClock, append, give, running, segment, single, values
from tests.support.journal.memory_journal import MemoryJournal
from tests.support.levels import newest


class Fate:
    """What becomes of each append: `errors` are raised in turn, None lets one pass; `gate` holds them up."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors = list(errors)
        self.gate = asyncio.Event()
        self.gate.set()
        self.entered = asyncio.Event()

    async def __call__(self, frames: Sequence[Frame]) -> None:
        self.entered.set()
        await self.gate.wait()
        error = self.errors.pop(0) if self.errors else None
        if error:
            raise error


FULL = JournalUnavailable("the disk is full")


async def test_what_waits_becomes_one_commit_in_the_order_of_the_requests() -> None:
    fate = Fate()
    fate.gate.clear()
    journal, one, two = MemoryJournal(fate), segment(1), segment(2)
    async with running(journal) as commit:
        first = give(commit, append(one, b"first"))
        await fate.entered.wait()
        waiting = [give(commit, append(one, b"%d" % n), append(two, b"%d" % n)) for n in range(5)]
        fate.gate.set()
        await asyncio.gather(first, *waiting)
    assert [len(c.frames) for c in journal.commits] == [1, 10]
    assert values(one) == [b"first", *(b"%d" % n for n in range(5))]
    assert values(two) == [b"%d" % n for n in range(5)]
    assert [f.first_offset for f in journal.commits[1].frames if f.segment == 1] == [1, 2, 3, 4, 5]


async def test_a_failed_commit_takes_nothing_and_leaves_no_hole() -> None:
    journal, one, two = MemoryJournal(Fate(None, FULL, FULL, None)), segment(1), segment(2)
    async with running(journal) as commit:
        await give(commit, append(one, b"a"))
        for _ in range(2):
            with pytest.raises(JournalUnavailable):
                await give(commit, append(one, b"lost"), append(two, b"lost"))
        assert (one.end, two.end) == (1, 0)
        assert await give(commit, append(one, b"b"), append(two, b"c")) == [1, 0]
    assert (values(one), values(two)) == ([b"a", b"b"], [b"c"])
    assert commit.committed == journal.commits[-1].number == 1


async def test_singles_fail_and_succeed_together_each_with_its_own_offset() -> None:
    journal, one = MemoryJournal(Fate(FULL, None)), segment()
    async with running(journal) as commit:
        lost = [commit.append_single(one, 0, single(b"%d" % n), None) for n in range(3)]
        assert [type(e) for e in await asyncio.gather(*lost, return_exceptions=True)] == [JournalUnavailable] * 3
        kept = [commit.append_single(one, 0, single(b"%d" % n), None) for n in range(3)]
        assert await asyncio.gather(*kept) == [0, 1, 2]
    assert values(one) == [b"0", b"1", b"2"]


async def test_a_failed_sequence_is_new_again_and_a_durable_one_a_duplicate() -> None:
    one, sequences = segment(), Sequences("p", 0, 0)
    async with running(MemoryJournal(Fate(FULL, None))) as commit:
        for expected in (JournalUnavailable, int):
            assert one.judge(0, sequences, 1) == New()
            done = commit.append_single(one, 0, single(b"x"), sequences)
            assert one.judge(0, sequences, 1) == InFlight(done)
            [outcome] = await asyncio.gather(done, return_exceptions=True)
            assert isinstance(outcome, expected)
    assert one.judge(0, sequences, 1) == Duplicate(0, 0)


async def test_a_lease_that_ends_before_the_answer_is_no_yes() -> None:
    fate, valid = Fate(), [True]
    fate.gate.clear()
    one, told = segment(), []
    acks = Frame(FrameKind.ACKS, "t", 0, 0, 0, 0, 0, (), 0, b"")
    async with running(MemoryJournal(fate), valid) as commit:
        batch, alone = give(commit, append(one, b"a")), commit.append_single(one, 0, single(b"b"), None)
        other = commit.append_frame(acks)
        other.add_done_callback(lambda number: told.append(number.result()))
        await fate.entered.wait()
        valid[0] = False
        fate.gate.set()
        outcomes = await asyncio.gather(batch, alone, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [NotReady] * 2
        assert await other == 0
        with pytest.raises(NotReady, match="lease"):
            commit.check_lease()
    assert one.end == 2, "what is durable keeps its offsets"
    assert told == [0], "and its commit"


async def test_who_waits_when_it_ends_is_told_and_nothing_more_is_taken() -> None:
    fate, one = Fate(), segment()
    fate.gate.clear()
    async with running(MemoryJournal(fate)) as commit:
        under_way = give(commit, append(one, b"a"))
        await fate.entered.wait()
        waiting = give(commit, append(one, b"b"))
    outcomes = await asyncio.gather(under_way, waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [NotReady] * 2
    with pytest.raises(NotReady):
        give(commit, append(one, b"c"))
    assert one.end == 0


async def test_a_fence_ends_it_for_good() -> None:
    one = segment()
    async with running(MemoryJournal(Fate(None, Fenced("taken over")))) as commit:
        await give(commit, append(one, b"a"))
        with pytest.raises(Fenced):
            await give(commit, append(one, b"b"))
        with pytest.raises(NotReady):
            give(commit, append(one, b"c"))
    assert values(one) == [b"a"]


async def test_whoever_goes_away_loses_only_the_answer() -> None:
    fate, one = Fate(), segment()
    fate.gate.clear()
    async with running(MemoryJournal(fate)) as commit:
        gone, stays = give(commit, append(one, b"a")), give(commit, append(one, b"b"))
        await fate.entered.wait()
        gone.cancel()
        fate.gate.set()
        await stays
        await commit.wait_until_idle()
    assert values(one) == [b"a", b"b"]


async def test_quiet_waits_for_earlier_additions_and_not_for_later_ones() -> None:
    fate, one = Fate(FULL, None), segment()
    fate.gate.clear()
    async with running(MemoryJournal(fate)) as commit:
        await asyncio.wait_for(commit.wait_until_idle(), 20)
        give(commit, append(one, b"a"))
        await fate.entered.wait()
        quiet = asyncio.create_task(commit.wait_until_idle())
        await asyncio.sleep(0)
        assert not quiet.done()
        fate.gate.set()
        await asyncio.wait_for(quiet, 20)
    assert one.end == 0


async def test_a_large_backlog_is_cut_into_commits_and_none_is_forgotten() -> None:
    fate, one = Fate(), segment()
    fate.gate.clear()
    journal = MemoryJournal(fate)
    async with running(journal) as commit:
        first = give(commit, append(one, b"x"))
        await fate.entered.wait()
        waiting = [give(commit, append(one, bytes(9 * 1024 * 1024))) for _ in range(8)]
        fate.gate.set()
        await asyncio.gather(first, *waiting)
    assert [len(c.frames) for c in journal.commits] == [1, 3, 3, 2]
    assert one.end == 9


class Paced(MemoryJournal):
    """A journal that lets an append begin when what waits fills one, and never before."""

    async def pace(self, is_full: asyncio.Event) -> None:
        await is_full.wait()


async def test_requests_that_fill_a_commit_end_the_wait_for_it() -> None:
    one, journal = segment(), Paced()
    async with running(journal) as commit:
        waiting = [give(commit, append(one, bytes(9 * 1024 * 1024))) for _ in range(3)]
        for _ in range(20):
            await asyncio.sleep(0)
        assert not journal.commits
        waiting += [give(commit, append(one, bytes(9 * 1024 * 1024))) for _ in range(4)]
        await asyncio.wait_for(asyncio.gather(*waiting[:6]), 20)
        for _ in range(20):
            await asyncio.sleep(0)
        assert [len(c.frames) for c in journal.commits] == [3, 3], "what is left fills none"


@pytest.mark.parametrize("window", [1, 3])
async def test_a_commit_is_released_only_behind_waiters_for_its_frames(window: int) -> None:
    """An ack pins its commit when it is told the commit's number; the upkeep may look at any step of the loop."""
    journal, told, looks = MemoryJournal(), [], []
    journal.window = window
    acks = Frame(FrameKind.ACKS, "t", 0, 0, 0, 0, 0, (), 0, b"")

    async def look_at_each_step() -> None:
        while True:
            looks.append((commit.committed, list(told)))
            await asyncio.sleep(0)

    async with running(journal) as commit:
        looking = asyncio.create_task(look_at_each_step())
        for n in range(20):
            commit.append_frame(acks).add_done_callback(lambda number: told.append(number.result()))
            for _ in range(n % 4):
                await asyncio.sleep(0)
        await commit.wait_until_idle()
        assert len(told) == 20, "who is quiet has been told"
        looking.cancel()
    numbers = [c.number for c in journal.commits]
    assert {committed for committed, _ in looks} >= set(numbers)
    for committed, known in looks:
        assert {number for number in numbers if number <= committed} <= set(known)


async def test_an_append_that_breaks_an_invariant_is_refused_the_next_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    journal, one, two = MemoryJournal(), segment(1), segment(2)
    async with running(journal) as commit:
        await give(commit, append(one, b"a"))
        torn = Append(two, append(two, b"b", b"c").encoded, append(two, b"b").waiters)
        with pytest.raises(InvariantViolated, match="segment 2 of 't' has 2 rows, and its waiters wait for 1"):
            await give(commit, append(one, b"lost"), torn)
        one.next = 0
        with pytest.raises(InvariantViolated, match="gives out offset 0, and its tail ends at 1"):
            await give(commit, append(one, b"lost"))
        one.next = 1
        assert await give(commit, append(one, b"d"), append(two, b"e")) == [1, 0]
    assert (values(one), values(two)) == ([b"a", b"d"], [b"e"])
    assert [len(c.frames) for c in journal.commits] == [1, 2]
    assert caplog.text.count("invariant violated: ") == 2


async def test_a_refused_commit_lets_no_later_one_pass_an_earlier_one() -> None:
    """The refused one is at its end at once; the one after it waits for the one before it all the same."""
    one, gates = segment(), [asyncio.Event(), asyncio.Event()]

    class Wide(MemoryJournal):
        """Each append has a gate of its own."""

        window = 3
        begun = 0

        async def append(self, frames: Sequence[Frame]) -> int:
            number, self.begun = self.begun, self.begun + 1
            await gates[number].wait()
            return number

    async with running(journal := Wide()) as commit:
        first = give(commit, append(one, b"a"))
        while not journal.begun:
            await asyncio.sleep(0)
        whole = append(one, b"b", b"c")
        with pytest.raises(InvariantViolated):
            await give(commit, Append(one, whole.encoded, append(one, b"b").waiters))
        quiet, last = asyncio.create_task(commit.wait_until_idle()), give(commit, append(one, b"d"))
        gates[1].set()
        for _ in range(20):
            await asyncio.sleep(0)
        assert journal.begun == 2
        assert (quiet.done(), last.done()) == (False, False), "the first one is still on its way"
        gates[0].set()
        assert await asyncio.gather(first, last) == [[0], [1]]
        await quiet
    assert values(one) == [b"a", b"d"]


class Check:
    """The look for a later history: `errors` are raised in turn, then it finds none."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.gate = asyncio.Event()
        self.begun = 0

    async def __call__(self) -> None:
        self.begun += 1
        await self.gate.wait()
        if self.errors:
            raise self.errors.pop(0)


async def pause() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("window", [1, 3])
async def test_nobody_is_answered_before_the_first_commit_is_checked_once(window: int) -> None:
    journal, one, check = MemoryJournal(), segment(), Check()
    journal.window = window
    async with running(journal, check_first=check) as commit:
        acks = commit.append_frame(Frame(FrameKind.ACKS, "t", 0, 0, 0, 0, 0, (), 0, b""))
        await pause()
        request = give(commit, append(one, b"a"))
        await pause()
        assert (acks.done(), request.done(), values(one)) == (False, False, [])
        assert (len(journal.commits), check.begun) == (1 if window == 1 else 2, 1)
        check.gate.set()
        assert (await acks, await request) == (0, [0])
        await give(commit, append(one, b"b"))
    assert check.begun == 1
    assert values(one) == [b"a", b"b"]


@pytest.mark.parametrize("window", [1, 3])
async def test_a_first_commit_of_an_earlier_history_is_never_answered(window: int) -> None:
    journal, one, check = MemoryJournal(), segment(), Check(Fenced("a later generation"))
    journal.window = window
    commit = GroupCommit(journal, StillClock(), lambda: True, check)
    loop = asyncio.create_task(commit.run())
    requests = [give(commit, append(one, b"a"))]
    await pause()
    requests.append(give(commit, append(one, b"b")))
    await pause()
    check.gate.set()
    for request in requests:
        with pytest.raises((Fenced, NotReady)):
            await asyncio.wait_for(request, 20)
    with pytest.raises(Fenced, match="a later generation"):
        await asyncio.wait_for(loop, 20)
    assert values(one) == []


async def test_a_first_commit_waits_for_a_store_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "CHECK_S", 0.0)
    one, check = segment(), Check(StoreUnavailable("away"), StoreUnavailable("away"))
    check.gate.set()
    async with running(MemoryJournal(), check_first=check) as commit:
        assert await give(commit, append(one, b"a")) == [0]
    assert check.begun == 3


@pytest.mark.parametrize("window", [1, 3])
async def test_a_durable_commit_that_does_not_fit_its_segment_ends_all(window: int) -> None:
    fate, one, two = Fate(), segment(1), segment(2)
    journal = MemoryJournal(fate)
    journal.window = window
    commit = GroupCommit(journal, StillClock(), lambda: True)
    loop = asyncio.create_task(commit.run())
    fate.gate.clear()
    request = give(commit, append(one, b"a"), append(two, b"b"))
    acks = commit.append_frame(Frame(FrameKind.ACKS, "t", 0, 0, 0, 0, 0, (), 0, b""))
    await fate.entered.wait()
    later = give(commit, append(one, b"c"))
    two.tail = Tail(7)
    fate.gate.set()
    with pytest.raises(InvariantViolated, match="are added to a tail that ends at 7"):
        await asyncio.wait_for(request, 20)
    with pytest.raises(InvariantViolated):
        await asyncio.wait_for(acks, 20)
    with pytest.raises(InvariantViolated):
        await asyncio.wait_for(loop, 20)
    with pytest.raises((NotReady, InvariantViolated)):
        await asyncio.wait_for(later, 20)
    await asyncio.wait_for(commit.wait_until_idle(), 20)


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
        await commit.finish()
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
            await commit.finish()
        disk.error = 0
        await commit.finish()
        assert recovered(folder) == kept
        await commit.finish()
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

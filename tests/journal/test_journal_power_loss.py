"""Whatever fails and whenever the power goes: every acknowledged commit is read back, and nothing that was not sent."""

import asyncio
import errno
import shutil
import tempfile
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from seaweedq.errors import JournalUnavailable
from seaweedq.journal.disk import Disk
from seaweedq.journal.file_journal import FileJournal, journal_files
from seaweedq.journal.file_recovery import read_journal
from tests.support.journal.sim_disk import CountedIds, Fault, SimDisk, acks
from tests.support.levels import newest
from tests.support.tiers import examples

FAULTS = st.dictionaries(
    st.integers(0, 60), st.builds(Fault, st.sampled_from([errno.ENOSPC, errno.EIO]), st.booleans()), max_size=12
)
STEPS = st.lists(st.integers(-4, 300), min_size=1, max_size=9)
"""An append of so many bytes and more; below zero a release of all commits but the newest -1 - step."""


class History:
    """What was sent and acknowledged, and the check that a crash now would do no harm."""

    def __init__(self, work: Path, disk: SimDisk) -> None:
        self.work, self.disk = work, disk
        self.acknowledged: list[bytes] = []
        self.sending: set[bytes] = set()  # since the last acknowledgement
        self.released = 0
        self.checked: set[object] = set()
        self.failures: list[BaseException] = []

    def watch(self) -> None:
        """`check` for the journal's thread, whose errors are not all seen."""
        try:
            self.check()
        except BaseException as failure:
            self.failures.append(failure)
            raise

    def check(self) -> None:
        for crash in self.disk.crashes():
            state = (frozenset(crash.items()), frozenset(self.sending), len(self.acknowledged), self.released)
            if state in self.checked:
                continue
            self.checked.add(state)
            shutil.rmtree(self.work, ignore_errors=True)
            self.work.mkdir()
            for name, data in crash.items():
                (self.work / name).write_bytes(data)
            self.judge([(c.number, bytes(c.frames[0].payload)) for c in read_journal(self.work, Disk())])

    def judge(self, found: list[tuple[int, bytes]]) -> None:
        numbers = [number for number, _ in found]
        end = len(self.acknowledged)
        assert set(range(self.released, end)) <= set(numbers), "an acknowledged commit is lost"
        for number, payload in found:
            if number < end:
                assert payload == self.acknowledged[number]
            else:
                assert number == end
                assert payload in self.sending


async def run(folder: Path, steps: list[int], faults: dict[int, Fault], short: int) -> None:
    disk = SimDisk(folder / "journal", faults, short)
    history = History(folder / "crashed", disk)
    disk.watch = history.watch
    (folder / "journal").mkdir()
    journal = FileJournal(folder / "journal", disk, CountedIds(), 700, newest)
    for at, step in enumerate(steps):
        if step < 0:
            history.released = max(history.released, len(history.acknowledged) + 1 + step)
            journal.release(history.released)
            continue
        payload = f"{at}:".encode() + b"x" * step
        history.sending.add(payload)
        try:
            number = await journal.append(acks(payload))
        except JournalUnavailable:
            continue
        assert number == len(history.acknowledged)
        history.acknowledged.append(payload)
        history.sending = set()
    disk.faults = {}
    history.sending.add(b"healed")
    assert await journal.append(acks(b"healed")) == len(history.acknowledged)
    history.acknowledged.append(b"healed")
    await journal.close()
    history.check()
    assert not history.failures
    assert len(history.checked) > 5
    files = journal_files(folder / "journal", Disk())
    assert len(files) <= len(history.acknowledged), "half-made files pile up"


@settings(max_examples=examples(60))
@given(STEPS, FAULTS, st.sampled_from([1 << 30, 100, 7]))
@example([50, 50, -1, 50], {at: Fault(errno.ENOSPC) for at in range(9, 40)}, 1 << 30)
@example([700, 700, -2, 700, 700, -1, 10], {}, 1 << 30)
@example([50, 50, 50], {9: Fault(errno.EIO)}, 1 << 30)
def test_no_acknowledged_commit_is_ever_lost(steps: list[int], faults: dict[int, Fault], short: int) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        asyncio.run(run(folder, steps, faults, short))
    finally:
        shutil.rmtree(folder)

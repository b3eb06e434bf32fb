"""What every journal promises: run over the twin in memory and the one in files."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from sim_disk import CountedIds, acks

from seaweedq.broker.file_journal import FileJournal
from seaweedq.broker.journal import Journal
from seaweedq.broker.journal_files import read_journal
from seaweedq.broker.memory_journal import MemoryJournal
from seaweedq.errors import JournalUnavailable
from seaweedq.segments.commits import Commit

Held = Callable[[], list[Commit]]


@pytest.fixture(params=["memory", "file"])
async def opened(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Journal, Held]]:
    journal: Journal
    if request.param == "memory":
        memory = journal = MemoryJournal()
        yield memory, lambda: list(memory.commits)
    else:
        journal = FileJournal(tmp_path / "journal", CountedIds(), 1000)
        yield journal, lambda: list(read_journal(tmp_path / "journal"))
    await journal.close()


async def test_commits_are_numbered_from_zero_and_kept_in_order(opened: tuple[Journal, Held]) -> None:
    journal, held = opened
    assert [await journal.append(acks(b"%d" % n) * n) for n in range(5)] == [0, 1, 2, 3, 4]
    assert [(c.number, [bytes(f.payload) for f in c.frames]) for c in held()] == [
        (n, [b"%d" % n] * n) for n in range(5)
    ]


async def test_unreleased_bytes_rise_with_commits_and_fall_with_release(opened: tuple[Journal, Held]) -> None:
    journal, _ = opened
    assert journal.unreleased_bytes == 0
    await journal.append(acks(b"a" * 500))
    one = journal.unreleased_bytes
    assert one > 500
    await journal.append(acks(b"b" * 500))
    journal.release(0)
    assert journal.unreleased_bytes == 2 * one
    journal.release(1)
    journal.release(1)
    assert journal.unreleased_bytes == one
    journal.release(2)
    assert journal.unreleased_bytes == 0


async def test_release_takes_nothing_that_is_needed_and_numbers_go_on(opened: tuple[Journal, Held]) -> None:
    journal, held = opened
    for _ in range(6):
        await journal.append(acks(b"x" * 400))
    journal.release(4)
    assert await journal.append(acks(b"x")) == 6
    numbers = [commit.number for commit in held()]
    assert {4, 5, 6} <= set(numbers)
    assert 0 not in numbers


async def test_one_append_at_a_time(opened: tuple[Journal, Held]) -> None:
    journal, _ = opened

    async def two() -> None:
        if isinstance(journal, MemoryJournal):
            journal.hook = lambda frames: asyncio.sleep(0)
        await asyncio.gather(journal.append(acks(b"a")), journal.append(acks(b"b")))

    with pytest.raises(AssertionError, match="one append"):
        await two()


async def test_a_closed_journal_takes_nothing_and_keeps_what_it_has(opened: tuple[Journal, Held]) -> None:
    journal, held = opened
    await journal.append(acks(b"a"))
    await journal.close()
    await journal.close()
    with pytest.raises(JournalUnavailable):
        await journal.append(acks(b"b"))
    journal.release(0)
    assert len(held()) == 1


async def test_the_twins_hook_decides_the_fate_of_a_commit() -> None:
    async def fail(frames: object) -> None:
        raise JournalUnavailable("as told")

    journal = MemoryJournal(fail)
    with pytest.raises(JournalUnavailable, match="as told"):
        await journal.append(acks(b"a"))
    assert (len(journal.commits), journal.unreleased_bytes) == (0, 0)
    journal.hook = MemoryJournal().hook
    assert await journal.append(acks(b"a")) == 0

"""What every journal promises its broker: run over the twin in memory, the one in files and the one in objects."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from seaweedq.errors import JournalUnavailable
from seaweedq.journal.interface import Journal
from seaweedq.journal.memory_journal import MemoryJournal
from seaweedq.segments.frames import Commit, Frame, FrameKind
from tests.support.journal.backends import BACKENDS, IN_BACKENDS
from tests.support.journal.sim_disk import acks

Held = Callable[[], Awaitable[list[Commit]]]


@pytest.fixture(params=IN_BACKENDS)
async def opened(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Journal, Held]]:
    backend = BACKENDS[request.param](request, tmp_path)
    journal = backend.create()
    yield journal, backend.held
    await journal.close()
    await backend.close()


async def test_commits_are_numbered_from_zero_and_kept_in_order(opened: tuple[Journal, Held]) -> None:
    journal, held = opened
    assert [await journal.append(acks(b"%d" % n) * n) for n in range(5)] == [0, 1, 2, 3, 4]
    assert [(c.number, [bytes(f.payload) for f in c.frames]) for c in await held()] == [
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
    numbers = [commit.number for commit in await held()]
    assert {4, 5, 6} <= set(numbers)
    assert 0 not in numbers


async def test_no_more_appends_at_a_time_than_the_window(opened: tuple[Journal, Held]) -> None:
    journal, _ = opened

    async def too_many() -> None:
        if isinstance(journal, MemoryJournal):
            journal.hook = lambda frames: asyncio.sleep(0)
        await asyncio.gather(*(journal.append(acks(b"a")) for _ in range(journal.window + 1)))

    with pytest.raises(AssertionError, match="one append"):
        await too_many()


async def test_pace_of_a_journal_that_does_not_linger_returns_at_once(opened: tuple[Journal, Held]) -> None:
    journal, _ = opened
    async with asyncio.timeout(5):
        for _ in range(3):
            await journal.pace(asyncio.Event())
            await journal.append(acks(b"a"))


async def test_a_closed_journal_takes_nothing_and_keeps_what_it_has(opened: tuple[Journal, Held]) -> None:
    journal, held = opened
    await journal.append(acks(b"a"))
    await journal.close()
    await journal.close()
    with pytest.raises(JournalUnavailable):
        await journal.append(acks(b"b"))
    journal.release(0)
    assert len(await held()) == 1


async def test_a_journal_that_is_removed_holds_nothing(opened: tuple[Journal, Held]) -> None:
    journal, held = opened
    for _ in range(3):
        await journal.append(acks(b"a" * 800))
    journal.release(3)
    await journal.close()
    await journal.remove()
    assert await held() == []
    await journal.remove()


async def test_a_journal_that_is_not_closed_is_not_removed(opened: tuple[Journal, Held]) -> None:
    journal, _ = opened
    with pytest.raises(AssertionError):
        await journal.remove()


async def test_frames_that_no_reader_could_trust_are_not_written(opened: tuple[Journal, Held]) -> None:
    journal, held = opened
    for kind, count in ((FrameKind.ROWS, 0), (FrameKind.ACKS, 1), (FrameKind.EMPTY_ENTRY, 1)):
        with pytest.raises(AssertionError, match="rows have a count"):
            await journal.append([Frame(kind, "t", 0, 0, count, 0, 0, (), 0, b"x")])
    assert await journal.append(acks(b"a")) == 0
    assert len(await held()) == 1


async def test_the_twins_hook_decides_the_fate_of_a_commit() -> None:
    async def fail(frames: object) -> None:
        raise JournalUnavailable("as told")

    journal = MemoryJournal(fail)
    with pytest.raises(JournalUnavailable, match="as told"):
        await journal.append(acks(b"a"))
    assert (len(journal.commits), journal.unreleased_bytes) == (0, 0)
    journal.hook = MemoryJournal().hook
    assert await journal.append(acks(b"a")) == 0

"""The promises of each journal to its broker, and of a dead one to its recovery: run over all kinds, twin included."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from seaweedq.errors import Fenced, JournalDamaged, JournalUnavailable, StoreUnavailable
from seaweedq.journal.interface import DeadJournal, Journal, JournalUnreachable, Seen
from seaweedq.segments.frames import Commit, Frame, FrameKind, empty_entry_frame
from tests.support.journal.backends import BACKENDS, BROKER, IN_BACKENDS, Backend
from tests.support.journal.claims import unbounded
from tests.support.journal.memory_journal import MemoryJournal
from tests.support.journal.sim_disk import acks

Held = Callable[[], Awaitable[list[Commit]]]
STEPS = ["fence", "read one", "read all", "remove"]


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
    await journal.append(acks(b"a"))  # from here on no append waits for a mirror to join

    async def too_many() -> None:
        if isinstance(journal, MemoryJournal):
            journal.hook = lambda frames: asyncio.sleep(0)
        await asyncio.gather(*(journal.append(acks(b"a")) for _ in range(journal.window + 1)))

    with pytest.raises(AssertionError, match="one append"):
        await too_many()


async def test_pace_of_a_journal_that_does_not_linger_returns_at_once(opened: tuple[Journal, Held]) -> None:
    journal, _ = opened
    async with asyncio.timeout(15):
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


@pytest.fixture(params=IN_BACKENDS)
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    made = BACKENDS[request.param](request, tmp_path)
    yield made
    await made.close()


def payload(number: int) -> bytes:
    return b"%d:" % number + b"x" * 300


async def filled(backend: Backend, commits: int) -> Journal:
    journal = backend.create()
    for number in range(commits):
        assert await journal.append(acks(payload(number))) == number
    return journal


async def left_behind(backend: Backend, commits: int) -> None:
    """A journal whose broker has died."""
    await (await filled(backend, commits)).close()
    backend.die()


async def read(dead: DeadJournal) -> list[int]:
    """The numbers of the commits, each of which holds what was written. Several may be in one, by the last number."""
    numbers = []
    async for commit in dead.commits(unbounded):
        numbers += [number_of(frame) for frame in commit.frames]
        assert numbers[-1] == commit.number
    return numbers


def number_of(frame: Frame) -> int:
    number = int(bytes(frame.payload).partition(b":")[0])
    assert bytes(frame.payload) == payload(number)
    return number


async def recovered(backend: Backend) -> list[int]:
    """What one more process finds and then removes."""
    dead = backend.open_dead()
    try:
        await dead.fence()
        found = await read(dead)
        backend.mark()
        await dead.remove()
        return found
    finally:
        await dead.close()


async def test_all_commits_come_in_their_order(backend: Backend) -> None:
    await left_behind(backend, 12)
    assert await recovered(backend) == list(range(12))


async def test_a_journal_that_was_never_begun_holds_nothing(backend: Backend) -> None:
    backend.die()
    assert await recovered(backend) == []
    assert await recovered(backend) == []


async def test_released_commits_may_be_gone_all_others_are_there(backend: Backend) -> None:
    journal = await filled(backend, 9)
    journal.release(6)
    for number in (9, 10):
        assert await journal.append(acks(payload(number))) == number
    await journal.close()
    backend.die()
    found = await recovered(backend)
    assert found == list(range(found[0], 11))
    assert found[0] <= 6


async def test_a_fence_holds_however_often_it_is_set(backend: Backend) -> None:
    await left_behind(backend, 5)
    for _ in range(2):
        dead = backend.open_dead()
        for _ in range(3):
            await dead.fence()
            assert await read(dead) == list(range(5))
        await dead.close()


async def test_two_recoveries_at_once_find_the_same_or_one_of_them_waits(backend: Backend) -> None:
    await left_behind(backend, 5)
    one, other = backend.open_dead(), backend.open_dead()
    await one.fence()
    try:
        await other.fence()
        assert await read(other) == list(range(5))
    except JournalUnreachable:
        await one.close()
        await other.fence()
        assert await read(other) == list(range(5))
        with pytest.raises(JournalUnreachable):
            await recovered(backend)
    await one.close()
    await other.close()


async def test_what_a_fenced_broker_acknowledges_is_nothing(backend: Backend) -> None:
    """Either its journal cannot be had while its process lives, or its next append is refused."""
    journal = await filled(backend, 3)
    dead = backend.open_dead()
    try:
        await dead.fence()
        with pytest.raises(Fenced):
            await journal.append(acks(payload(3)))
        with pytest.raises(Fenced):
            await journal.append(acks(payload(3)))
    except JournalUnreachable:
        assert await journal.append(acks(payload(3))) == 3
    await journal.close()
    backend.die()
    await dead.fence()
    found = await read(dead)
    assert found[:3] == [0, 1, 2]
    await dead.close()


async def test_what_is_acknowledged_amid_a_fencing_is_read(backend: Backend) -> None:
    journal = await filled(backend, 3)
    acknowledged = []

    async def go_on() -> None:
        for number in range(3, 1000):
            acknowledged.append(await journal.append(acks(payload(number))))
            await asyncio.sleep(backend.pause_s)

    going = asyncio.create_task(go_on())
    dead = backend.open_dead()
    await asyncio.sleep(0.02)
    with suppress(JournalUnreachable):
        await dead.fence()
        with pytest.raises(Fenced):
            await going
    going.cancel()
    await asyncio.gather(going, return_exceptions=True)
    await journal.close()
    backend.die()
    await dead.fence()
    assert set(acknowledged) | {0, 1, 2} <= set(await read(dead))
    await dead.close()


async def test_a_torn_end_is_cut(backend: Backend) -> None:
    await left_behind(backend, 6)
    await backend.tear()
    assert await recovered(backend) == list(range(5))


async def test_damage_is_told_behind_what_is_sound(backend: Backend) -> None:
    await left_behind(backend, 6)
    await backend.damage(1)
    dead = backend.open_dead()
    await dead.fence()
    reading = dead.commits(unbounded)
    assert (await anext(reading)).number == 0
    with pytest.raises(JournalDamaged):
        await anext(reading)
    await dead.close()


async def test_a_reader_may_stop_anywhere(backend: Backend) -> None:
    await left_behind(backend, 40)
    dead = backend.open_dead()
    await dead.fence()
    reading = dead.commits(unbounded)
    assert number_of((await anext(reading)).frames[0]) == 0
    await reading.aclose()
    assert await read(dead) == list(range(40))
    await dead.close()


@pytest.mark.parametrize("steps", range(len(STEPS) + 1), ids=["nothing", *STEPS])
async def test_whoever_comes_after_a_crash_between_two_steps_begins_again(backend: Backend, steps: int) -> None:
    await left_behind(backend, 8)
    dead = backend.open_dead()
    if steps >= 1:
        await dead.fence()
    if steps >= 2:
        reading = dead.commits(unbounded)
        assert number_of((await anext(reading)).frames[0]) == 0
        await reading.aclose()
    if steps >= 3:
        assert await read(dead) == list(range(8))
    if steps >= 4:
        backend.mark()
        await dead.remove()
    await dead.close()  # its process is gone, with all that it holds
    assert await recovered(backend) == ([] if steps >= 4 else list(range(8)))
    assert await recovered(backend) == []


@pytest.mark.parametrize("removals", range(4))
async def test_a_removal_that_ends_early_is_repeated(backend: Backend, removals: int) -> None:
    await left_behind(backend, 12)
    dead = backend.open_dead()
    await dead.fence()
    backend.mark()
    backend.refuse_removals(removals)
    with pytest.raises((JournalUnavailable, StoreUnavailable)):
        await dead.remove()
    backend.refuse_removals(None)
    await dead.close()
    found = await recovered(backend)
    assert found == list(range(found[0], 12)) if found else True
    assert await recovered(backend) == []


@pytest.mark.parametrize("is_stop", [False, True], ids=["a recovery", "a clean stop"])
async def test_a_removal_says_so_before_the_first_of_it_goes(backend: Backend, is_stop: bool) -> None:
    """So whoever knows nothing of it, since coordination is of an earlier day, finds an empty journal and no damage."""
    journal = await filled(backend, 12)
    journal.release(12 if is_stop else 0)
    await journal.close()
    if not is_stop:
        backend.die()
    dead = backend.open_dead()
    if not is_stop:
        await dead.fence()
    for removals in (0, 1):
        backend.refuse_removals(removals)
        with pytest.raises((JournalUnavailable, StoreUnavailable)):
            await (journal if is_stop else dead).remove()
    backend.refuse_removals(None)
    await dead.close()
    if is_stop:
        backend.die()
    assert not backend.record.recovered
    assert await recovered(backend) == []


async def test_a_journal_is_needed_from_its_first_commit_until_it_is_done(backend: Backend) -> None:
    """And says what its broker had seen of coordination at its newest commit."""
    if not backend.is_listed:
        pytest.skip("no rebuild finds the memory of other brokers")
    assert await backend.writer.needed() == []
    journal = backend.create()
    assert await backend.writer.needed() == []
    for number in range(12):
        backend.seen = Seen(3, 100 + number)
        await journal.append(acks(payload(number)))
        (found,) = await backend.writer.needed()
        assert (found.broker, found.record.kind, found.unread) == (BROKER, backend.record.kind, "")
        assert backend.record.kind == "memory" or found.seen == backend.seen
    journal.release(11)
    backend.seen = Seen(3, 200)
    await journal.close()
    backend.die()
    backend.home.lock()
    same = backend.journals(backend.home)
    (found,) = await same.needed()
    dead = same.open_dead(BROKER, backend.record)
    await dead.fence()
    assert (await same.needed()) == [found], "a fence is of another broker"
    backend.mark()
    await dead.remove()
    await dead.close()
    assert await same.needed() == []


async def test_the_highest_term_of_each_segment_is_told(backend: Backend) -> None:
    journal = backend.create()
    for term, segment in [((1, 1), 0), ((1, 3), 0), ((1, 2), 1), ((2, 1), 1), ((1, 9), 1)]:
        frame = empty_entry_frame("t" if segment else "u", segment, 5, 0, term)
        await journal.append([*acks(b"x" * 900), frame])
    many = [empty_entry_frame(f"many-{number:03d}", number, 5, 0, (7, number + 1)) for number in range(500)]
    await journal.append(many)
    await journal.close()
    backend.die()
    dead = backend.open_dead()
    await dead.fence()
    expected = {("u", 0): (1, 3), ("t", 1): (2, 1)}
    assert await dead.terms() == expected | {(f"many-{n:03d}", n): (7, n + 1) for n in range(500)}
    await dead.close()


async def test_a_removed_journal_can_be_removed_again(backend: Backend) -> None:
    await left_behind(backend, 8)
    dead = backend.open_dead()
    await dead.fence()
    backend.mark()
    for _ in range(3):
        await dead.remove()
    await dead.close()
    assert await recovered(backend) == []


async def test_the_process_of_the_same_folder_recovers_it_too(backend: Backend) -> None:
    await left_behind(backend, 4)
    backend.home.lock()  # the next process there
    dead = backend.journals(backend.home).open_dead(BROKER, backend.record)
    await dead.fence()
    assert await read(dead) == list(range(4))
    backend.mark()
    await dead.remove()
    await dead.close()


async def test_nothing_is_left_open(backend: Backend) -> None:
    await left_behind(backend, 30)
    before = asyncio.all_tasks()
    dead = backend.open_dead()
    await dead.fence()
    async for _ in dead.commits(unbounded):
        pass
    await dead.close()
    await dead.close()
    assert asyncio.all_tasks() == before

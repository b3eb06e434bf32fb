"""What the SQLite backend alone promises: several real processes, crashes, reboots, full disks, few fsyncs."""

import asyncio
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from seaweedq.clock import SystemClock
from seaweedq.coordination.interface import Change, Compare, Delete, Put
from seaweedq.coordination.sqlite import FILE, EmbeddedCoordination, boot_id
from seaweedq.errors import CoordinationUnavailable, Damaged, UnfitStore
from tests.support import privates

PRELUDE = """
import asyncio, sys
from pathlib import Path
from seaweedq.clock import SystemClock
from seaweedq.coordination.sqlite import EmbeddedCoordination
from seaweedq.coordination.interface import Compare, Put

coordination = EmbeddedCoordination(Path(sys.argv[1]), SystemClock(), busy_s=20)

async def increment():
    while True:
        entry = await coordination.get("n")
        value, revision = (int(entry.value), entry.revision) if entry else (0, 0)
        if await coordination.commit([Compare("n", revision)], [Put("n", str(value + 1).encode())]):
            return value + 1
"""
INCREMENT = """
async def main():
    for _ in range(100):
        await increment()
    await coordination.close()
"""
INCREMENT_FOR_EVER = """
async def main():
    while True:
        print(await increment(), flush=True)
"""
HOLD_A_LEASE = """
async def main():
    lease = (await coordination.leases.grant(2.5)).lease
    await coordination.commit([], [Put("held", b"", lease)])
    print("held", flush=True)
    while await coordination.leases.renew(lease):
        await asyncio.sleep(0.1)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "coordination.sqlite"


@pytest.fixture
async def coordination(path: Path) -> AsyncIterator[EmbeddedCoordination]:
    coordination = EmbeddedCoordination(path, SystemClock(), poll_s=0.01)
    yield coordination
    await coordination.close()


async def process(script: str, path: Path) -> asyncio.subprocess.Process:
    code = f"{PRELUDE}{script}\nasyncio.run(main())"
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, str(path), stdout=asyncio.subprocess.PIPE, cwd=os.getcwd()
    )


@pytest.mark.process
async def test_processes_that_race_from_the_first_moment_count_every_increment(
    path: Path, coordination: EmbeddedCoordination
) -> None:
    processes = [await process(INCREMENT, path) for _ in range(3)]  # they also race to create the file
    assert [await racer.wait() for racer in processes] == [0, 0, 0]
    entry = await coordination.get("n")
    assert entry is not None
    assert (entry.value, entry.revision) == (b"300", 300)


@pytest.mark.process
async def test_a_killed_process_loses_its_lease_but_not_before(path: Path, coordination: EmbeddedCoordination) -> None:
    holder = await process(HOLD_A_LEASE, path)
    assert holder.stdout
    assert await holder.stdout.readline() == b"held\n"
    entry = await coordination.get("held")
    assert entry is not None
    watch = coordination.watch("held", entry.revision)
    ended = asyncio.ensure_future(anext(watch))
    await asyncio.wait([ended], timeout=3)
    assert not ended.done()  # longer than its lease: it was renewed
    holder.send_signal(signal.SIGKILL)
    async with asyncio.timeout(30):
        assert list(await ended) == [Change("held", None, entry.revision + 1)]
    assert await holder.wait() == -9
    assert await coordination.get("held") is None


@pytest.mark.process
async def test_what_a_killed_process_was_told_is_there(path: Path, coordination: EmbeddedCoordination) -> None:
    for _ in range(3):
        writer = await process(INCREMENT_FOR_EVER, path)
        assert writer.stdout
        for _ in range(20):
            told = int(await writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        rest = (await writer.stdout.read()).split(b"\n")[:-1]
        await writer.wait()
        entry = await coordination.get("n")
        assert entry is not None
        assert int(entry.value) in (int(rest[-1]) if rest else told, (int(rest[-1]) if rest else told) + 1)


class Still:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def now_us(self) -> int:
        return 0

    def monotonic_s(self) -> float:
        return self.seconds


@pytest.mark.parametrize(
    ("boot", "seconds", "alive"), [("one", 1001, True), ("two", 1001, False), ("one", 1, False), ("one", 2000, False)]
)
async def test_leases_of_another_boot_have_ended(path: Path, boot: str, seconds: float, alive: bool) -> None:
    before = EmbeddedCoordination(path, Still(1000), boot="one")
    lease = (await before.leases.grant(60)).lease
    await before.commit([], [Put("a", b"", lease)])
    await before.close()
    after = EmbeddedCoordination(path, Still(seconds), boot=boot)
    assert (await after.get("a") is not None) == alive
    assert await after.leases.renew(lease) == alive
    assert (await after.leases.grant(60)).lease > lease
    await after.close()


def test_this_system_names_its_boot() -> None:
    expected = Path("/proc/sys/kernel/random/boot_id")
    assert boot_id() == (expected.read_text().strip() if expected.exists() else "")


async def test_everything_is_there_after_closing(path: Path) -> None:
    for turn in range(3):
        coordination = EmbeddedCoordination(path, SystemClock())
        entry = await coordination.get("a")
        assert (entry.revision if entry else 0) == turn
        await coordination.commit([Compare("a", turn)], [Put("a", b"")])
        await coordination.close()
    assert os.listdir(path.parent) == [path.name]


async def test_a_lock_held_for_too_long_is_unavailable(path: Path) -> None:
    coordination = EmbeddedCoordination(path, SystemClock(), busy_s=0.05)
    await coordination.commit([], [Put("a", b"before")])
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(CoordinationUnavailable, match="locked"):
        await coordination.commit([], [Put("a", b"after")])
    entry = await coordination.get("a")  # readers do not wait for writers
    assert entry is not None
    assert entry.value == b"before"
    blocker.execute("ROLLBACK")
    blocker.close()
    assert await coordination.commit([], [Put("a", b"after")])
    await coordination.close()


async def test_a_full_disk_is_unavailable_and_changes_nothing(
    coordination: EmbeddedCoordination, monkeypatch: pytest.MonkeyPatch
) -> None:
    await coordination.commit([], [Put("a", b"before")])
    database: Any = privates.engine(coordination)

    def limit(pages: int) -> None:
        database._connection.execute(f"PRAGMA max_page_count = {pages}")

    await privates.run(coordination)(limit, 1)
    with pytest.raises(CoordinationUnavailable, match="full"):
        await coordination.commit([], [Put("a", b"after"), Put("big", bytes(600_000))])
    entry = await coordination.get("a")
    assert entry is not None
    assert (entry.value, (await coordination.range("")).revision) == (b"before", 1)
    await privates.run(coordination)(limit, 2**30)
    assert await coordination.commit([], [Put("a", b"after")]) == 2


async def test_a_missing_folder_is_unavailable(tmp_path: Path) -> None:
    coordination = EmbeddedCoordination(tmp_path / "missing" / "file", SystemClock())
    with pytest.raises(CoordinationUnavailable, match="unable to open"):
        await coordination.get("a")
    await coordination.close()


async def test_a_file_that_is_no_database_is_damage(path: Path) -> None:
    path.write_bytes(b"no database" * 1000)
    coordination = EmbeddedCoordination(path, SystemClock())
    with pytest.raises(Damaged, match="not a database"):
        await coordination.get("a")
    await coordination.close()


async def test_a_later_format_is_refused(path: Path) -> None:
    later = sqlite3.connect(path)
    later.execute(f"PRAGMA user_version = {FILE.newest + 1}")
    later.close()
    coordination = EmbeddedCoordination(path, SystemClock())
    with pytest.raises(UnfitStore, match=r"format 2.*can read only format 1"):
        await coordination.get("a")
    await coordination.close()


async def test_a_watch_reports_what_it_cannot_read(path: Path) -> None:
    coordination = EmbeddedCoordination(path / "missing", SystemClock())
    with pytest.raises(CoordinationUnavailable):
        await anext(aiter(coordination.watch("", 0)))
    await coordination.close()


async def test_own_changes_wake_watches_without_any_poll(path: Path) -> None:
    coordination = EmbeddedCoordination(path, SystemClock(), poll_s=3600)
    lease = (await coordination.leases.grant(60)).lease
    watch = coordination.watch("", 0)
    acts: list[Callable[[], Awaitable[object]]] = [
        lambda: coordination.commit([], [Put("a", b"", lease)]),
        lambda: coordination.leases.revoke(lease),
    ]
    for act in acts:
        waiting = asyncio.ensure_future(anext(watch))
        for _ in range(3):
            await coordination.get("a")  # the watch has looked, and waits
        async with asyncio.timeout(30):
            await act()
            await waiting
    await coordination.close()


async def test_the_log_is_bounded(path: Path) -> None:
    coordination = EmbeddedCoordination(path, SystemClock(), log_limit=10)
    for n in range(40):
        await coordination.commit([], [Put("a", b"%d" % n), Put("b", b"")])
    await coordination.commit([], [Delete("a")])
    await coordination.close()
    reader = sqlite3.connect(path)
    assert reader.execute("SELECT count(*), min(revision), max(revision) FROM log").fetchone() == (19, 32, 41)
    reader.close()


async def test_a_long_log_is_read_in_whole_transactions(coordination: EmbeddedCoordination) -> None:
    for n in range(600):
        await coordination.commit([], [Put("a/1", b"%d" % n), Put("a/2", b"%d" % n)])
    found: list[Change] = []
    async with asyncio.timeout(30):
        async for group in coordination.watch("a/", 0):
            assert len(group) % 2 == 0
            found += group
            if len(found) == 1200:
                break
    assert [change.revision for change in found] == [n for n in range(1, 601) for _ in range(2)]

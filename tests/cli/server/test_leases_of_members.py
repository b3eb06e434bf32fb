"""The parent ends the leases of a broker whose process has ended: that one's alone, and with it the mark."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from seaweedq.cli.server.backends import open_coordination
from seaweedq.cli.server.supervise import end_lease
from seaweedq.clock import SystemClock
from seaweedq.concurrency.pools import Pools
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Coordination, Put
from seaweedq.coordination.records import BrokerRecord, JournalRecord, RevocationRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.journal.disk import Disk
from seaweedq.journal.home_folder import IDENTITY_FILE, FolderLock
from seaweedq.settings import Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path, brokers=3)


@pytest.fixture
async def coordination(settings: Settings) -> AsyncIterator[Coordination]:
    """Has brokers 1 and 2, each with a journal and a mark."""
    pools = Pools()
    coordination = open_coordination(settings, SystemClock(), pools)
    for number in (1, 2):
        home = _home(settings, number)
        home.mkdir(parents=True)
        (home / IDENTITY_FILE).write_text(f"folder-{number}")
        grant = await coordination.leases.grant(60)
        records = [
            Put(f"brokers/b.{number}", keys.BROKERS.encode(Versioned.new(BrokerRecord("", "b", 0))), grant.lease),
            Put(f"journals/b.{number}", keys.JOURNALS.encode(Versioned.new(JournalRecord("file", f"folder-{number}")))),
            Put(f"revocations/b.{number}", keys.REVOCATIONS.encode(Versioned.new(RevocationRecord("x", (), 60.0)))),
        ]
        assert await coordination.commit([], records)
    yield coordination
    await coordination.close()
    pools.close()


async def test_the_lease_of_the_dead_and_its_mark_go_and_no_others(
    settings: Settings, coordination: Coordination
) -> None:
    for number in (1, 3):  # 3 has never begun
        await end_lease(settings, number)
    assert await _keys(coordination) == ["brokers/b.2", "journals/b.1", "journals/b.2", "revocations/b.2"]


async def test_a_child_that_ends_beside_a_process_in_its_folder_ends_no_lease(
    settings: Settings, coordination: Coordination
) -> None:
    before = await _keys(coordination)
    lives = FolderLock(_home(settings, 1), Disk())  # as a child of a parent that was killed, which still drains
    lives.acquire()
    await end_lease(settings, 1)
    assert await _keys(coordination) == before
    lives.release()
    await end_lease(settings, 1)
    assert "brokers/b.1" not in await _keys(coordination)
    lives.acquire()  # it has given the lock back
    lives.release()


def _home(settings: Settings, number: int) -> Path:
    return settings.data_dir / "members" / str(number)


async def _keys(coordination: Coordination) -> list[str]:
    return [entry.key for entry in (await coordination.range("")).entries]

"""The parent ends the leases of a broker whose process has ended: that one's alone, and with it the mark."""

from pathlib import Path

from seaweedq.cli.server.burial import burial
from seaweedq.cli.server.coordinations import open_coordination
from seaweedq.clock import SystemClock
from seaweedq.concurrency.pools import Pools
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Put
from seaweedq.coordination.records import BrokerRecord, JournalRecord, RevocationRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.journal.home_folder import IDENTITY_FILE
from seaweedq.settings import Settings


async def test_the_lease_of_the_dead_and_its_mark_go_and_no_others(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, brokers=3)
    pools = Pools()
    coordination = open_coordination(settings, SystemClock(), pools)
    for number in (1, 2):
        home = tmp_path / "members" / str(number)
        home.mkdir(parents=True)
        (home / IDENTITY_FILE).write_text(f"folder-{number}")
        grant = await coordination.leases.grant(60)
        records = [
            Put(f"brokers/b.{number}", keys.BROKERS.encode(Versioned.new(BrokerRecord("", "b", 0))), grant.lease),
            Put(f"journals/b.{number}", keys.JOURNALS.encode(Versioned.new(JournalRecord("file", f"folder-{number}")))),
            Put(f"revocations/b.{number}", keys.REVOCATIONS.encode(Versioned.new(RevocationRecord("x", (), 60.0)))),
        ]
        assert await coordination.commit([], records)
    for number in (1, 3):  # 3 has never begun
        await burial(settings)(number)
    page = await coordination.range("")
    assert [entry.key for entry in page.entries] == [
        "brokers/b.2",
        "journals/b.1",
        "journals/b.2",
        "revocations/b.2",
    ]
    await coordination.close()
    pools.close()

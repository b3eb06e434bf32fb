"""The stores and the coordination that settings name, and the mistyped ones; what nobody else on the machine may
read."""

import os
import sqlite3
import stat
from pathlib import Path

import pytest

from seaweedq.cli.server.backends import open_coordination, open_store
from seaweedq.clock import SystemClock, SystemIds
from seaweedq.concurrency.pools import Pools
from seaweedq.coordination.interface import Put
from seaweedq.errors import InvalidRequest
from seaweedq.journal.disk import Disk
from seaweedq.settings import Settings


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("earlier", [False, True])
async def test_the_files_of_coordination(tmp_path: Path, earlier: bool) -> None:
    path = tmp_path / "coordination.db"
    umask = os.umask(0o022)
    try:
        if earlier:  # as older versions made it
            db = sqlite3.connect(path)
            db.execute("PRAGMA journal_mode = WAL")
            assert mode(path) == 0o644
            db.close()
        coordination = open_coordination(Settings(data_dir=tmp_path), SystemClock(), Pools())
        await coordination.commit([], [Put("a", b"b")])
        found = {each.name: mode(each) for each in tmp_path.iterdir()}
        await coordination.close()
    finally:
        os.umask(umask)
    assert found == dict.fromkeys(("coordination.db", "coordination.db-wal", "coordination.db-shm"), 0o600)


def test_the_files_of_journals(tmp_path: Path) -> None:
    disk = Disk()
    disk.close(disk.create(tmp_path / "journal"))
    locked = disk.lock(tmp_path / "lock")
    assert locked is not None
    disk.close(locked)
    assert {mode(tmp_path / name) for name in ("journal", "lock")} == {0o600}


FAR = "etcd://127.0.0.1:2379,etcd.example:2379"


@pytest.mark.parametrize("given", [{"etcd_user": "queue"}, {"etcd_cert_file": "/etc/etcd.crt"}])
@pytest.mark.parametrize("where", [FAR, "etcd://10.0.0.1:2379", "etcd://[fd00::1]:2379"])
def test_an_identity_is_not_shown_in_plain_text(given: dict[str, str], where: str) -> None:
    with pytest.raises(InvalidRequest, match=r"etcd_ca_file is not: .*no TLS") as refused:
        open_coordination(Settings(coordination=where, **given), SystemClock(), Pools())
    assert refused.value.fields["field"] == "etcd_ca_file"


@pytest.mark.parametrize("where", [FAR, "etcd://10.0.0.1:2379"])
async def test_rights_come_in_plain_text_only_where_that_is_allowed(where: str) -> None:
    settings = Settings(coordination=where, auth="required")
    with pytest.raises(InvalidRequest, match=r"asked without TLS.*allow_plain_etcd=true") as refused:
        open_coordination(settings, SystemClock(), Pools())
    assert refused.value.fields["field"] == "allow_plain_etcd"
    allowed = Settings(coordination=where, auth="required", allow_plain_etcd=True)
    await open_coordination(allowed, SystemClock(), Pools()).close()
    await open_coordination(Settings(coordination=where, auth="none"), SystemClock(), Pools()).close()


@pytest.mark.parametrize("where", ["etcd://127.0.0.1:1,localhost:2,[::1]:3", "etcd://127.9.9.9:1"])
async def test_loopback_may_be_plain(where: str) -> None:
    settings = Settings(coordination=where, etcd_user="queue", auth="required")
    await open_coordination(settings, SystemClock(), Pools()).close()


@pytest.mark.parametrize(
    ("store", "said"),
    [
        ("file://tmp/x", r"names the host 'tmp'; a folder has three slashes"),
        ("file://localhost/tmp/x", "names the host 'localhost'"),
        ("file:/tmp/x", "use file:///path or s3://bucket/prefix"),
        ("s4://bucket/x", "use file:///path or s3://bucket/prefix"),
    ],
)
def test_a_mistyped_store_is_refused(tmp_path: Path, store: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        open_store(Settings(data_dir=tmp_path, store=store), SystemIds())


def test_a_folder_is_a_path_or_a_url(tmp_path: Path) -> None:
    for store in (f"file://{tmp_path}/a", f"{tmp_path}/b"):
        open_store(Settings(data_dir=tmp_path, store=store), SystemIds())

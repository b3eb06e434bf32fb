"""The stores, the coordination and the journals' pace that settings name, and the mistyped ones; and that nobody else
on the machine may read the data.
"""

import logging
import os
import sqlite3
import stat
from pathlib import Path

import pytest
from pydantic import ValidationError

from seaweedq.cli.server.backends import cores, open_coordination, open_store
from seaweedq.cli.server.journals import CHARGED_PER_S, journal_setup, object_pace
from seaweedq.clock import CpuClock, SystemClock, SystemIds
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
    with pytest.raises(InvalidRequest, match=r"has no TLS.*allow_plain_etcd=true") as refused:
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
        ("file://tmp/x", r"contains the host 'tmp'; write a local folder with three slashes"),
        ("file://localhost/tmp/x", "contains the host 'localhost'"),
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


S3 = "s3://bucket/prefix"


@pytest.mark.parametrize(
    ("given", "environ", "per_s"),
    [
        ({"store": S3}, {}, CHARGED_PER_S),
        ({"store": S3, "s3_endpoints": "https://s3.eu-west-1.amazonaws.com"}, {}, CHARGED_PER_S),
        ({"store": S3, "s3_endpoints": "http://minio:9000, http://minio2:9000"}, {}, 0),
        ({"store": S3, "s3_endpoints": "https://amazonaws.com.example.org"}, {}, 0),
        ({"store": S3}, {"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9000"}, 0),
        ({"store": S3}, {"AWS_ENDPOINT_URL": "https://x.r2.cloudflarestorage.com"}, CHARGED_PER_S),
        ({"store": "file:///data"}, {}, 0),
        ({"store": S3, "journal_puts_per_s": 20}, {}, 20),
        ({"store": S3, "journal_puts_per_s": 0}, {}, 0),
    ],
)
def test_the_budget_is_for_stores_that_charge_unless_it_is_set(
    given: dict[str, object], environ: dict[str, str], per_s: float
) -> None:
    pace, _ = object_pace(Settings.model_validate(given), environ)
    assert (pace.linger_s, pace.linger_max_s, pace.puts_per_s) == (0, 0, per_s)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"journal_linger_s": 0.05}, (0.05, 0.25, 0)),
        ({"journal_linger_max_s": 0.1}, (0.02, 0.1, 0)),
        ({"journal_linger_s": 0.0, "journal_puts_per_s": 5}, (0, 0.25, 5)),
    ],
)
def test_a_set_linger_holds_and_a_budget_only_if_it_is_set_too(
    given: dict[str, float], expected: tuple[float, float, float]
) -> None:
    pace, _ = object_pace(Settings(store=S3, **given), {})
    assert (pace.linger_s, pace.linger_max_s, pace.puts_per_s) == expected


@pytest.mark.parametrize("per_s", [0.01, 0.49])
def test_a_budget_at_which_publishes_would_run_out_of_time_is_refused(per_s: float) -> None:
    with pytest.raises(ValidationError, match=r"at least 0\.5"):
        Settings(store=S3, journal_puts_per_s=per_s)


def test_the_log_says_at_the_start_which_it_is(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        journal_setup(Settings(store=S3, journal="object"), SystemClock(), SystemIds(), {})
    assert "at most 8 per second in the long run, because this store charges for puts" in caplog.text


@pytest.mark.parametrize(("quota", "expected"), [("50000 100000", 0.5), ("max 100000", None), (None, None)])
def test_cores_are_those_of_the_affinity_within_the_quota(
    tmp_path: Path, quota: str | None, expected: float | None
) -> None:
    if quota is not None:
        (tmp_path / "cpu.max").write_text(quota + "\n")
    assert cores(tmp_path / "cpu.max") == (expected or len(os.sched_getaffinity(0)))


def test_the_cpu_clock_counts_the_thread_and_the_process_on_its_cores() -> None:
    count = CpuClock(cores=0.5)
    before = count()
    while count()[0] < before[0] + 0.05:  # busy
        pass
    thread_s, process_s = (after - earlier for after, earlier in zip(count(), before, strict=True))
    assert 0.05 <= thread_s < 1
    assert process_s >= 2 * thread_s * 0.9

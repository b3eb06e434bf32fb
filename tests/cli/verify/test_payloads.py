"""Verify and payloads: what is missing or cut is damage, what nothing names is noted."""

import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pyarrow as pa
import pytest

from seaweedq.cli.verify_run import NAMED, PayloadAudit
from seaweedq.segments.layout import REFERENCE
from tests.support.http.referring import naming, publish, read, upload
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.command import seaweedq

DAY, NOW = "20261121", datetime(2026, 11, 22, 12, tzinfo=UTC)


def verify(topic: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = seaweedq("verify", topic.rpartition("/")[2], *arguments, env={"COLUMNS": "200"})
    assert "Traceback" not in done.stderr, done.stderr
    return done


def file_of(http: httpx.Client, topic: str, at: int = 0) -> Path:
    return Path(read(http, topic)[at]["reference"]["uri"].removeprefix("file://"))


def ways(broker: BrokerProcess) -> list[tuple[str, str]]:
    return [("--url", broker.url), ("--data-dir", str(broker.data_dir))]


@pytest.mark.process
def test_a_sound_topic(http: httpx.Client, broker: BrokerProcess, topic: str) -> None:
    first, second = upload(http, topic, b"one"), upload(http, topic, b"")
    publish(http, topic, naming(first), {"value": 1}, naming(second), naming(first))
    http.post(f"{topic}/flush")
    publish(http, topic, naming(upload(http, topic, b"in the tail")))
    upload(http, topic, b"never published")
    done = verify(topic, "--url", broker.url)
    assert done.returncode == 0, done.stdout
    assert "payloads referred to by messages: 3" in done.stdout
    assert "orphaned" not in done.stdout  # the open upload is known
    done = verify(topic, "--data-dir", str(broker.data_dir))
    assert done.returncode == 0, done.stdout
    assert "payloads referred to by messages: 2" in done.stdout
    assert "2 payloads have no message in files, but may still get one" in done.stdout


@pytest.mark.process
def test_a_missing_and_a_cut_payload(http: httpx.Client, broker: BrokerProcess, topic: str) -> None:
    made = [upload(http, topic, b"content") for _ in range(3)]
    publish(http, topic, *map(naming, made))
    http.post(f"{topic}/flush")
    missing, cut = file_of(http, topic, 0), file_of(http, topic, 1)
    missing.unlink()
    cut.write_bytes(b"conten")
    for way in ways(broker):
        done = verify(topic, *way)
        assert done.returncode == 1, done.stdout
        said = [line for line in done.stdout.splitlines() if "refers to the payload" in line]
        assert len(said) == 2
        assert missing.name in said[0]
        assert said[0].startswith(f"topics/{topic.rpartition('/')[2]}/segment=0/ offset 0:")
        assert said[0].endswith("which does not exist")
        assert cut.name in said[1]
        assert said[1].endswith("with 7 bytes, but it has 6")


@pytest.mark.process
def test_an_orphan(http: httpx.Client, broker: BrokerProcess, topic: str) -> None:
    publish(http, topic, naming(upload(http, topic, b"named")))
    http.post(f"{topic}/flush")
    named = file_of(http, topic)
    old = named.parent.parent / "20200101" / f"20200101-0-{'a' * 32}"
    young = named.parent / f"{named.name[:-32]}{'b' * 32}"
    for orphan in (old, young):
        orphan.parent.mkdir(exist_ok=True)
        orphan.write_bytes(b"x")
    done = verify(topic, "--url", broker.url)
    assert done.returncode == 0, done.stdout
    orphans = [line for line in done.stdout.splitlines() if "orphaned" in line]
    assert [each.partition(":")[0].rpartition("/")[2] for each in orphans] == [old.name, young.name]
    done = verify(topic, "--data-dir", str(broker.data_dir))
    assert done.returncode == 0, done.stdout
    assert f"{old.name}: orphaned" in done.stdout
    assert young.name not in done.stdout
    assert "1 payloads have no message in files, but may still get one" in done.stdout
    for way in ways(broker):
        assert "orphaned" not in verify(topic, *way, "--sample", "0.5").stdout  # not all rows were read


def rows(*uris: str, size: int | None = 5) -> pa.Table:
    references = [{"uri": uri, "size": size, "content_type": "a/b", "sha256": "ab"} if uri else None for uri in uris]
    return pa.table({"_offset": list(range(7, 7 + len(uris))), "_reference": pa.array(references, REFERENCE)})


def name(nonce: str = "0", day: str = DAY) -> str:
    return f"_payloads/t/{day}/{day}-0-{nonce * 32}"


@pytest.mark.parametrize(
    "uri",
    [
        "http://x/y",
        "file:///etc/passwd",
        "s3://b/_payloads/others/" + name()[12:],
        "s3://b/" + name() + "/x",
        "s3://b/t",
    ],
)
def test_what_is_no_payload_of_the_topic(uri: str) -> None:
    audit = PayloadAudit("t")
    audit.rows(3, rows("", uri))
    (finding,) = audit.findings
    assert finding.where == "topics/t/segment=3/ offset 8"
    assert repr(uri) in finding.what
    assert not audit.named


def test_two_sizes_of_one_payload() -> None:
    audit = PayloadAudit("t")
    audit.rows(0, rows(f"s3://b/{name()}"))
    audit.rows(1, rows(f"s3://b/{name()}", size=6))
    (finding,) = audit.findings
    assert "segment=1" in finding.where
    audit.rows(2, rows(f"s3://b/{name('1')}", size=None))
    assert len(audit.findings) == 2


def test_how_old_is_too_young() -> None:
    audit = PayloadAudit("t", [name(day="20261120"), name(day="20261121"), name(day="20261122"), "_payloads/t/x"])
    audit.unnamed(NOW, None)
    assert audit.notes[0].startswith("2 payloads")
    assert [note.partition(":")[0] for note in audit.notes[1:]] == [name(day="20261120"), "_payloads/t/x"]
    late = PayloadAudit("t", [name()])
    late.unnamed(NOW + timedelta(days=1), None)
    assert "orphaned" in late.notes[0]


def test_notes_are_bounded() -> None:
    listed = [f"_payloads/t/20200101/20200101-0-{number:032x}" for number in range(NAMED + 5)]
    audit = PayloadAudit("t", listed)
    audit.unnamed(NOW, lambda upload: upload == listed[0].rpartition("/")[2])
    assert len(audit.notes) == NAMED + 1
    assert audit.notes[-1] == "4 more payloads are orphaned"

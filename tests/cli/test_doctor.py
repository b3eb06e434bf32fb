"""`seaweedq doctor`: how findings are judged, what it looks at, what it leaves behind, and its exit code."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from seaweedq.cli import doctor
from seaweedq.cli.doctor import GIB, Finding, Verdict
from seaweedq.cli.main import app
from tests.support.processes.broker_process import BrokerProcess

CLUSTER = {"level": 4, "level_possible": 4, "leader": "a", "brokers": []}
BROKER = {"id": "a", "version": "1", "starting": False, "draining": False}


@pytest.mark.parametrize(
    ("finding", "verdict", "told"),
    [
        (doctor.judge_files(65_536, 9), Verdict.OK, "65,536 files may be open"),
        (doctor.judge_files(1_024, 665), Verdict.WARN, "enough for 665 connections"),
        (doctor.judge_space(10 * GIB, "/d"), Verdict.OK, "10.0 GiB are free at /d"),
        (doctor.judge_space(GIB, "/d"), Verdict.WARN, "1.0 GiB"),
        (doctor.judge_fsync(0.001), Verdict.OK, "1.0 ms"),
        (doctor.judge_fsync(0.2), Verdict.WARN, "each commit of the journal waits"),
        (doctor.judge_clock("the store", 1.5), Verdict.OK, "agrees with the clock of the store"),
        (doctor.judge_clock("the store", 90.0), Verdict.WARN, "90 s ahead of the clock of the store"),
        (doctor.judge_clock("b", -3600.0), Verdict.WARN, "3,600 s behind the clock of b"),
        (doctor.judge_coordination("embedded", 0.01), Verdict.OK, "embedded answers in 10 ms"),
        (doctor.judge_coordination("etcd://a", 1.0), Verdict.WARN, "1000 ms"),
        (doctor.failed("store", OSError("a\nb")), Verdict.FAIL, "a b"),
        (doctor.failed("store", TimeoutError()), Verdict.FAIL, "TimeoutError"),
    ],
)
def test_each_finding_is_judged_and_says_why(finding: Finding, verdict: Verdict, told: str) -> None:
    assert finding.verdict is verdict
    assert told in finding.told


def test_a_clock_beside_a_date_header() -> None:
    assert doctor.seconds_ahead(1_000_000_100.0, "Sun, 09 Sep 2001 01:46:40 GMT") == 100.0
    assert doctor.seconds_ahead(0.0, "no date") is None


@pytest.mark.parametrize(
    ("changed", "verdict", "what"),
    [
        ({}, Verdict.OK, "cluster"),
        ({"leader": None}, Verdict.FAIL, "leader"),
        ({"level_possible": 5}, Verdict.NOTE, "level"),
        ({"brokers": [BROKER, {**BROKER, "id": "b", "version": "2"}]}, Verdict.NOTE, "versions"),
        ({"brokers": [{**BROKER, "draining": True}]}, Verdict.NOTE, "broker"),
    ],
)
def test_a_cluster_is_judged(changed: dict[str, Any], verdict: Verdict, what: str) -> None:
    found = doctor.judge_cluster({**CLUSTER, **changed})
    assert found[0].what == "cluster"
    assert (found[-1].verdict, found[-1].what) == (verdict, what)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A data folder, and nothing of a broker in the environment."""
    for name in ("SEAWEEDQ_URL", "SEAWEEDQ_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d").mkdir()
    return tmp_path / "d"


def run(*arguments: str) -> tuple[int, dict[str, tuple[str, str]]]:
    """The exit code, and what was found."""
    ended = CliRunner().invoke(app, ["doctor", "-o", "json", *arguments])
    rows = [json.loads(line) for line in ended.stdout.splitlines()]
    return ended.exit_code, {row["what"]: (row["verdict"], row["told"]) for row in rows}


@pytest.mark.process
def test_a_sound_machine_and_a_broker_that_is_ready(folder: Path, real_broker: BrokerProcess) -> None:
    code, found = run("--data-dir", str(folder), "--url", real_broker.url)
    assert code == 0
    assert found.keys() >= {"seaweedq", "packages", "descriptors", "disk", "fsync", "store", "coordination"}
    assert not {what: one for what, one in found.items() if one[0] == "fail"}
    assert any(what.startswith("broker.") and "ready at" in told for what, (_, told) in found.items())
    assert list(folder.iterdir()) == []  # what a broker makes it makes itself, perhaps as another user
    code, found = run("--data-dir", str(real_broker.data_dir))
    assert (code, found["store"][0], found["clock"][0]) == (0, "ok", "ok")
    assert found["coordination"][0] in ("ok", "warn"), found  # a slow answer on a busy machine is told
    assert "has everything that brokers need" in found["store"][1]
    assert "answers in" in found["coordination"][1]
    assert not [path for path in real_broker.data_dir.rglob("*") if "probe" in path.name or ".doctor" in path.name]


@pytest.mark.process
def test_each_address_that_is_named_is_looked_at(folder: Path, real_broker: BrokerProcess) -> None:
    code, found = run("--data-dir", str(folder), "--url", f"http://127.0.0.1:9, {real_broker.url}/")
    assert (code, found["brokers"][0]) == (1, "fail")
    assert "http://127.0.0.1:9 does not answer from this machine" in found["brokers"][1]
    assert not [told for what, (verdict, told) in found.items() if verdict == "fail" and what != "brokers"]


def test_what_fails_is_told_and_is_the_exit_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEAWEEDQ_COORDINATION", "etcd://127.0.0.1:1")
    monkeypatch.setenv("SEAWEEDQ_LEESE_S", "1")
    monkeypatch.setattr(doctor, "CHECK_S", 5.0)
    code, found = run("--data-dir", str(folder), "--url", "http://127.0.0.1:9")
    assert code == 1
    assert found["coordination"][0] == "fail"
    assert found["store"][0] == "ok"
    assert found["brokers"][0] == "fail"
    assert found["settings"] == (
        "warn",
        "the variable SEAWEEDQ_LEESE_S has no effect: there is no setting 'leese_s'; the nearest is lease_s",
    )


def test_where_no_broker_is_expected_none_is_missed(folder: Path) -> None:
    folder.rmdir()
    code, found = run()
    assert code == 0
    assert found["broker"][0] == found["brokers"][0] == "note"
    assert run("--data-dir", "nosuch")[0] == 1

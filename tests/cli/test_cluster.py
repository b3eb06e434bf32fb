"""`seaweedq cluster`: brokers, versions and levels in words."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from seaweedq.cli import cluster
from seaweedq.cli.cluster import left_lines, level_lines
from seaweedq.cli.main import app
from seaweedq.levels import HIGHEST, VERSION
from tests.support.processes.broker_process import BrokerProcess
from tests.support.upgrade.trees import tree_with_one_level_more


@pytest.mark.parametrize(
    ("facts", "lines"),
    [
        ((2, 2, 2, 2, []), ["level 2"]),
        ((1, 1, 2, 2, []), ["level 1", "level 2 is possible: seaweedq cluster level 2"]),
        ((1, 1, 1, 2, ["a", "b"]), ["level 1", "level 2 cannot be read by a, b"]),
        (
            (1, 1, 2, 3, ["a"]),
            ["level 1", "level 2 is possible: seaweedq cluster level 2", "level 3 cannot be read by a"],
        ),
        ((2, 1, 2, 2, []), ["level 2 is being introduced; the cluster still writes level 1"]),
    ],
)
def test_the_level_in_words(facts: tuple[Any, ...], lines: list[str]) -> None:
    names = ("level", "level_written", "level_possible", "level_newest", "too_old")
    assert level_lines(dict(zip(names, facts, strict=True))) == lines


def test_what_brokers_that_are_gone_have_left_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    assert left_lines([]) == []
    left = [
        {"broker": "a", "state": "recovering", "why": "a broker is replaying it", "segments": 1, "topics": ["t"]},
        {
            "broker": "b",
            "state": "unknown",
            "why": "its mirrors are gone",
            "segments": 2,
            "topics": ["t"],
            "since": "2026-11-27T22:00:00Z",
        },
        {
            "broker": None,
            "state": "unassigned",
            "why": "no broker accepts segments now",
            "segments": 1200,
            "topics": [],
        },
    ]
    lines = [
        "",
        "Waiting for an owner or a recovery:",
        "a: recovering, 1 segment: a broker is replaying it",
        "b: unknown since 2026-11-27T22:00:00Z, 2 segments: its mirrors are gone",
        "no broker yet: unassigned, 1,200 segments: no broker accepts segments now",
    ]
    assert left_lines(left) == lines
    levels = {"level": 4, "level_written": 4, "level_possible": 4, "level_newest": 4, "too_old": []}
    facts = {"cluster": "c", "store": "s", **levels, "brokers": [], "brokers_wanted": 2, "left_behind": left}
    monkeypatch.setattr(cluster, "run", lambda url, steps: facts)
    shown = run("cluster")
    assert "\n".join(lines) in shown
    assert "brokers: 0 running, 2 needed by the load" in shown


@pytest.mark.process
def test_brokers_and_level_of_a_real_one(real_broker: BrokerProcess) -> None:
    shown = run("cluster", "--url", real_broker.url)
    assert f"\nlevel {HIGHEST}\n" in shown
    (row,) = [line.split() for line in shown.splitlines() if real_broker.url in line]
    assert row[1:6] == [VERSION, "1", "to", str(HIGHEST), "leader"]
    told = msgspec.json.decode(run("cluster", "-o", "json", "--url", real_broker.url))
    assert told["brokers"][0]["id"] == row[0]
    assert run("cluster", "level", "--url", real_broker.url) == f"the cluster has level {HIGHEST}\n"
    assert run("cluster", "--url", real_broker.url, "level", str(HIGHEST)) == f"the cluster has level {HIGHEST}\n"
    told = refused(HIGHEST + 1, real_broker)
    assert f"cannot be upgraded to format level {HIGHEST + 1}, because these brokers (running, or dead with a" in told
    assert " cannot read that level: " in told


@pytest.mark.process
def test_a_level_never_falls(broker_process: Callable[..., BrokerProcess], tmp_path: Path) -> None:
    later = broker_process(start=False)
    later.tree = tree_with_one_level_more(tmp_path / "after")
    later.start()
    assert f"\nlevel {HIGHEST + 1}\n" in run("cluster", "--url", later.url)
    assert "the level cannot be lowered" in refused(HIGHEST, later)
    assert f"\nlevel {HIGHEST + 1}\n" in run("cluster", "--url", later.url)


def refused(level: int, broker: BrokerProcess) -> str:
    """Why a broker does not raise the level to this one."""
    ended = CliRunner().invoke(app, ["cluster", "level", str(level), "--url", broker.url])
    assert ended.exit_code == 1
    return str(ended.exception)


def run(*arguments: str) -> str:
    ended = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert ended.exit_code == 0, ended.output
    return ended.output

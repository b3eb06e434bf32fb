"""Processes killed with SIGKILL while they append or recover: locks are free at once, every answer given holds."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from seaweedq.errors import DataFolderInUse
from seaweedq.journal.disk import Disk
from seaweedq.journal.file_recovery import read_journal
from seaweedq.journal.home_folder import FolderLock
from tests.support.journal.sim_disk import payload
from tests.support.paths import ROOT

pytestmark = pytest.mark.process

APPENDER = [sys.executable, "-m", "tests.support.journal.appender"]
PROCESS = [sys.executable, "-m", "tests.support.journal.object_process"]


@pytest.mark.parametrize("seed", range(10))
def test_every_acknowledged_commit_survives_sigkill(tmp_path: Path, seed: int) -> None:
    with subprocess.Popen([*APPENDER, tmp_path], cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            acknowledged = [child.stdout.readline() for _ in range(random.Random(seed).randint(1, 150))]
            with pytest.raises(DataFolderInUse) as caught:
                FolderLock(tmp_path, Disk()).acquire()
            assert caught.value.fields == {"path": str(tmp_path), "pid": child.pid}
        finally:
            child.kill()
        acknowledged += [line for line in child.stdout if line.endswith("\n")]
    lock = FolderLock(tmp_path, Disk())
    lock.acquire()
    found = [(commit.number, bytes(commit.frames[0].payload)) for commit in read_journal(tmp_path, Disk())]
    lock.release()
    assert [int(line) for line in acknowledged] == list(range(len(acknowledged)))
    assert 0 <= len(found) - len(acknowledged) <= 1
    assert found == [(n, payload(n)) for n in range(len(found))]


def run(what: str, folder: Path, fail_at: str) -> tuple[int, dict[str, list[int]]]:
    """(exit code, the numbers in its whole lines by their verb)."""
    env = {**os.environ, "SEAWEEDQ_FAIL_AT": fail_at}
    done = subprocess.run(
        [*PROCESS, what, folder], cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, timeout=60, check=False
    )
    said: dict[str, list[int]] = {"acknowledged": [], "released": [0], "read": []}
    for line in done.stdout.splitlines(keepends=True):
        if line.endswith("\n"):
            verb, number = line.split()
            said[verb].append(int(number))
    return done.returncode, said


@pytest.mark.parametrize(
    ("place", "then"),
    [
        ("slot.put:1", "fence.put"),
        ("slot.put:23", "fence.put"),
        ("slot.stored:1", "fence.check"),
        ("slot.stored:38", "fence.check"),
        ("slot.stored:38", "fence.delete"),
        ("slot.delete:3", "fence.delete"),
        ("slot.stored:38", "done.put"),
        ("slot.stored:38", "done.stored"),
    ],
)
def test_killed_at_each_step(tmp_path: Path, place: str, then: str) -> None:
    code, broker = run("append", tmp_path, place)
    assert code == -signal.SIGKILL
    assert broker["acknowledged"] == list(range(len(broker["acknowledged"])))
    code, first = run("recover", tmp_path, then)
    assert code == -signal.SIGKILL
    code, second = run("recover", tmp_path, "")
    assert code == 0
    read = (second if then.startswith("fence.") and then != "fence.delete" else first)["read"]
    assert then in ("fence.put", "fence.check", "done.put") or not second["read"], "what is done is empty"
    needed = range(broker["released"][-1], len(broker["acknowledged"]))
    assert set(needed) <= set(read)
    assert read == list(range(read[0], read[-1] + 1)) if read else not needed
    left = sorted(path.name for path in (tmp_path / "_journals" / "b").iterdir())
    assert len(left) == 2, "the fence"
    assert left[1] == "done"

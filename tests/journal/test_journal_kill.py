"""A process that is killed with SIGKILL while it appends: its lock is free at once, every answer it gave holds."""

import random
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

"""A broker, then its recoveries, killed with SIGKILL between two steps: what was acknowledged is read in the end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

pytestmark = pytest.mark.process

PROCESS = [sys.executable, "-m", "tests.support.journal.object_process"]


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
    read = (first if then == "fence.delete" else second)["read"]
    needed = range(broker["released"][-1], len(broker["acknowledged"]))
    assert set(needed) <= set(read)
    assert read == list(range(read[0], read[-1] + 1)) if read else not needed
    assert len([*(tmp_path / "_journals" / "b").iterdir()]) == 1, "the fence"

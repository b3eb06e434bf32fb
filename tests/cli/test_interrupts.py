"""Ctrl-C while a command's modules are imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

pytestmark = pytest.mark.process

AT_IMPORT = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
"""


@pytest.mark.parametrize("name", ["seaweedq.cli.main", "typer.core", "seaweedq.cli.topic.topic", "httpx"])
def test_an_interrupt_amid_an_import_prints_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(AT_IMPORT.format(name=name))
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    ended = subprocess.run(
        [sys.executable, "-m", "seaweedq", "topic", "list", "--url", "http://127.0.0.1:1"],
        env=environment,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, b"", b"")

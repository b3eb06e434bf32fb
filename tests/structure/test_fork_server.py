"""The server that forks brokers for the tests has imported what each broker would import: a start then takes a fifth
of the CPU."""

import ast
import json
import subprocess
import sys

import pytest

from tests.support.paths import ROOT
from tests.support.processes.fork_server import LOADED

OF_A_PARENT = {"seaweedq.cli.server.supervise", "seaweedq.cli.server.members"}  # which most brokers do not have


@pytest.mark.process
def test_forks_need_not_import_the_broker() -> None:
    tree = ast.parse((ROOT / "seaweedq/cli/server/serve.py").read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    program = (
        f"import sys, json, importlib; [*map(importlib.import_module, {LOADED})]; print(json.dumps([*sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert imported - set(json.loads(done.stdout)) <= OF_A_PARENT

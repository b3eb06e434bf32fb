"""The choice of protobuf's implementation: made for this process alone, and explained where it comes too late."""

import os
import subprocess
import sys

import pytest

from seaweedq.extras import install_command

pytestmark = pytest.mark.process

NAME = "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"


def run(program: str, **env: str) -> subprocess.CompletedProcess[str]:
    outer = {key: value for key, value in os.environ.items() if key != NAME}
    command = [sys.executable, "-W", "error", "-c", program]
    return subprocess.run(command, capture_output=True, text=True, env={**outer, **env}, check=False)


def test_the_choice_does_not_reach_child_processes() -> None:
    program = f"import os, seaweedq.coordination.etcd_transport as e; print(os.environ.get({NAME!r}))"
    assert run(program).stdout == "None\n"
    assert run(program, **{NAME: "upb"}).stdout == "upb\n"


def test_a_protobuf_that_was_there_before_is_named() -> None:
    before = "from google.protobuf.internal import api_implementation as a; print(a.Type())\n"
    done = run(f"{before}import seaweedq.coordination.etcd_transport")
    assert done.stdout == "upb\n"
    assert "ImportError: protobuf was imported with its implementation 'upb' before" in done.stderr
    assert f"set {NAME}=python in the environment" in done.stderr
    assert run(f"{before}import seaweedq.coordination.etcd_transport", **{NAME: "python"}).returncode == 0


def test_a_missing_package_is_named() -> None:
    done = run("import sys; sys.modules['etcd3'] = None; import seaweedq.coordination.etcd_transport")
    assert install_command("etcd") in done.stderr


def test_the_package_can_be_imported_without_etcd() -> None:
    program = "import sys, seaweedq.coordination, seaweedq.cli.main; print([n for n in sys.modules if 'grpc' in n])"
    assert run(program).stdout == "[]\n"

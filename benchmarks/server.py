"""Server processes under measurement: the broker, and the empty uvicorn app that is its limit; what they cost in CPU
and memory."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.processes import cpu_s, started
from benchmarks.turns import Tree


@dataclass
class Server:
    """A process that has printed its URL."""

    process: "subprocess.Popen[str]"
    port: int

    def cpu_s(self) -> float:
        """User and system seconds so far, children that have ended included."""
        return cpu_s(self.process.pid)

    def memory_bytes(self, what: str = "VmRSS") -> int:
        """Resident memory: now, or with `VmHWM` the most there ever was."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what + ":"))

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()


@contextmanager
def broker(folder: Path, *options: str, tree: Tree | None = None) -> Iterator[Server]:
    """`seaweedq serve` on a folder, ready, of the code of a tree; killed afterwards."""
    command = ["-m", "seaweedq", "serve", "--data-dir", str(folder), "--port", "0", "--log-level", "error", *options]
    with _started(["-P", *command] if tree else command, tree.environment() if tree else None) as server:
        yield server


@contextmanager
def slow_broker(folder: Path, put_ms: float, *options: str) -> Iterator[Server]:
    """A broker with an object journal, on a store whose puts take `put_ms`; its folder has but what is not in a
    store."""
    given = ["--data-dir", str(folder), "--port", "0", "--journal", "object", "--log-level", "error", *options]
    with _started(["-m", "benchmarks.slow_broker", str(put_ms), "serve", *given]) as server:
        yield server


@contextmanager
def empty_app() -> Iterator[Server]:
    """The empty app, under the broker's server settings."""
    with _started(["-m", "benchmarks.empty"]) as server:
        yield server


@contextmanager
def empty_grpc() -> Iterator[Server]:
    """A gRPC server of one method, which answers nothing."""
    with _started(["-m", "benchmarks.grpc_calls"]) as server:
        yield server


@contextmanager
def _started(arguments: Sequence[str], environment: dict[str, str] | None = None) -> Iterator[Server]:
    with started([sys.executable, *arguments], environment=environment) as process:
        assert process.stdout
        line = process.stdout.readline()
        words = [word.rstrip(",") for word in line.split() if word.startswith(("http://", "https://"))]
        if not words:
            raise RuntimeError(f"{' '.join(arguments)} did not start: {line!r}")
        yield Server(process, urlsplit(words[0]).port or 0)

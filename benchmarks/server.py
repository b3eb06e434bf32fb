"""Server processes under measurement: the broker, and the empty uvicorn app that is its limit; what they cost in CPU
and memory."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.turns import Tree

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Server:
    """A process that has printed its URL."""

    process: "subprocess.Popen[str]"
    port: int

    def cpu_s(self) -> float:
        """User and system seconds so far, children that have ended included."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / _TICKS

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
def empty_app() -> Iterator[Server]:
    """The empty app, under the broker's server settings."""
    with _started(["-m", "benchmarks.empty"]) as server:
        yield server


@contextmanager
def _started(arguments: Sequence[str], environment: dict[str, str] | None = None) -> Iterator[Server]:
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout
    try:
        line = process.stdout.readline()
        words = [word.rstrip(",") for word in line.split() if word.startswith(("http://", "https://"))]
        if not words:
            raise RuntimeError(f"{' '.join(arguments)} did not start: {line!r}")
        yield Server(process, urlsplit(words[0]).port or 0)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()

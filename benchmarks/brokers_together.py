"""Several brokers of one parent under measurement, on one folder."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.processes import cpu_s, started

END_S = 30.0


@dataclass(frozen=True)
class Brokers:
    """Their URLs and process ids, each in an order of its own."""

    urls: list[str]
    pids: list[int]

    @property
    def ports(self) -> list[int]:
        """The ports of the URLs, in their order."""
        return [urlsplit(url).port or 0 for url in self.urls]

    def cpu_s(self) -> float:
        """User and system seconds of all of them so far."""
        return sum(map(cpu_s, self.pids))

    def pid_of(self, port: int) -> int:
        """The process that listens on a port."""
        lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
        inodes = {f"socket:[{one[9]}]" for one in map(str.split, lines) if one[1].endswith(f":{port:04X}")}
        return next(pid for pid in self.pids if any(os.readlink(fd) in inodes for fd in _open_files(pid)))

    def memory_bytes(self) -> int:
        """Resident memory of the largest one."""
        pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self.pids]
        return max(pages) * os.sysconf("SC_PAGE_SIZE")


def _open_files(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/fd").iterdir())


@contextmanager
def brokers_together(folder: Path, count: int, *options: str) -> Iterator[Brokers]:
    """`count` brokers, once all of them are ready; stopped afterwards."""
    given = ["--data-dir", str(folder), "--port", "0", "--brokers", str(count), "--log-level", "error", *options]
    with started([sys.executable, "-m", "seaweedq", "serve", *given]) as parent:
        assert parent.stdout
        urls: list[str] = []
        for line in parent.stdout:
            urls += [word.rstrip(",") for word in line.split() if word.startswith("http://") and " at http" in line]
            if len(urls) == count:
                break
        else:
            raise RuntimeError(f"{count} brokers did not start: {urls}")
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        try:
            yield Brokers(urls, [int(pid) for pid in children])
        finally:  # else its children would still write below the folder that is deleted next
            parent.terminate()
            with suppress(subprocess.TimeoutExpired):
                parent.communicate(timeout=END_S)

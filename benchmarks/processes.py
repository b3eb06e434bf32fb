"""Processes under measurement: none outlives the benchmark that started it."""

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


@contextmanager
def started(
    command: Sequence[str], *, environment: Mapping[str, str] | None = None, stdin: int | None = None
) -> "Iterator[subprocess.Popen[str]]":
    """A process whose output is read here; killed afterwards."""
    process = subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        yield process
    finally:
        process.kill()
        with suppress(BrokenPipeError):  # of a line that it did not read
            process.communicate()


def cpu_s(pid: int) -> float:
    """User and system seconds of a process so far, children that have ended included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICKS

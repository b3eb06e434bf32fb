"""A small disk in memory, mounted for as long as a cluster runs."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def tmpfs(path: Path, size_mib: int) -> Iterator[None]:
    """A disk of this size, in memory. Fails where it cannot be mounted: that needs root."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", os.fspath(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", os.fspath(path)], check=True)

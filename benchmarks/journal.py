"""The file journal, commits a second, beside bare write and fdatasync of as many bytes."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import uvloop

from benchmarks.result import Result
from seaweedq.clock import SystemIds
from seaweedq.journal.disk import Disk
from seaweedq.journal.file_journal import FileJournal
from seaweedq.levels import HIGHEST
from seaweedq.segments.frames import Frame, FrameKind

SIZES = {"4 KiB": (4096, 1), "1.2 MB in 4 frames": (1_200_000, 4)}
ROUNDS, ROUND_S = 4, 1.0


def bare(folder: Path, payload: bytes) -> float:
    """Commits/s of write and fdatasync, one file after another as the journal does."""
    path = folder / "bare"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    begun, done, size = perf_counter(), 0, 0
    while (took := perf_counter() - begun) < ROUND_S:
        os.write(fd, payload)
        os.fdatasync(fd)
        done, size = done + 1, size + len(payload)
        if size > 64 << 20:
            os.close(fd)
            path.unlink()
            fd, size = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 0
    os.close(fd)
    path.unlink()
    return done / took


async def journal(folder: Path, payload: bytes, parts: int) -> float:
    """Commits/s of the journal, released as they come."""
    opened = FileJournal(folder, Disk(), SystemIds(), 64 << 20, lambda: HIGHEST)
    piece = payload[: len(payload) // parts]
    frames = [Frame(FrameKind.ROWS, "topic", n, 0, 1, 0, 0, (), 0, piece) for n in range(parts)]
    begun, done = perf_counter(), 0
    while (took := perf_counter() - begun) < ROUND_S:
        opened.release(await opened.append(frames))
        done += 1
    await opened.close()
    return done / took


def measure(where: Path) -> Iterator[Result]:
    """Journal and bare disk take turns; the best round of each."""
    for name, (size, parts) in SIZES.items():
        payload, figures, limits = os.urandom(size), [], []
        for _ in range(ROUNDS):
            with tempfile.TemporaryDirectory(dir=where) as folder:
                limits.append(bare(Path(folder), payload))
                figures.append(uvloop.run(journal(Path(folder) / "journal", payload, parts)))
        yield Result(
            name=f"journal, {name}",
            figure=max(figures),
            unit="commits/s",
            limit=max(limits),
            limit_is="bare write and fdatasync",
        )

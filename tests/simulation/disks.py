"""The disks of simulated machines, in memory: what was not synced is lost or torn when a machine loses its power.

A machine's files outlive its processes. Each life opens them through a `LifeDisk`, whose locks and descriptors go with
the life. A write is durable in sectors, each by itself, and the names in a folder change in their order.
"""

import errno
import os
import random
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seaweedq.checks import reach
from seaweedq.journal.disk import Disk, DiskFile
from tests.simulation.loop import Life

SECTOR = 512
USUAL_S = 0.001


@dataclass
class DiskTrouble:
    """What happens to a machine's disk at present: parts of 1."""

    fails: float = 0.0  # writes
    fails_sync: float = 0.0  # what was written may be durable or not, and a later sync does not tell
    slow_s: float = 0.0  # is added to each call
    full: bool = False


@dataclass(eq=False)
class _File:
    """`unsynced` has changes of the content: a place, what was there, how many bytes are there now."""

    content: bytearray = field(default_factory=bytearray)
    unsynced: list[tuple[int, bytes, int]] = field(default_factory=list)
    dropped: list[tuple[int, bytes, int]] = field(default_factory=list)  # by a sync that failed

    def put(self, at: int, data: bytes) -> None:
        self.unsynced.append((at, bytes(self.content[at : at + len(data)]), len(data)))
        self.content[at : at + len(data)] = data

    def cut(self, size: int) -> None:
        self.unsynced.append((size, bytes(self.content[size:]), 0))
        del self.content[size:]

    def lose(self, draw: random.Random) -> None:
        """Loses its power: each changed sector is as it was, or as it is."""
        new, old = bytes(self.content), self.content
        for at, before, size in reversed(self.dropped + self.unsynced):
            old[at : at + size] = before if at + size >= len(old) else before.ljust(size, b"\0")
        if old != new:
            mode = draw.choice(["old", "new", "mixed"])
            if mode == "mixed":
                size = draw.choice([len(old), len(new), draw.randint(*sorted((len(old), len(new))))])
                whole = old.ljust(max(len(old), len(new)), b"\0")
                for at in range(0, len(new), SECTOR):
                    if new[at : at + SECTOR] != whole[at : at + SECTOR] and draw.random() < 0.5:
                        whole[at : at + SECTOR] = new[at : at + SECTOR].ljust(len(whole[at : at + SECTOR]), b"\0")
                old[:] = whole[:size]
            elif mode == "new":
                old[:] = new
        self.unsynced, self.dropped = [], []


class DiskMachine:
    """A machine with a disk. `lives` are those that run on it."""

    def __init__(self, seed: int, number: int) -> None:
        self.trouble = DiskTrouble()
        self.lives: list[Life] = []
        self.files: dict[Path, _File] = {}
        self.folders: dict[Path, None] = {}
        self.locked: dict[Path, int] = {}  # descriptors
        self.open: dict[int, tuple[_File, int]] = {}  # and the place at which the next write goes on
        self._draw = random.Random(f"disk {number} {seed}")
        self._unsynced: dict[Path, list[list[tuple[Path, _File | None]]]] = {}  # names, and what they were before
        self._opened = 100

    def lose_power(self) -> None:
        """All that runs here dies, and what was not synced is lost, or torn."""
        for life in self.lives:
            life.die()
        self.lives = []
        for changes in self._unsynced.values():
            for change in changes[self._draw.randint(0, len(changes)) :][::-1]:
                for path, before in change:
                    self._name(path, before)
        self._unsynced = {}
        for one in self.files.values():
            one.lose(self._draw)

    def rename(self, *changes: tuple[Path, _File | None]) -> None:
        """Has names stand for other files, or for none."""
        before = [(path, self.files.get(path)) for path, _ in changes]
        self._unsynced.setdefault(changes[0][0].parent, []).append(before)
        for path, to in changes:
            self._name(path, to)

    def sync_names(self, folder: Path) -> None:
        """Makes them durable."""
        self._unsynced.pop(folder, None)

    def opened(self, of: _File) -> int:
        """A descriptor."""
        self._opened += 1
        self.open[self._opened] = of, 0
        return self._opened

    def is_due(self, part: float) -> bool:
        """Whether something happens that happens to this part of all calls."""
        return part > 0 and self._draw.random() < part

    def delay_s(self) -> float:
        """How long a call takes."""
        return (USUAL_S + self.trouble.slow_s) * self._draw.random()

    def _name(self, path: Path, to: _File | None) -> None:
        self.files.pop(path, None)
        if to is not None:
            self.files[path] = to


class _Worker(Executor):
    """Does each call at once; its caller hears of it later (LivesLoop.run_in_executor)."""

    def __init__(self, delay_s: Callable[[], float]) -> None:
        self.delay_s = delay_s

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


class _OpenFile(DiskFile):
    def __init__(self, disk: "LifeDisk", fd: int, of: _File) -> None:
        super().__init__(disk, fd)
        self._of = of

    def __len__(self) -> int:
        return len(self._of.content)


class LifeDisk(Disk):
    """A machine's disk as one life has it."""

    def __init__(self, machine: DiskMachine, life: Life) -> None:
        self._machine, self._life = machine, life
        self._fds: dict[int, None] = {}
        if life not in machine.lives:
            machine.lives.append(life)
        life.at_death.append(self._release)

    def worker(self) -> Executor:
        return _Worker(self._machine.delay_s)

    def create(self, path: Path) -> int:
        self._go("create")
        if path in self._machine.files:
            raise FileExistsError(path)
        self._machine.rename((path, made := _File()))
        return self._open(made)

    def write(self, fd: int, buffers: list[memoryview]) -> int:
        data = b"".join(buffers)
        of, at = self._machine.open[fd]
        trouble = self._machine.trouble
        half = len(data) // 2
        of.put(at, data[:half])
        self._go("write")
        if trouble.full:
            raise OSError(errno.ENOSPC, "no space is left")
        if self._machine.is_due(trouble.fails):
            raise OSError(errno.EIO, "a write failed")
        of.put(at + half, data[half:])
        self._machine.open[fd] = of, at + len(data)
        return len(data)

    def allocate(self, fd: int, start: int, size: int) -> None:
        of, _ = self._machine.open[fd]
        if not self._machine.trouble.full:
            of.put(len(of.content), bytes(max(0, min(start + size, start + 65_536) - len(of.content))))

    def sync(self, fd: int) -> None:
        self._go("sync")
        of, _ = self._machine.open[fd]
        if self._machine.is_due(self._machine.trouble.fails_sync):
            of.dropped += of.unsynced
            of.unsynced = []
            raise OSError(errno.EIO, "a sync failed")
        of.unsynced = []
        self._go("synced")

    def forget(self, fd: int, start: int, size: int) -> None:
        pass

    def sync_folder(self, folder: Path) -> None:
        self._go("sync")
        if self._machine.is_due(self._machine.trouble.fails_sync):
            raise OSError(errno.EIO, "a sync failed")
        self._machine.sync_names(folder)

    def rename(self, old: Path, new: Path) -> None:
        self._machine.rename((old, None), (new, self._file(old)))
        self._go("rename")

    def truncate(self, fd: int, size: int) -> None:
        self._go("truncate")
        self._machine.open[fd][0].cut(size)

    def remove(self, path: Path) -> None:
        if path in self._machine.files:
            self._machine.rename((path, None))
        self._go("remove")

    def close(self, fd: int) -> None:
        if fd in self._fds and not self._life.is_dead:
            self._close(fd)

    def make_folder(self, folder: Path) -> None:
        self._go("folder")
        for one in (folder, *folder.parents):
            self._machine.folders[one] = None

    def remove_folder(self, folder: Path) -> None:
        if not self.names(folder):
            self._machine.folders.pop(folder, None)

    def names(self, folder: Path) -> list[str]:
        return [path.name for path in (*self._machine.files, *self._machine.folders) if path.parent == folder != path]

    def size(self, path: Path) -> int:
        return len(self._file(path).content)

    def read(self, path: Path, size: int) -> bytes:
        return bytes(self._file(path).content[:size])

    def open(self, path: Path) -> DiskFile:
        of = self._file(path)
        return _OpenFile(self, self._open(of), of)

    def read_at(self, fd: int, start: int, size: int) -> bytes:
        return bytes(self._machine.open[fd][0].content[start : start + size])

    def lock(self, path: Path) -> int | None:
        self._go("lock")
        if path in self._machine.locked:
            return None
        if path not in self._machine.files:
            self._machine.rename((path, _File()))
        fd = self._machine.locked[path] = self._open(self._file(path))
        return fd

    def process_id(self) -> int:
        return self._machine.lives.index(self._life) + 1  # a machine that had no power counts anew

    def _go(self, place: str) -> None:
        """Comes to a step; a life does nothing more in the step in which it dies."""
        reach(f"disk.{place}")
        if self._life.is_dead:
            raise OSError(errno.EIO, "the process has died")

    def _file(self, path: Path) -> _File:
        try:
            return self._machine.files[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from None

    def _open(self, of: _File) -> int:
        fd = self._machine.opened(of)
        self._fds[fd] = None
        return fd

    def _close(self, fd: int) -> None:
        del self._fds[fd], self._machine.open[fd]
        self._machine.locked = {path: by for path, by in self._machine.locked.items() if by != fd}

    def _release(self) -> None:
        for fd in list(self._fds):
            self._close(fd)

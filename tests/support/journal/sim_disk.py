"""A disk that fails where it is told to, takes short writes, and knows what a power loss may leave of a folder."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from seaweedq.journal.disk import Disk
from seaweedq.segments.frames import Frame, FrameKind

T = TypeVar("T")


class CountedIds:
    """Nonces that are the same in each run and look as random as real ones do."""

    def __init__(self) -> None:
        self.given = 0

    def nonce(self) -> str:
        self.given += 1
        return sha256(str(self.given).encode()).hexdigest()[:32]


def acks(payload: bytes) -> list[Frame]:
    return [Frame(FrameKind.ACKS, "flights", 1, 0, 0, 0, 0, (), 0, payload)]


def payload(number: int) -> bytes:
    """Some bytes that only commit `number` has."""
    return b"%d:" % number + b"x" * (number * 977 % 9000)


@dataclass(frozen=True)
class Fault:
    """An operation fails, with or without having happened."""

    errno: int
    happens: bool = False


class SimDisk(Disk):
    """Real files; what is synced is only remembered. `faults` maps the number of an operation to what befalls it."""

    def __init__(self, folder: Path, faults: dict[int, Fault] | None = None, short: int = 1 << 30) -> None:
        self.folder, self.faults, self.short = folder, faults or {}, short
        self.operations: list[str] = []
        self.watch: Callable[[], None] = lambda: None
        self._contents: dict[int, bytes] = {}  # durable, by inode
        self._names: dict[str, int] = {}  # durable
        self._held: list[int] = []  # keeps the inode of a removed file, whose name may still be durable, its own

    def __del__(self) -> None:
        for fd in self._held:
            os.close(fd)

    def crashes(self) -> Iterator[dict[str, bytes]]:
        """Folders that a power loss may leave now: each file's unsynced part is there, cut, zeros or missing."""
        for names in [self._names] if self._names == self._now() else [self._names, self._now()]:
            yield {name: self._contents[inode] for name, inode in names.items()}
            whole = {name: self._whole(name, inode) for name, inode in names.items()}
            yield whole
            for spoil in (_half, _zeros, _zeros_then_rest):
                yield {name: spoil(self._contents[names[name]], data) for name, data in whole.items()}

    def _now(self) -> dict[str, int]:
        return {each.name: each.stat().st_ino for each in self.folder.iterdir()} if self.folder.is_dir() else {}

    def _whole(self, name: str, inode: int) -> bytes:
        path = self.folder / name
        return path.read_bytes() if self._now().get(name) == inode else self._contents[inode]

    def _step(self, name: str, call: Callable[[], T]) -> T:
        self.watch()
        fault = self.faults.get(len(self.operations))
        self.operations.append(name)
        result = call() if fault is None or fault.happens else None
        self.watch()
        if fault is not None:
            raise OSError(fault.errno, os.strerror(fault.errno))
        return result  # type: ignore[return-value]

    def create(self, path: Path) -> int:
        def call() -> int:
            fd = Disk.create(self, path)
            self._held.append(os.dup(fd))
            self._contents[os.fstat(fd).st_ino] = b""
            return fd

        return self._step("create", call)

    def write(self, fd: int, buffers: list[memoryview]) -> int:
        """At most `short` bytes at once; a failing write leaves half of them."""
        data = b"".join(buffers)[: self.short]
        fault = self.faults.get(len(self.operations))
        if fault is not None and not fault.happens:
            os.write(fd, data[: len(data) // 2])
        return self._step("write", lambda: os.write(fd, data))

    def sync(self, fd: int) -> None:
        def call() -> None:
            inode = os.fstat(fd).st_ino
            [name] = [name for name, found in self._now().items() if found == inode]
            self._contents[inode] = (self.folder / name).read_bytes()

        self._step("sync", call)

    def sync_folder(self, folder: Path) -> None:
        def call() -> None:
            self._names = self._now()

        self._step("sync_folder", call)

    def rename(self, old: Path, new: Path) -> None:
        self._step("rename", lambda: Disk.rename(self, old, new))

    def truncate(self, fd: int, size: int) -> None:
        self._step("truncate", lambda: Disk.truncate(self, fd, size))

    def remove(self, path: Path) -> None:
        self._step("remove", lambda: Disk.remove(self, path))


def _half(durable: bytes, whole: bytes) -> bytes:
    return whole[: (len(durable) + len(whole)) // 2]


def _zeros(durable: bytes, whole: bytes) -> bytes:
    return durable + bytes(max(len(whole) - len(durable), 0))


def _zeros_then_rest(durable: bytes, whole: bytes) -> bytes:
    half = len(_half(durable, whole))
    return durable + bytes(max(half - len(durable), 0)) + whole[half:]

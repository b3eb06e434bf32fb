"""Large content goes around the page cache, and is the same bytes whatever the alignment and the file system."""

import errno
import fcntl
import os
from pathlib import Path
from random import Random

import numpy as np
import pytest

from seaweedq.storage.spool import MIN_BYTES, write_all

DIRECT = getattr(os, "O_DIRECT", 0)
PAGE = 4096


def pages(size: int, shift: int = 0) -> memoryview:
    """Random bytes that begin `shift` bytes behind a page of memory."""
    memory = np.frombuffer(Random(size).randbytes(size + 2 * PAGE), np.uint8).copy()
    start = -memory.ctypes.data % PAGE + shift
    return memoryview(memory[start : start + size])


def written(path: Path, data: memoryview) -> bytes:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        write_all(descriptor, data)
        assert not fcntl.fcntl(descriptor, fcntl.F_GETFL) & DIRECT
    finally:
        os.close(descriptor)
    return path.read_bytes()


@pytest.mark.parametrize("size", [0, 1, MIN_BYTES - 1, MIN_BYTES, MIN_BYTES + 1, 9 * MIN_BYTES + PAGE + 7])
@pytest.mark.parametrize("shift", [0, 1, 512])
def test_the_bytes_are_those_given(tmp_path: Path, size: int, shift: int) -> None:
    data = pages(size, shift)
    assert written(tmp_path / "file", data) == bytes(data)


def test_a_file_system_without_direct_writes_gets_all_the_other_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, refused = os.write, []

    def write(descriptor: int, data: memoryview) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & DIRECT:
            refused.append(len(data))
            raise OSError(errno.EINVAL, "no direct writes here")
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    data = pages(2 * MIN_BYTES + 5)
    assert written(tmp_path / "file", data) == bytes(data)
    assert len(refused) == (1 if DIRECT else 0)


def test_a_short_direct_write_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, sizes = os.write, []

    def write(descriptor: int, data: memoryview) -> int:
        sizes.append(real(descriptor, data[: 3 * PAGE + (0 if len(sizes) < 2 else 100)]))
        return sizes[-1]

    monkeypatch.setattr(os, "write", write)
    data = pages(2 * MIN_BYTES)
    assert written(tmp_path / "file", data) == bytes(data)


def test_a_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(descriptor: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(OSError, match="full"):
        written(tmp_path / "file", pages(2 * MIN_BYTES))

"""What LocalStore alone promises: durability, clean-up after crashes and full disks, writes around the page cache."""

import asyncio
import errno
import fcntl
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import cast

import numpy as np
import pytest

from seaweedq.clock import Ids, SystemIds
from seaweedq.errors import StoreUnavailable
from seaweedq.storage.local import LocalStore
from seaweedq.storage.spool import MIN_BYTES, write_all
from tests.support import privates

CRASH = """
import asyncio, os, signal, sys
from seaweedq.clock import SystemIds
from seaweedq.storage.local import LocalStore
os.link = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(LocalStore(sys.argv[1], SystemIds()).create("t/1", b"never seen"))
"""
DIRECT = getattr(os, "O_DIRECT", 0)
PAGE = 4096


def temporary(tmp_path: Path) -> list[str]:
    return sorted(os.listdir(tmp_path / "store/_tmp"))


def failing(number: int) -> Callable[..., int]:
    def fail(*args: object) -> int:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("call", ["write", "fsync", "link", "open"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
async def test_a_full_or_broken_disk_is_unavailable_and_leaves_nothing(
    local: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    await local.create("t/1", b"one")
    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing(number))
        with pytest.raises(StoreUnavailable) as caught:
            await local.create("t/2", b"two")
    assert caught.value.fields["errno"] == number
    assert temporary(tmp_path) == []
    assert await local.list("") == ["t/1"]
    assert await local.create("t/2", b"two")


async def test_a_failed_fsync_of_the_folder_leaves_the_answer_open(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, "folder")
        real(descriptor)

    await local.create("t/1", b"one")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(StoreUnavailable):
            await local.create("t/2", b"two")
        with pytest.raises(StoreUnavailable):
            await local.create("t/2", b"'taken' would not be durable either")
    assert not await local.create("t/2", b"other")
    assert await local.read("t/2") == b"two"


async def test_bytes_and_every_new_folder_are_fsynced_before_the_answer(
    local: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "store"
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), root))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    await local.create("topics/t/segment=0/1", b"one")
    assert synced[0].startswith("_tmp/")
    assert set(synced[1:]) == {".", "topics", "topics/t", "topics/t/segment=0"}
    assert synced[-1] == "topics/t/segment=0"
    synced.clear()
    await local.create("topics/t/segment=0/2", b"two")
    assert [name.split("/")[0] for name in synced] == ["_tmp", "topics"]
    synced.clear()
    await LocalStore(root, SystemIds()).create("topics/t/segment=0/3", b"a process that did not make the folders")
    assert {".", "topics", "topics/t"} < set(synced)


async def test_the_name_appears_only_with_all_bytes_fsynced(
    local: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    def recorded(call: str, real: Callable[..., object]) -> Callable[..., object]:
        def record(*args: object) -> object:
            events.append(call)
            return real(*args)

        return record

    for call in ("write", "fsync", "link"):
        monkeypatch.setattr(os, call, recorded(call, getattr(os, call)))
    await local.create("a", b"a")
    assert events == ["write", "fsync", "link", "fsync"]


@pytest.mark.process
async def test_a_crash_leaves_only_temporary_files_and_a_sweep_removes_them(local: LocalStore, tmp_path: Path) -> None:
    await local.create("t/0", b"zero")
    crash = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", CRASH, str(tmp_path / "store")])
    assert crash.returncode == -9
    assert len(temporary(tmp_path)) == 1
    assert await local.list("") == ["t/0"]
    assert await local.sweep_temporary() == 1
    assert temporary(tmp_path) == []
    assert await local.sweep_temporary() == 0


async def test_a_sweep_leaves_the_files_of_living_writers(
    local: LocalStore, tmp_path: Path, ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing, go_on, real = threading.Event(), threading.Event(), os.link

    def link(source: str, target: str) -> None:
        writing.set()
        assert go_on.wait(30)
        real(source, target)

    monkeypatch.setattr(os, "link", link)
    create = asyncio.create_task(local.create("t/1", b"one"))
    await asyncio.to_thread(writing.wait, 30)
    assert await LocalStore(tmp_path / "store", ids).sweep_temporary() == 0
    go_on.set()
    assert await create
    assert await local.read("t/1") == b"one"


async def test_a_sweep_before_the_first_object_finds_nothing(local: LocalStore) -> None:
    assert await local.sweep_temporary() == 0


async def test_a_swept_writer_gets_no_false_answer(
    local: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.link

    def link(source: str, target: str) -> None:
        os.unlink(source)
        real(source, target)

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(StoreUnavailable):
        await local.create("t/1", b"one")
    assert await local.list("") == []


async def test_deleting_the_last_object_removes_its_folders(local: LocalStore, tmp_path: Path) -> None:
    names = ["topics/t/segment=0/1", "topics/t/segment=0/2", "topics/t/segment=1/1", "topics/u/segment=0/1"]
    for name in names:
        await local.create(name, b"")
    await local.delete(names[0])
    assert (tmp_path / "store/topics/t/segment=0").is_dir()
    await local.delete(names[1])
    assert sorted(os.listdir(tmp_path / "store/topics/t")) == ["segment=1"]
    await local.delete(names[2])
    assert sorted(os.listdir(tmp_path / "store/topics")) == ["u"]
    await local.delete(names[3])
    assert sorted(os.listdir(tmp_path / "store")) == ["_tmp"]


async def test_creates_and_deletes_of_one_folder_race_without_harm(tmp_path: Path) -> None:
    stores = [LocalStore(tmp_path / "store", SystemIds()) for _ in range(3)]

    async def come_and_go(number: int) -> None:
        store = stores[number % len(stores)]
        for turn in range(25):
            name = f"topics/t/segment=0/{number}-{turn}"
            assert await store.create(name, name.encode())
            assert await store.read(name) == name.encode()
            await store.delete(name)

    await asyncio.gather(*(come_and_go(number) for number in range(6)))
    assert os.listdir(tmp_path / "store") == ["_tmp"]


async def test_list_reads_no_folder_that_it_does_not_need(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for topic in ("a", "b", "c"):
        for number in range(3):
            await local.create(f"topics/{topic}/segment={number}/1", b"")
    read: list[str] = []
    real = privates.files(local).ls

    def ls(path: str, detail: bool) -> list[str]:
        read.append(path.split("store/")[1])
        return cast(list[str], real(path, detail=detail))

    monkeypatch.setattr(privates.files(local), "ls", ls)
    assert await local.list("topics/b/segment=1/") == ["topics/b/segment=1/1"]
    assert read == ["topics/b/segment=1/"]
    read.clear()
    assert await local.list("topics/", after="topics/b/segment=0/1", limit=1) == ["topics/b/segment=1/1"]
    assert read == ["topics/", "topics/b/", "topics/b/segment=0/", "topics/b/segment=1/"]


async def test_the_root_may_be_a_url(tmp_path: Path, ids: Ids) -> None:
    await LocalStore(f"file://{tmp_path}/store", ids).create("a", b"a")
    assert (tmp_path / "store/a").read_bytes() == b"a"


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

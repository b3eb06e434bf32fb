"""What comes as a stream: it becomes an object whole and checked, or leaves nothing."""

import asyncio
import errno
import hashlib
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from seaweedq.clock import SystemIds
from seaweedq.errors import InvalidUpload, StoreUnavailable
from seaweedq.storage.interface import PayloadStore
from seaweedq.storage.local import LocalStore
from seaweedq.storage.memory import MemoryStore
from seaweedq.storage.spool import BUFFER_BYTES, Spool

NAME = "_payloads/t/20260102/1"
DATA = np.random.default_rng(1).bytes(3 * BUFFER_BYTES + 12_345)
DIGEST = hashlib.sha256(DATA).hexdigest()


async def stream(data: bytes, step: int = 65_536) -> AsyncIterator[bytes]:
    for start in range(0, len(data), step):
        await asyncio.sleep(0)
        yield data[start : start + step]


@pytest.fixture(params=["memory", "local"])
def receiving(request: pytest.FixtureRequest, local: LocalStore) -> PayloadStore:
    return local if request.param == "local" else MemoryStore()


def left(store: PayloadStore, tmp_path: Path) -> list[str]:
    """Files that are no objects."""
    folder = tmp_path / "store/_tmp"
    return os.listdir(folder) if isinstance(store, LocalStore) and folder.exists() else []


@pytest.mark.parametrize("size", [0, 1, BUFFER_BYTES, BUFFER_BYTES + 1, len(DATA)])
@pytest.mark.parametrize("step", [4_097, 65_536, 5 * BUFFER_BYTES])
async def test_a_stream_becomes_an_object(receiving: PayloadStore, tmp_path: Path, size: int, step: int) -> None:
    expected = hashlib.sha256(DATA[:size]).hexdigest()
    assert await receiving.receive(NAME, stream(DATA[:size], step), size, expected) == expected
    assert await receiving.read(NAME) == DATA[:size]
    assert await receiving.digest(NAME) == (size, None)
    assert await receiving.list("") == [NAME]
    assert left(receiving, tmp_path) == []


async def test_a_digest_need_not_be_known_and_its_case_does_not_matter(receiving: PayloadStore) -> None:
    assert await receiving.receive("a", stream(DATA), len(DATA), None) == DIGEST
    assert await receiving.receive("b", stream(DATA), len(DATA), DIGEST.upper()) == DIGEST


async def test_a_taken_name_keeps_its_bytes(receiving: PayloadStore, tmp_path: Path) -> None:
    await receiving.create(NAME, b"first")
    assert await receiving.receive(NAME, stream(DATA), len(DATA), DIGEST) is None
    assert await receiving.read(NAME) == b"first"
    assert left(receiving, tmp_path) == []


@pytest.mark.parametrize(
    ("size", "sha256", "field"),
    [
        (len(DATA) - 1, None, "size"),
        (len(DATA) + 1, None, "size"),
        (0, None, "size"),
        (BUFFER_BYTES, None, "size"),
        (len(DATA), hashlib.sha256(b"").hexdigest(), "sha256"),
    ],
)
async def test_what_is_not_as_announced_leaves_nothing(
    receiving: PayloadStore, tmp_path: Path, size: int, sha256: str | None, field: str
) -> None:
    with pytest.raises(InvalidUpload) as caught:
        await receiving.receive(NAME, stream(DATA), size, sha256)
    assert caught.value.fields["field"] == field
    assert caught.value.fields["bound"] == (size if field == "size" else sha256)
    assert await receiving.list("") == left(receiving, tmp_path) == []
    assert await receiving.receive(NAME, stream(DATA), len(DATA), DIGEST) == DIGEST


async def test_a_stream_that_is_too_long_is_not_read_to_its_end(receiving: PayloadStore) -> None:
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 1000
            yield bytes(1000)

    with pytest.raises(InvalidUpload, match="the upload announced 5000 bytes, but more arrived"):
        await receiving.receive(NAME, endless(), 5000, None)
    assert read == 6000


@pytest.mark.parametrize("error", [ConnectionResetError(errno.ECONNRESET, "gone"), RuntimeError("own")])
async def test_a_stream_that_breaks_leaves_nothing_and_its_error_is_seen(
    receiving: PayloadStore, tmp_path: Path, error: Exception
) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield DATA[: 2 * BUFFER_BYTES + 7]
        raise error

    with pytest.raises(type(error)) as caught:
        await receiving.receive(NAME, broken(), len(DATA), DIGEST)
    assert caught.value is error
    assert await receiving.list("") == left(receiving, tmp_path) == []


@pytest.mark.parametrize("sent", [0, 1, BUFFER_BYTES, 2 * BUFFER_BYTES + 1, len(DATA)])
async def test_a_cancelled_stream_leaves_nothing(receiving: PayloadStore, tmp_path: Path, sent: int) -> None:
    waiting = asyncio.Event()

    async def stalled() -> AsyncIterator[bytes]:
        async for chunk in stream(DATA[:sent]):
            yield chunk
        waiting.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(receiving.receive(NAME, stalled(), len(DATA), DIGEST))
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await receiving.list("") == left(receiving, tmp_path) == []


@pytest.mark.parametrize("call", ["makedirs", "open", "write", "fsync", "link"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
async def test_a_full_or_broken_disk_is_unavailable_and_leaves_nothing(
    local: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    def fail(*args: object, **named: object) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(StoreUnavailable) as caught:
            await local.receive(NAME, stream(DATA), len(DATA), DIGEST)
    assert caught.value.fields["errno"] == number
    assert await local.list("") == left(local, tmp_path) == []
    assert await local.receive(NAME, stream(DATA), len(DATA), DIGEST) == DIGEST


def held(real: Callable[..., object], reached: threading.Event, go_on: threading.Event) -> Callable[..., object]:
    def wait(*arguments: object) -> object:
        reached.set()
        assert go_on.wait(60)
        return real(*arguments)

    return wait


@pytest.mark.parametrize("call", ["open", "write", "fsync"])
async def test_cancelled_on_a_slow_disk_it_leaves_nothing_and_heeds_a_second_one(
    local: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    reached, go_on = threading.Event(), threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(os, call, held(getattr(os, call), reached, go_on))
        task = asyncio.create_task(local.receive(NAME, stream(DATA), len(DATA), DIGEST))
        assert await asyncio.to_thread(reached.wait, 30)
        started = time.monotonic()
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0.01)
        assert task.cancelled()  # and the thread still waits for the disk, up to 60 s
        assert time.monotonic() - started < 40
        go_on.set()
    assert await local.list("") == []
    assert await local.receive(NAME, stream(DATA), len(DATA), DIGEST) == DIGEST
    while left(local, tmp_path):
        await asyncio.sleep(0.01)


async def test_a_thread_that_comes_late_makes_no_file(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as threads:
        spool = Spool(str(tmp_path / "file"), threads)
        await spool.discard()
        with pytest.raises(StoreUnavailable, match="cancelled"):
            await spool.fill(stream(DATA), len(DATA), None)
    assert os.listdir(tmp_path) == []


async def test_the_loop_turns_while_the_disk_is_slow(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    reached, go_on = threading.Event(), threading.Event()
    monkeypatch.setattr(os, "fsync", held(os.fsync, reached, go_on))
    task = asyncio.create_task(local.receive(NAME, stream(DATA), len(DATA), DIGEST))
    while not reached.is_set():
        await asyncio.sleep(0)
    go_on.set()
    assert await task == DIGEST


async def test_a_sweep_leaves_what_is_being_received(local: LocalStore, tmp_path: Path) -> None:
    async def swept() -> AsyncIterator[bytes]:
        yield DATA[: 2 * BUFFER_BYTES]
        assert await local.sweep_temporary() == 0
        assert len(left(local, tmp_path)) == 1
        yield DATA[2 * BUFFER_BYTES :]

    assert await local.receive(NAME, swept(), len(DATA), DIGEST) == DIGEST


async def test_of_many_streams_for_one_name_one_wins(receiving: PayloadStore, tmp_path: Path) -> None:
    answers = await asyncio.gather(*(receiving.receive(NAME, stream(DATA), len(DATA), DIGEST) for _ in range(8)))
    assert answers.count(DIGEST) == 1
    assert answers.count(None) == 7
    assert await receiving.read(NAME) == DATA
    assert left(receiving, tmp_path) == []


async def test_a_store_of_one_machine_signs_nothing(receiving: PayloadStore) -> None:
    assert not receiving.presigns
    acts = [
        receiving.presign_put("a", 60, 1, "text/plain", None),
        receiving.presign_get("a", 60),
        receiving.begin_parts("a", "text/plain"),
        receiving.presign_part("a", "p", 1, 60, 1),
        receiving.list_parts("a", "p"),
        receiving.end_parts("a", "p", []),
        receiving.abort_parts("a", "p"),
    ]
    for act in acts:
        with pytest.raises(NotImplementedError, match="neither signed requests"):
            await act


async def test_uris_are_absolute(tmp_path: Path, local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    assert local.uri(NAME) == f"file://{tmp_path}/store/{NAME}"
    monkeypatch.chdir(tmp_path)
    assert LocalStore("here", SystemIds()).uri("a") == f"file://{tmp_path}/here/a"
    assert MemoryStore().uri("a/b") == "memory:///a/b"

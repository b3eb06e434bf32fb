"""The cache on disk: what it gives is what the store has, whatever happens to its folder."""

import asyncio
import errno
import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest

from seaweedq.clock import SystemClock
from seaweedq.errors import StoreUnavailable
from seaweedq.storage.cache_plan import BLOCK_BYTES
from seaweedq.storage.file_cache import FileCache, distrust
from seaweedq.storage.memory import MemoryStore
from seaweedq.storage.ranges import AHEAD_BYTES, TAIL_BYTES, RangeReader

MIB = 1024 * 1024
SIZE = 3 * MIB + 12_345


class CountedStore(MemoryStore):
    """A store whose files are read by ranges, which are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.requests = 0
        self.failing = False
        self.wait: Callable[[], object] = lambda: None

    def put(self, name: str, seed: int = 0, size: int = SIZE) -> bytes:
        self.objects[name] = bytes((seed + at * at // 251) % 251 for at in range(1021)) * (size // 1021 + 1)
        self.objects[name] = self.objects[name][:size]
        return self.objects[name]

    def open(self, name: str) -> BinaryIO:
        data = cast(bytes, super().open(name).read())
        self.requests += 1
        return cast(BinaryIO, RangeReader(lambda a, b: self.fetched(data[a:b]), len(data), data[-TAIL_BYTES:]))

    def fetched(self, data: bytes) -> bytes:
        self.wait()
        self.requests += 1
        if self.failing:
            raise StoreUnavailable("the store is away")
        return data


def read(cache: FileCache, store: CountedStore, name: str, *starts: int) -> list[bytes]:
    """Pieces of 100,000 bytes of a file, read in one opening."""
    with cache.over(store).open(name) as file:
        return [(file.seek(start), file.read(100_000))[1] for start in starts]


@pytest.fixture
def store() -> CountedStore:
    return CountedStore()


@pytest.fixture
def cache(tmp_path: Path) -> FileCache:
    return FileCache(tmp_path / "cache", 16 * MIB, SystemClock())


def test_the_second_reader_sends_no_request(cache: FileCache, store: CountedStore, tmp_path: Path) -> None:
    data = store.put("topics/t/a")
    expected = [data[at : at + 100_000] for at in (0, MIB, SIZE - 50_000)]
    assert read(cache, store, "topics/t/a", 0, MIB, SIZE - 50_000) == expected
    assert store.requests == 3
    assert read(cache, store, "topics/t/a", 0, MIB, SIZE - 50_000) == expected
    assert store.requests == 3
    assert cache.uses == {"hit": 3, "miss": 3, "shared": 0}
    assert cache.hit_bytes == TAIL_BYTES + 2 * AHEAD_BYTES
    assert not os.listdir(tmp_path / "cache"), "a crash would leave a file"
    assert os.fstat(cache.descriptor).st_size <= 16 * MIB


def test_ten_readers_of_a_range_share_one_request(cache: FileCache, store: CountedStore) -> None:
    data = store.put("topics/t/a")
    read(cache, store, "topics/t/a")
    together = threading.Barrier(11)
    store.wait = lambda: together.wait(30)
    with ThreadPoolExecutor(10) as threads:
        found = [threads.submit(read, cache, store, "topics/t/a", MIB) for _ in range(10)]
        while cache.uses["shared"] < 9:
            pass
        together_now = [threading.Thread(target=together.wait) for _ in range(10)]
        for one in together_now:
            one.start()
        assert [one.result() for one in found] == [[data[MIB : MIB + 100_000]]] * 10
        for one in together_now:
            one.join()
    assert store.requests == 3  # the opening, once for its end and once for the range, and the range


def test_all_who_wait_get_the_error_and_the_next_one_tries(cache: FileCache, store: CountedStore) -> None:
    data = store.put("topics/t/a")
    read(cache, store, "topics/t/a", SIZE - 10)  # its end is cached

    def until_another_waits() -> None:
        before, end_s = cache.uses["shared"], time.monotonic() + 30
        while cache.uses["shared"] == before and time.monotonic() < end_s:
            time.sleep(0.001)

    store.failing, store.wait = True, until_another_waits
    with ThreadPoolExecutor(2) as readers:
        found = [readers.submit(read, cache, store, "topics/t/a", 0) for _ in range(2)]
        assert [type(one.exception(60)) for one in found] == [StoreUnavailable] * 2
    assert cache.uses["shared"] == 1
    store.failing, store.wait = False, lambda: None
    assert read(cache, store, "topics/t/a", 0) == [data[:100_000]]
    with pytest.raises(FileNotFoundError):
        read(cache, store, "topics/t/b", 0)


def test_bytes_that_have_changed_on_the_disk_are_fetched_again(cache: FileCache, store: CountedStore) -> None:
    data = store.put("topics/t/a")
    read(cache, store, "topics/t/a", 0)
    for at in range(0, os.fstat(cache.descriptor).st_size, BLOCK_BYTES):
        os.pwrite(cache.descriptor, b"\xff", at)
    assert read(cache, store, "topics/t/a", 0) == [data[:100_000]]
    assert cache.failures["checksum"] == 2
    before = store.requests
    assert read(cache, store, "topics/t/a", 0) == [data[:100_000]]
    assert store.requests == before, "the range was not cached again"
    os.ftruncate(cache.descriptor, 10)
    assert read(cache, store, "topics/t/a", 0) == [data[:100_000]]


def test_a_broken_disk_makes_the_cache_smaller(
    cache: FileCache, store: CountedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = store.put("topics/t/a")

    def broken(*_: Any) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    read(cache, store, "topics/t/a", 0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", broken)
        assert read(cache, store, "topics/t/a", 0) == [data[:100_000]]
    assert cache.plan.lost == (TAIL_BYTES + AHEAD_BYTES) // BLOCK_BYTES
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", broken)
        assert read(cache, store, "topics/t/a", MIB) == [data[MIB : MIB + 100_000]]
    assert cache.plan.lost == (TAIL_BYTES + 2 * AHEAD_BYTES) // BLOCK_BYTES
    assert cache.failures == {"full": 0, "write": 1, "read": 2, "checksum": 0}
    before = store.requests
    assert read(cache, store, "topics/t/a", 0) == [data[:100_000]]
    assert store.requests == before


@pytest.mark.process
def test_a_full_disk_makes_the_cache_smaller(store: CountedStore, small_disk: Any) -> None:
    disk = small_disk(4, 1)
    cache = FileCache(disk.path / "cache", 16 * MIB, SystemClock())
    files = [f"topics/t/{number}" for number in range(4)]
    data = {name: store.put(name, seed) for seed, name in enumerate(files)}
    starts = [at * AHEAD_BYTES for at in range(11)]
    for _ in range(2):
        for name in files:
            assert read(cache, store, name, *starts) == [data[name][at : at + 100_000] for at in starts]
    assert cache.failures["full"] > 0
    assert cache.uses["hit"] > 0, "nothing is cached on a full disk"
    assert cache.plan.limit_blocks * BLOCK_BYTES < 16 * MIB


def test_a_deleted_topic_is_forgotten(cache: FileCache, store: CountedStore) -> None:
    store.put("topics/t/a"), store.put("topics/t2/a")
    read(cache, store, "topics/t/a", 0), read(cache, store, "topics/t2/a", 0)
    cache.forget("topics/t/")
    del store.objects["topics/t/a"], store.objects["topics/t2/a"]
    with pytest.raises(FileNotFoundError):
        read(cache, store, "topics/t/a", 0)
    assert len(read(cache, store, "topics/t2/a", 0)[0]) == 100_000


def test_what_comes_while_a_topic_is_forgotten_is_not_kept(cache: FileCache, store: CountedStore) -> None:
    store.put("topics/t/a")
    read(cache, store, "topics/t/a")
    store.wait = lambda: cache.forget("topics/t/")
    read(cache, store, "topics/t/a", 0)
    assert cache.plan.held_blocks == 0


def test_a_file_that_cannot_be_decoded_is_fetched_again(cache: FileCache, store: CountedStore) -> None:
    """What the store sent once may have been wrong, and would be so for ever."""
    right = store.put("topics/t/a")
    store.objects["topics/t/a"] = bytes(SIZE)
    with cache.over(store).open("topics/t/a") as file:
        assert file.read(100) == bytes(100)
        distrust(file)
    store.objects["topics/t/a"] = right
    assert read(cache, store, "topics/t/a", 0) == [right[:100_000]]
    distrust(io.BytesIO())


PROGRAM = """
import os, sys
from pathlib import Path
from seaweedq.clock import SystemClock
from seaweedq.storage.file_cache import FileCache
from seaweedq.storage.memory import MemoryStore
store, cache = MemoryStore(), FileCache(Path(sys.argv[1]), 64 << 20, SystemClock())
store.objects = {f"topics/t/{number}": os.urandom(1 << 20) for number in range(100)}
print("writing", flush=True)
while True:
    for name in store.objects:
        with cache.over(store).open(name) as file:
            file.read(1 << 20)
        cache.forget("topics/t/99")
"""


@pytest.mark.process
def test_a_kill_in_the_middle_of_a_write_leaves_nothing(tmp_path: Path, store: CountedStore) -> None:
    folder = tmp_path / "cache"
    with subprocess.Popen([sys.executable, "-c", PROGRAM, str(folder)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "writing\n"
        opened = f"/proc/{process.pid}/fd"
        while not any(
            os.stat(f"{opened}/{one}").st_size > MIB for one in os.listdir(opened) if _is_of(folder, opened, one)
        ):
            pass
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    assert not os.listdir(folder)
    data = store.put("topics/t/0")
    assert read(FileCache(folder, 16 * MIB, SystemClock()), store, "topics/t/0", 0) == [data[:100_000]]


def _is_of(folder: Path, opened: str, one: str) -> bool:
    return os.readlink(f"{opened}/{one}").startswith(str(folder))


def test_the_cache_passes_all_else_to_the_store(cache: FileCache, store: CountedStore) -> None:
    over = cache.over(store)
    assert asyncio.run(over.create("topics/t/a", b"bytes"))
    assert asyncio.run(over.read("topics/t/a")) == b"bytes"
    assert over.readers is store.readers
    cache.close()

"""The stores that the contract runs over: a new backend joins by a line in BACKENDS."""

from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from seaweedq.storage.interface import ObjectStore
from seaweedq.storage.local import LocalStore
from seaweedq.storage.memory import MemoryStore
from seaweedq.storage.s3 import S3Store
from tests.support.fixtures.services import s3_store


class CountingIds:
    def __init__(self) -> None:
        self._numbers: Iterator[int] = count(1)

    def nonce(self) -> str:
        return f"{next(self._numbers):032x}"


class FrozenClock:
    def now_us(self) -> int:
        return 1_700_000_000_000_000

    def monotonic_s(self) -> float:
        return 0.0


BACKENDS: dict[str, Callable[[pytest.FixtureRequest, Path], ObjectStore]] = {
    "memory": lambda request, folder: MemoryStore(),
    "local": lambda request, folder: LocalStore(folder / "store", CountingIds()),
    "s3-moto": lambda request, folder: s3_store(request, "moto_server"),
    "s3-minio": lambda request, folder: s3_store(request, "minio_server"),
    "s3-seaweedfs": lambda request, folder: s3_store(request, "seaweedfs_server"),
}


@pytest.fixture
def ids() -> CountingIds:
    return CountingIds()


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


@pytest.fixture(params=BACKENDS)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ObjectStore]:
    store = BACKENDS[request.param](request, tmp_path)
    yield store
    if isinstance(store, S3Store):
        await store.close()


@pytest.fixture
def local(tmp_path: Path, ids: CountingIds) -> LocalStore:
    return LocalStore(tmp_path / "store", ids)

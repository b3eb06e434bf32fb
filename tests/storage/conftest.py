"""The stores that the contract runs over: a new backend joins by a line in BACKENDS."""

from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from seaweedq.errors import StoreUnavailable
from seaweedq.storage.interface import Data, ObjectStore
from seaweedq.storage.local import LocalStore
from seaweedq.storage.memory import MemoryStore
from seaweedq.storage.names import by_parts
from seaweedq.storage.s3 import S3Store
from tests.support.fixtures.services import s3_store
from tests.support.processes.seaweedfs_front import LOST_IN_A_ROW
from tests.support.tiers import later

Order = Callable[[str], str]


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


class Insistent(S3Store):
    """Creates as chains and journals do: after an unknown outcome it puts the same bytes again, and compares."""

    async def create(self, name: str, data: Data) -> bool:
        for last in range(LOST_IN_A_ROW + 1):
            try:
                return await super().create(name, data) or (last > 0 and await self.read(name) == bytes(data))
            except StoreUnavailable:
                if last == LOST_IN_A_ROW:
                    raise
        raise AssertionError("unreachable")


BACKENDS: dict[str, Callable[[pytest.FixtureRequest, Path], ObjectStore]] = {
    "memory": lambda request, folder: MemoryStore(),
    "local": lambda request, folder: LocalStore(folder / "store", CountingIds()),
    "s3-moto": lambda request, folder: s3_store(request, "moto_server"),
    "s3-moto_as_seaweedfs": lambda request, folder: s3_store(request, "moto_as_seaweedfs_server"),
    "s3-moto_astray": lambda request, folder: s3_store(request, "moto_astray_server", Insistent),
    "s3-minio": lambda request, folder: s3_store(request, "minio_server"),
    "s3-seaweedfs": lambda request, folder: s3_store(request, "seaweedfs_server"),
}


BY_PARTS = ("memory", "local", "s3-moto_as_seaweedfs", "s3-moto_astray", "s3-seaweedfs")  # how these list
IN_DEFAULT = tuple(name for name in BACKENDS if name != "s3-moto_astray")


@pytest.fixture
def ids() -> CountingIds:
    return CountingIds()


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


@pytest.fixture(params=[*IN_DEFAULT, later("s3-moto_astray")])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ObjectStore]:
    store = BACKENDS[request.param](request, tmp_path)
    yield store
    if isinstance(store, S3Store):
        await store.close()


@pytest.fixture
def local(tmp_path: Path, ids: CountingIds) -> LocalStore:
    return LocalStore(tmp_path / "store", ids)


@pytest.fixture
def order(request: pytest.FixtureRequest) -> Order:
    """By what the store sorts names: whole, or part by part. Nothing may depend on which."""
    return by_parts if request.node.callspec.params["store"] in BY_PARTS else str

"""The stores that the contract runs over: a new backend joins by a line in BACKENDS."""

from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from s3_service import S3Service
from s3fs import S3FileSystem

from seaweedq.storage.interface import ObjectStore
from seaweedq.storage.local import LocalStore
from seaweedq.storage.memory import MemoryStore
from seaweedq.storage.s3 import S3Store


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


def s3_server(request: pytest.FixtureRequest, server: str) -> S3Service:
    """A running server, which boto's clients find."""
    service: S3Service = request.getfixturevalue(server)
    environment: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
    for name, value in service.env.items():
        environment.setenv(name, value)
    S3FileSystem.clear_instance_cache()  # a client's reader would go on with another server
    return service


def s3_store(request: pytest.FixtureRequest, server: str) -> S3Store:
    """A store below a prefix of a fresh bucket."""
    return S3Store(f"s3://{s3_server(request, server).bucket()}/some/where")


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


@pytest.fixture(params=["moto_server", "minio_server", "seaweedfs_server"])
def s3(request: pytest.FixtureRequest) -> S3Service:
    """Each S3 server, which boto's clients find."""
    return s3_server(request, request.param)


@pytest.fixture
def checks(request: pytest.FixtureRequest) -> None:
    """The test is not for moto, which looks at no signature."""
    if "moto" in request.node.name:
        pytest.skip("moto looks at no signature")


@pytest.fixture
def moto(request: pytest.FixtureRequest) -> S3Service:
    """moto alone, which boto's clients find."""
    return s3_server(request, "moto_server")

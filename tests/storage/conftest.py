"""The stores that the contract runs over: a new backend joins by a line in BACKENDS."""

from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from seaweedq.storage.interface import ObjectStore, by_parts
from seaweedq.storage.local import LocalStore
from seaweedq.storage.memory import MemoryStore
from seaweedq.storage.s3 import S3Store
from tests.support.fixtures.services import SERVER_OF_YOURS, s3_store
from tests.support.storage.insistent import Insistent
from tests.support.tiers import marked

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


BACKENDS: dict[str, Callable[[pytest.FixtureRequest, Path], ObjectStore]] = {
    "memory": lambda request, folder: MemoryStore(),
    "local": lambda request, folder: LocalStore(folder / "store", CountingIds()),
    "s3-moto": lambda request, folder: s3_store(request, "moto_server"),
    "s3-moto_as_seaweedfs": lambda request, folder: s3_store(request, "moto_as_seaweedfs_server"),
    "s3-moto_astray": lambda request, folder: s3_store(request, "moto_astray_server", Insistent),
    "s3-minio": lambda request, folder: s3_store(request, "minio_server"),
    "s3-seaweedfs": lambda request, folder: s3_store(request, "seaweedfs_server"),
}
if SERVER_OF_YOURS:
    BACKENDS["s3-yours"] = lambda request, folder: s3_store(request, *SERVER_OF_YOURS)


BY_PARTS = ("memory", "local", "s3-moto_as_seaweedfs", "s3-moto_astray", "s3-seaweedfs")  # how these list
PARAMETERS = [marked(name, "service") if name.startswith("s3") else name for name in BACKENDS if "astray" not in name]
PARAMETERS.append(marked("s3-moto_astray", "service", "long"))


@pytest.fixture
def ids() -> CountingIds:
    return CountingIds()


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


@pytest.fixture(params=PARAMETERS)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ObjectStore]:
    store = BACKENDS[request.param](request, tmp_path)
    yield store
    if isinstance(store, S3Store):
        await store.close()


@pytest.fixture
def local(tmp_path: Path, ids: CountingIds) -> LocalStore:
    return LocalStore(tmp_path / "store", ids)


@pytest.fixture
async def order(request: pytest.FixtureRequest, store: ObjectStore) -> Order:
    """By what the store sorts names: whole, or part by part. Nothing may depend on which."""
    backend = request.node.callspec.params["store"]
    if backend != "s3-yours":
        return by_parts if backend in BY_PARTS else str
    for name in ("a.b", "a/b"):
        await store.create(name, b"")
    first, second = await store.list("")
    await store.delete(first)
    await store.delete(second)
    return by_parts if first == "a/b" else str

"""The stores that the contract runs over: a new backend joins by a line in BACKENDS."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from seaweedq.storage.interface import ObjectStore
from seaweedq.storage.local import LocalStore
from seaweedq.storage.memory import MemoryStore


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


BACKENDS: dict[str, Callable[[Path], ObjectStore]] = {
    "memory": lambda folder: MemoryStore(),
    "local": lambda folder: LocalStore(folder / "store", CountingIds()),
}


@pytest.fixture
def ids() -> CountingIds:
    return CountingIds()


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


@pytest.fixture(params=BACKENDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return BACKENDS[request.param](tmp_path)


@pytest.fixture
def local(tmp_path: Path, ids: CountingIds) -> LocalStore:
    return LocalStore(tmp_path / "store", ids)

"""The backends that the contract runs over: a new one joins by a line in BACKENDS."""

from collections.abc import AsyncIterator, Callable
from itertools import count
from pathlib import Path

import pytest

from seaweedq.coordination.embedded import EmbeddedCoordination
from seaweedq.coordination.interface import Coordination
from seaweedq.coordination.memory import MemoryCoordination

LOG_LIMIT = 50  # revisions, in the contract
POLL_S = 0.01


class FakeClock:
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now_us(self) -> int:
        return int(self.seconds * 1_000_000)

    def monotonic_s(self) -> float:
        return self.seconds


class CountingIds:
    def __init__(self) -> None:
        self._numbers = count(1)

    def nonce(self) -> str:
        return f"{next(self._numbers):016x}{0:016x}"


class Backend:
    """One shared state; `connect` gives one more handle on it, `advance` lets its time pass."""

    def __init__(self, make: Callable[[FakeClock], Coordination], shared: bool) -> None:
        self.clock = FakeClock()
        self._make, self._shared = make, shared
        self._handles: list[Coordination] = []

    def connect(self) -> Coordination:
        if not self._handles or not self._shared:
            self._handles.append(self._make(self.clock))
        return self._handles[-1]

    async def advance(self, seconds: float) -> None:
        self.clock.seconds += seconds

    async def close(self) -> None:
        for handle in self._handles:
            await handle.close()


def memory(folder: Path) -> Backend:
    return Backend(lambda clock: MemoryCoordination(clock, log_limit=LOG_LIMIT, poll_s=POLL_S), shared=True)


def embedded(folder: Path) -> Backend:
    path = folder / "coordination.sqlite"
    return Backend(
        lambda clock: EmbeddedCoordination(path, clock, log_limit=LOG_LIMIT, poll_s=POLL_S, boot="this"), shared=False
    )


BACKENDS = {"memory": memory, "embedded": embedded}


@pytest.fixture(params=BACKENDS)
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    backend = BACKENDS[request.param](tmp_path)
    yield backend
    await backend.close()


@pytest.fixture
def coordination(backend: Backend) -> Coordination:
    return backend.connect()


@pytest.fixture
def clock(backend: Backend) -> FakeClock:
    return backend.clock


@pytest.fixture
def ids() -> CountingIds:
    return CountingIds()


@pytest.fixture
def log_limit() -> int:
    return LOG_LIMIT

"""The backends that the contract runs over: a new one joins by a line in BACKENDS.

All of them live by a fake clock. A real etcd has its own: there a lease whose fake time is over is revoked, which is
what etcd itself does when time is up (test_etcd_leases waits for that).
"""

from collections.abc import AsyncIterator, Callable
from itertools import count
from uuid import uuid4

import pytest

from seaweedq.coordination.etcd import Access, EtcdCoordination
from seaweedq.coordination.interface import Coordination, Grant, Leases
from seaweedq.coordination.memory import MemoryCoordination
from seaweedq.coordination.sqlite import EmbeddedCoordination
from tests.support.processes.etcd_service import EtcdServer
from tests.support.tiers import marked

LOG_LIMIT = 50  # revisions, in the contract
POLL_S = 0.01
FOR_EVER_S = 36_000


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

    keeps_all = False  # whether only `forget` makes the log forget, and watches read ahead

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

    async def forget(self) -> None:
        """Forget all but the newest LOG_LIMIT revisions, where that does not happen by itself."""

    async def close(self) -> None:
        for handle in self._handles:
            await handle.close()


class AgeingLeases:
    """Real leases that last, and the fake times at which they should end."""

    def __init__(self, leases: Leases, clock: FakeClock, ends_s: dict[int, tuple[float, float]]) -> None:
        self._leases, self._clock, self._ends_s = leases, clock, ends_s

    async def grant(self, ttl_s: float) -> Grant:
        lease = (await self._leases.grant(FOR_EVER_S)).lease
        self._ends_s[lease] = (self._clock.seconds + ttl_s, ttl_s)
        return Grant(lease, ttl_s)

    async def renew(self, lease: int) -> bool:
        alive = await self._leases.renew(lease)
        if alive:
            ttl_s = self._ends_s[lease][1]
            self._ends_s[lease] = (self._clock.seconds + ttl_s, ttl_s)
        return alive

    async def revoke(self, lease: int) -> None:
        await self._leases.revoke(lease)


class EtcdBackend(Backend):
    """A prefix of its own in the etcd that all tests share."""

    keeps_all = True

    def __init__(self, server: EtcdServer) -> None:
        super().__init__(self._handle, shared=False)
        self._server, self._prefix = server, f"{uuid4()}/"
        self._ends_s: dict[int, tuple[float, float]] = {}
        self._own = EtcdCoordination(Access([server.endpoint]), self._prefix)

    async def advance(self, seconds: float) -> None:
        await super().advance(seconds)
        for lease, (end_s, _) in list(self._ends_s.items()):
            if end_s <= self.clock.seconds:
                del self._ends_s[lease]
                await self._own.revoke(lease)

    async def forget(self) -> None:
        self._server.compact((await self._own.range("")).revision - LOG_LIMIT + 1)

    async def close(self) -> None:
        await super().close()
        await self._own.close()

    def _handle(self, clock: FakeClock) -> Coordination:
        handle = EtcdCoordination(Access([self._server.endpoint]), self._prefix)
        handle.leases = AgeingLeases(handle.leases, clock, self._ends_s)
        return handle


def memory(request: pytest.FixtureRequest) -> Backend:
    return Backend(lambda clock: MemoryCoordination(clock, log_limit=LOG_LIMIT, poll_s=POLL_S), shared=True)


def embedded(request: pytest.FixtureRequest) -> Backend:
    path = request.getfixturevalue("tmp_path") / "coordination.sqlite"
    return Backend(
        lambda clock: EmbeddedCoordination(path, clock, log_limit=LOG_LIMIT, poll_s=POLL_S, boot="this"), shared=False
    )


def etcd(request: pytest.FixtureRequest) -> Backend:
    return EtcdBackend(request.getfixturevalue("etcd_server"))


BACKENDS = {"memory": memory, "embedded": embedded, "etcd": etcd}


@pytest.fixture(params=["memory", "embedded", marked("etcd", "service")])
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    backend = BACKENDS[request.param](request)
    yield backend
    await backend.close()


@pytest.fixture
def coordination(backend: Backend) -> Coordination:
    return backend.connect()


@pytest.fixture
async def base(backend: Backend) -> int:
    """The store's revision before the test: 0 where the store is the test's own."""
    return (await backend.connect().range("")).revision


@pytest.fixture
def clock(backend: Backend) -> FakeClock:
    return backend.clock


@pytest.fixture
def ids() -> CountingIds:
    return CountingIds()


@pytest.fixture
def log_limit() -> int:
    return LOG_LIMIT

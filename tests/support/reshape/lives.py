"""Brokers in the test's own loop that can die at any step: each knows its tasks, and all of them end at once.

`reach(place)` kills whoever has been told to die there, or does what else was planted. A dead broker's requests end as
those of a process that is gone: nobody knows what became of them.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import Context, ContextVar, copy_context
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import httpx

from seaweedq.broker.broker import Broker
from seaweedq.broker.cluster.suspecting import OwnRevocations
from seaweedq.checks import using
from seaweedq.errors import DataFolderInUse, Unavailable
from seaweedq.journal import backends
from seaweedq.journal.disk import Disk
from seaweedq.journal.holdings import Holdings
from seaweedq.journal.home_folder import FolderLock
from seaweedq.settings import Settings
from seaweedq.storage.memory import MemoryStore
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import InLoop, until
from tests.support.brokers.machine import Machine

T = TypeVar("T")


class Life:
    """One life of a broker: its tasks, whoever has started them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.tasks: WeakKeyDictionary[asyncio.Task[Any], None] = WeakKeyDictionary()  # in order: a set has addresses'
        self.over = self.orphaned = False
        self.locks: list[FolderLock] = []  # on the folders of others
        self.context: Context = copy_context()
        self.context.run(_life.set, self)

    def end(self) -> None:
        """At once: none of its tasks takes another step but to clean up."""
        self.over = True
        for task in list(self.tasks.keys()):
            task.cancel()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Work of this broker's."""
        return asyncio.get_running_loop().create_task(work, context=self.context)


_life: ContextVar[Life | None] = ContextVar("life", default=None)


class _Lock(FolderLock):
    """A lock that goes with its life."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        super().__init__(folder, disk)
        self._life = _life.get()
        if self._life:
            self._life.locks.append(self)

    def acquire(self, wait_s: float = 0) -> None:
        super().acquire(wait_s)
        if self._life and self._life.over:
            self.release()
            raise DataFolderInUse("its life is over")


class _App:
    """A broker's application, whose work is its own whoever asks."""

    def __init__(self, app: Any, life: Life) -> None:
        self._app, self._life = app, life
        self.active = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._life.over:
            raise Unavailable(f"{self._life.url} is not there")
        task = self._life.start(self._app(scope, receive, send))
        self.active += 1
        try:
            await asyncio.wait([task])
        finally:
            self.active -= 1
            task.cancel()
        if self._life.over and (task.cancelled() or task.exception()):
            raise Unavailable(f"{self._life.url} did not answer")
        task.result()


class Lives(InLoop):
    """A cluster whose brokers can be killed at a place, or made zombies."""

    def __init__(
        self, folder: Path, store: MemoryStore, settings: dict[str, Any], machine: Machine | None = None
    ) -> None:
        super().__init__(folder, store, settings, machine)
        self.lives: dict[Broker, Life] = {}
        self.died: list[str] = []  # where
        self._planted: dict[tuple[str, str], Callable[[], None]] = {}  # by URL and place

    @property
    def living(self) -> list[Broker]:
        """Those that can be asked."""
        return [
            b for b, life in self.lives.items() if not life.over and b.process.url in self.apps and b.readiness.ready
        ]

    async def _begin(
        self,
        settings: Settings,
        url: str,
        revoked: OwnRevocations | None = None,
        holdings: Holdings | None = None,
    ) -> Broker:
        life = Life(url)
        count = len(self.brokers)
        begun = life.start(super()._begin(settings, url, revoked, holdings))
        while len(self.brokers) == count and not begun.done():
            await asyncio.sleep(0)  # as yet there is no application
        if not begun.done():
            self.apps[url] = _App(self.apps[url], life)  # type: ignore[assignment]
            self.lives[self.brokers[count]] = life
        return await begun

    async def vanish(self, broker: Broker) -> None:
        """As InLoop, and nothing that it had begun goes on."""
        life = self.lives[broker]
        life.end()
        self._planted = {(url, place): act for (url, place), act in self._planted.items() if url != broker.process.url}
        tasks = [task for task in list(life.tasks.keys()) if task is not asyncio.current_task()]
        await asyncio.gather(*tasks, return_exceptions=True)
        for lock in life.locks:
            lock.release()
        self.apps[broker.process.url] = self.apps.get(broker.process.url)  # type: ignore[assignment]
        await super().vanish(broker)

    async def orphan(self, broker: Broker) -> None:
        """End its lease: the others take over, and it goes on as a zombie until it is crashed."""
        self.lives[broker].orphaned = True
        await self.coordination.leases.revoke(inside.membership(broker).lease)

    async def leave(self, broker: Broker) -> None:
        """As SIGTERM does: it hands over, then new clients go elsewhere, those that are there are answered, it ends."""
        app: Any = self.apps[broker.process.url]
        await broker.drain()
        del self.apps[broker.process.url]
        broker.begin_stop()
        await until(lambda: app.active == 0, "clients of one who leaves are not answered")
        await broker.stop()
        del self.lives[broker]
        self.brokers.remove(broker)

    def client(self, broker: Broker) -> httpx.AsyncClient:
        """Asks one broker."""
        transport = httpx.ASGITransport(self.apps[broker.process.url])
        return httpx.AsyncClient(transport=transport, base_url=broker.process.url, timeout=None)

    def die_at(self, broker: Broker, place: str, turn: int = 1) -> None:
        """When it comes there for the `turn`th time."""
        left = turn

        def die() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                del self._planted[broker.process.url, place]
                self.died.append(place)
                self.lives[broker].end()
                raise asyncio.CancelledError(f"killed at {place}")

        self._planted[broker.process.url, place] = die

    def act_at(self, broker: Broker, place: str, act: Callable[[], None]) -> None:
        """Whenever it comes there."""
        self._planted[broker.process.url, place] = act

    def spare(self) -> None:
        """Nobody dies any more by itself."""
        self._planted.clear()

    def reach(self, place: str) -> None:
        """The fail points of all lives."""
        life = _life.get()
        if life and (act := self._planted.get((life.url, place))) and not life.over:
            act()


@asynccontextmanager
async def lives(
    folder: Path, count: int = 3, store: MemoryStore | None = None, machine: Machine | None = None, **settings: Any
) -> AsyncIterator[Lives]:
    """`count` brokers that see one another; all are stopped at the end, and nobody dies then."""
    asyncio.get_running_loop().set_task_factory(_task)
    together = Lives(folder, store or MemoryStore(), settings, machine)
    with using(together.reach), _locks_of_lives():
        async with AsyncExitStack() as stack:
            stack.push_async_callback(together.coordination.close)
            stack.push_async_callback(_stop, together)
            for _ in range(count):
                await together.begin()
            await together.see()
            yield together


async def _stop(together: Lives) -> None:
    together.spare()
    together.coordination.before = together.coordination.after = _nothing
    for broker, life in list(together.lives.items()):
        if life.over and broker.process.url in together.apps and broker.readiness.ready:
            await together.crash(broker)
    await asyncio.gather(*(broker.stop() for broker in together.living))


async def _nothing(writes: Any) -> None:
    pass


def _task(loop: asyncio.AbstractEventLoop, coro: Any, context: Context | None = None) -> asyncio.Task[Any]:
    task = asyncio.Task(coro, loop=loop, context=context)
    life = context.get(_life) if context else _life.get()
    if life:
        life.tasks[task] = None
        if life.over:
            task.cancel()
    return task


@contextmanager
def _locks_of_lives() -> Iterator[None]:
    """Locks that go with a life meanwhile."""
    backends.FolderLock = _Lock  # type: ignore[misc]
    try:
        yield
    finally:
        backends.FolderLock = FolderLock  # type: ignore[misc]

"""Some brokers in the test's own loop, over one store and one coordination; they call one another without a network."""

import asyncio
import errno
import sys
from collections import ChainMap
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from seaweedq.api.app import Application
from seaweedq.broker.broker import Broker
from seaweedq.broker.cluster.suspecting import OwnRevocations
from seaweedq.broker.imports.reader_process import StartReader, no_reader
from seaweedq.broker.rpc.client import Peers
from seaweedq.broker.rpc.peer_connections import Headers, Relayed, Request
from seaweedq.broker.rpc.peer_keys import Secured
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Put
from seaweedq.coordination.records import ClusterRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import Unavailable
from seaweedq.journal.holdings import Holdings
from seaweedq.settings import Settings
from seaweedq.storage.memory import MemoryStore
from seaweedq.traces import Traces
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.environments import environment
from tests.support.brokers.in_process import LEASE_S, Held
from tests.support.brokers.machine import Machine

STEPS = 6_000


class DirectPeers(Peers):
    """Calls the other brokers' applications, of those that are in `apps` by URL, and neither refuse nor are silent."""

    def __init__(self, apps: Mapping[str, Any], refusing: set[str], silent: set[str]) -> None:
        super().__init__()
        self._apps = apps
        self._refusing, self._silent = refusing, silent

    async def send(self, base: str, request: Request, shown: Headers, secured: Secured | None = None) -> Relayed:
        """As Peers."""
        if base in self._silent:
            raise Unavailable(f"{base} does not answer") from TimeoutError()
        if base not in self._apps or base in self._refusing:
            raise Unavailable(f"{base} does not answer") from ConnectionRefusedError(errno.ECONNREFUSED, "refused")
        transport = httpx.ASGITransport(self._apps[base])
        async with httpx.AsyncClient(transport=transport, timeout=None) as http:
            headers = {**request.headers, **shown}
            found = await http.request(request.method, base + request.path, headers=headers, content=request.body)
        if base not in self._apps:
            raise Unavailable(f"{base} did not answer")
        return Relayed(found.status_code, dict(found.headers), found.content)


class InLoop:
    """The brokers by number; `coordination` and `store` are what they share."""

    def __init__(
        self,
        folder: Path,
        store: MemoryStore,
        settings: dict[str, Any],
        machine: Machine | None = None,
        secret: str = "secret",
    ) -> None:
        sys.audit("tests.brokers", str(folder))
        self.store = store
        self.secret = secret
        self.machine = machine or Machine()
        self.coordination = Held(self.machine.clock)
        self.apps: dict[str, Application] = {}
        self.peer_apps: dict[str, Any] = {}  # what answers at ports for brokers, by URL
        self.peer_ports = False  # whether those that begin have one
        self.import_reader: StartReader = no_reader
        self.traces: Traces | None = None
        self.brokers: list[Broker] = []
        self.refusing: set[str] = set()  # URLs at which nobody seems to listen
        self.silent: set[str] = set()  # URLs at which nobody answers
        self._folder = folder
        self.settings = settings

    async def begin(self) -> Broker:
        """One more, ready."""
        number = len(self.brokers)
        settings = Settings(
            data_dir=self._folder / str(number), name=f"b{number}", **{"lease_s": LEASE_S, **self.settings}
        )
        return await self._begin(settings, f"http://b{number}")

    async def begin_again(self, dead: Broker, in_its_process: bool = False) -> Broker:
        """The next life of one that has ended, in its folder; in the same process, it has what that holds."""
        holdings = dead.process.journals.holdings if in_its_process else None
        return await self._begin(dead.process.settings, dead.process.url, dead.process.revoked, holdings)

    async def _begin(
        self,
        settings: Settings,
        url: str,
        revoked: OwnRevocations | None = None,
        holdings: Holdings | None = None,
    ) -> Broker:
        secret = self.secret
        peers = DirectPeers(ChainMap(self.apps, self.peer_apps), self.refusing, self.silent)
        made = environment(
            settings,
            self.store,
            self.coordination,
            url,
            peers,
            secret,
            self.import_reader,
            self.machine,
            revoked,
            holdings,
        )
        made = replace(made, peer_url=peer_url_of(url) if self.peer_ports else "", traces=self.traces)
        broker = Broker(made)
        broker.lock()
        self.apps[url] = Application(broker)
        if self.peer_ports:
            self.peer_apps[made.peer_url] = self.apps[url].at_peer_port
        self.brokers.append(broker)
        await broker.start()
        return broker

    def unlisten(self, broker: Broker) -> None:
        """Nobody listens at its ports any more."""
        del self.apps[broker.process.url]
        self.peer_apps.pop(broker.process.peer_url, None)

    async def see(self) -> None:
        """Wait until every broker sees all brokers."""
        await until(lambda: all(len(inside.roster(one).brokers) == len(self.apps) for one in self.brokers))

    async def crash(self, broker: Broker) -> None:
        """End it as SIGKILL does, and its lease."""
        await self.vanish(broker)
        await self.coordination.leases.revoke(inside.membership(broker).lease)

    async def vanish(self, broker: Broker) -> None:
        """End it as SIGKILL does. Its lease lives on."""
        self.unlisten(broker)
        tasks = [*privates.end_tasks(broker), privates.renewal(inside.membership(broker))]
        for task in filter(None, tasks):
            task.cancel()
        await asyncio.gather(*filter(None, tasks), inside.flusher(broker).stop(), return_exceptions=True)
        if renewing := privates.lease_thread(inside.membership(broker)):
            await renewing.stop()
        broker.readiness.ready = False
        await inside.journal(broker).close()
        broker.process.journals.home.release()


def peer_url_of(url: str) -> str:
    """The URL of a broker's port for brokers."""
    return f"{url.replace('http', 'https')}-peers"


@asynccontextmanager
async def in_loop(
    folder: Path,
    count: int = 2,
    store: MemoryStore | None = None,
    peer_ports: bool = False,
    level: int | None = None,
    import_reader: StartReader = no_reader,
    machine: Machine | None = None,
    traces: Traces | None = None,
    **settings: Any,
) -> AsyncIterator[InLoop]:
    """`count` brokers that see one another; all are stopped at the end. `level`: that of their cluster, if it is not
    the highest one that they read."""
    together = InLoop(folder, store or MemoryStore(), settings, machine)
    together.import_reader, together.traces = import_reader, traces
    together.peer_ports = peer_ports
    if level is not None:
        record = ClusterRecord.new("c", level)
        await together.coordination.commit([], [Put(keys.CLUSTER.key(), keys.CLUSTER.encode(Versioned.new(record)))])
    async with AsyncExitStack() as stack:
        stack.push_async_callback(together.coordination.close)
        for _ in range(count):
            stack.push_async_callback((await together.begin()).stop)
        await together.see()
        yield together


async def until(condition: Any, message: str = "it did not come about") -> None:
    """Let the loop run until the condition holds."""
    for _ in range(STEPS):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError(message)

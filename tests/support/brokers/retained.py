"""A topic of which retention has taken the first files."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx

from seaweedq.broker.broker import Broker
from seaweedq.broker.retention.retention import Retention
from seaweedq.clock import SystemClock
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Coordination, Put
from seaweedq.coordination.records import StartRecord, TopicConfig
from seaweedq.coordination.versioned import Versioned
from seaweedq.segments.entry import EntryName, segment_folder
from seaweedq.storage.memory import MemoryStore
from tests.support.brokers import inside
from tests.support.brokers.in_process import publish
from tests.support.brokers.in_process_cluster import InLoop, until
from tests.support.brokers.machine import Machine


async def fill(broker: Broker, files: int = 3, rows: int = 2, name: str = "t") -> None:
    """Publishes to a topic, which has one segment: a file without rows, and so many files of two rows each."""
    topic = inside.topic(broker, name)
    for at in range(files):
        await publish(broker, topic, *(str(rows * at + n) for n in range(rows)))
        await inside.positions(broker).positions(topic, flush=True)


async def raise_start(coordination: Coordination, sequence: int, offset: int, segment: int = 0) -> None:
    """What the leader writes when retention takes what is before this entry of `t`."""
    value = keys.STARTS.encode(Versioned.new(StartRecord(sequence, offset, ((sequence, 0),))))
    await coordination.commit([], [Put(keys.STARTS.key("t", 0, segment), value)])


async def see_start(offset: int, *brokers: Broker) -> None:
    """Waits until these brokers know the start of segment 0."""
    await until(lambda: all(inside.catalog(b).start_offsets(inside.topic(b, "t")).get(0, 0) == offset for b in brokers))


async def delete_before(store: MemoryStore, sequence: int, segment: int = 0) -> dict[str, bytes]:
    """Deletes the files before this entry of `t`. Returns them."""
    folder = segment_folder("t", segment)
    doomed = [name for name in await store.list(folder) if EntryName.parse(name).sequence < sequence]
    found = {name: await store.read(name) for name in doomed}
    for name in doomed:
        await store.delete(name)
    return found


class ShiftedClock:
    """The machine's clock, wrong by `shift_s`."""

    def __init__(self) -> None:
        self.shift_s = 0.0
        self._right = SystemClock()

    def now_us(self) -> int:
        return self._right.now_us() + int(self.shift_s * 1e6)

    def monotonic_s(self) -> float:
        return self._right.monotonic_s()


class RetainedWorld:
    """A broker that leads, with the topic `t` of one segment, on a clock and a store with its own clock."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.clock, self.store_clock = ShiftedClock(), ShiftedClock()
        self.store = MemoryStore(clock=self.store_clock)
        self.together = InLoop(folder, self.store, settings, Machine(clock=self.clock))

    @property
    def broker(self) -> Broker:
        return self.together.brokers[-1]

    @property
    def retention(self) -> Retention:
        return inside.retention(self.broker)

    def http(self) -> httpx.AsyncClient:
        url = self.broker.process.url
        return httpx.AsyncClient(transport=httpx.ASGITransport(self.together.apps[url]), base_url=url, timeout=60)

    def pass_time(self, seconds: float) -> None:
        """Time goes on, for the broker and for the store."""
        self.clock.shift_s += seconds
        self.store_clock.shift_s += seconds

    async def policy(self, **policy: Any) -> dict[str, Any]:
        """Sets the retention of `t`. Returns it as it is shown."""
        async with self.http() as http:
            answer = await http.patch("/v1/topics/t", json={"retention": policy})
            assert answer.status_code == 200, answer.text
            found: dict[str, Any] = answer.json()["retention"]
            return found

    async def sequences(self, segment: int = 0) -> list[int]:
        """The files that are there, by sequence."""
        return [EntryName.parse(name).sequence for name in await self.store.list(segment_folder("t", segment))]

    @property
    def start(self) -> int:
        """The start offset of segment 0."""
        catalog = inside.catalog(self.broker)
        return catalog.start_offsets(catalog.topic("t")).get(0, 0)


@asynccontextmanager
async def retained(folder: Path, **settings: Any) -> AsyncIterator[RetainedWorld]:
    """A world with four files: one without rows, and three of two rows each."""
    world, round, own = RetainedWorld(folder, **settings), Retention.round, asyncio.Event()

    async def first(self: Retention) -> None:
        await round(self)
        own.set()

    async with AsyncExitStack() as stack:
        stack.push_async_callback(world.together.coordination.close)
        with patch.object(Retention, "round", first):
            stack.push_async_callback((await world.together.begin()).stop)
        async with asyncio.timeout(30):
            await own.wait()  # the leader's next round comes in a minute: none is beside those of the test
        await inside.topic_admin(world.broker).create("t", TopicConfig())
        await fill(world.broker)
        yield world

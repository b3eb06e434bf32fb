"""A whole broker within the test's own loop, over a store and a coordination in memory that can be held up or fail."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from seaweedq.broker.broker import Broker
from seaweedq.broker.imports.reader_process import StartReader, no_reader
from seaweedq.broker.subscriptions.acking import AckOutcome, Selection
from seaweedq.broker.subscriptions.dispatcher import Dispatcher
from seaweedq.broker.subscriptions.pull_rounds import DeliveredRows, Pull
from seaweedq.broker.topics.catalog import Topic
from seaweedq.clock import Clock, SystemClock
from seaweedq.coordination.interface import Change, Compare, Delete, Put
from seaweedq.coordination.memory import MemoryCoordination
from seaweedq.coordination.records import SubscriptionRecord, TopicConfig
from seaweedq.segments.rows import Single
from seaweedq.settings import Settings
from seaweedq.storage.memory import MemoryStore
from seaweedq.traces import Traces
from tests.support.brokers import inside
from tests.support.brokers.drawn_states import check_steps
from tests.support.brokers.environments import environment
from tests.support.brokers.invariants import check_invariants

LEASE_S = 60.0  # nobody loses it because the machine is busy; who is to lose it has it revoked
Commit = Callable[[Sequence[Compare], Sequence[Put | Delete]], Awaitable[int | None]]


class Held(MemoryCoordination):
    """Coordination whose commits a test can hold up: `before` and `after` are awaited around each.

    Its close raises AssertionError where a record went from one state to another in a way that
    docs/internals/states.md does not draw.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock or SystemClock())
        self.went_back = False  # a test has put back what was there before, which no diagram draws
        self.before: Callable[[Sequence[Put | Delete]], Awaitable[None]] = _at_once
        self.after: Callable[[Sequence[Put | Delete]], Awaitable[None]] = _at_once

    async def commit(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> int | None:
        await self.before(writes)
        revision = await super().commit(compares, writes)
        await self.after(writes)
        return revision

    @property
    def history(self) -> list[tuple[Change, ...]]:
        """All changes so far, the newest 10,000 revisions."""
        return list(self._engine._log)  # type: ignore[attr-defined]

    async def close(self) -> None:
        """As MemoryCoordination; what brokers have written, and what they leave, is checked."""
        history = self.history
        try:
            await check_invariants(self)
        finally:
            await super().close()
        if not self.went_back:
            check_steps(history)


async def _at_once(writes: Sequence[Put | Delete]) -> None:
    pass


class Gate:
    """Stops whoever comes to it once it is shut; `reached` says that somebody stands there."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.open = asyncio.Event()

    async def __call__(self, *_: Any) -> None:
        self.reached.set()
        await self.open.wait()


@asynccontextmanager
async def running(
    folder: Path,
    store: MemoryStore | None = None,
    traces: Traces | None = None,
    import_reader: StartReader = no_reader,
    **settings: Any,
) -> AsyncIterator[Broker]:
    """A broker that has started, on `folder`; stopped at the end."""
    async with starting(folder, store, **settings) as broker:
        broker.process = replace(broker.process, traces=traces, import_reader=import_reader)
        await broker.start()
        yield broker


@asynccontextmanager
async def starting(folder: Path, store: MemoryStore | None = None, **settings: Any) -> AsyncIterator[Broker]:
    """A broker that has its folder, and is stopped at the end. Its coordination is a `Held`."""
    coordination = Held()
    given = Settings(data_dir=folder, **{"lease_s": LEASE_S, **settings})
    broker = Broker(environment(given, store or MemoryStore(), coordination, secret=given.cluster_secret))
    broker.lock()
    try:
        yield broker
    finally:
        await broker.stop()
        await coordination.close()


def held(broker: Broker) -> Held:
    """The broker's coordination."""
    found = broker.process.coordination
    assert isinstance(found, Held)
    return found


async def make_topic(broker: Broker, name: str = "t", segments: int = 1) -> Topic:
    """A topic that is there and open."""
    await inside.topic_admin(broker).create(name, TopicConfig(initial_segments=segments))
    topic = inside.topic(broker, name)
    await inside.ownership(broker).mine(topic)
    return topic


async def publish(broker: Broker, topic: Topic, *texts: str) -> None:
    """Publish JSON texts one after another."""
    for text in texts:
        await inside.publisher(broker).single(topic, single(text), None)


def single(text: str, key: str | None = None) -> Single:
    """A message."""
    return Single(key, text.encode(), None, 1, None)


async def subscribe(
    broker: Broker, topic: Topic, start: str = "earliest", ack_deadline_s: float = 30, name: str = "s"
) -> bool:
    """Create a subscription."""
    now_us = broker.process.clock.now_us()
    record = SubscriptionRecord("ordered", start, ack_deadline_s, 0, None, now_us, epoch=now_us)
    return await inside.subscription_admin(broker).create(topic, name, record)


async def pull(
    dispatcher: Dispatcher, topic: Topic, name: str, consumer: str | None, count: int, wait_s: float
) -> Sequence[DeliveredRows]:
    """The messages of a pull, under a lease that the dispatcher names."""
    return [*(await dispatcher.pull(topic, name, Pull(count, wait_s, consumer))).messages]


async def ack(
    dispatcher: Dispatcher, topic: Topic, name: str, ids: Mapping[int, Sequence[int]], consumer: str | None
) -> AckOutcome:
    """An ack by ids."""
    return await dispatcher.ack(topic, name, Selection(ids, None, consumer))


def offsets(found: Sequence[Any]) -> list[int]:
    """The offsets that a pull gave, of all segments."""
    return [offset for one in found for offset in one.offsets.tolist()]

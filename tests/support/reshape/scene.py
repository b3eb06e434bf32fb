"""A topic of one cluster in the test's own loop, with producers that go on all the time and a judgement at the end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from seaweedq.broker.broker import Broker
from seaweedq.broker.topics.catalog import Topic
from seaweedq.coordination.records import SegmentRecord
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import until
from tests.support.reshape.upheaval import Upheaval


class Scene(Upheaval):
    """What a test looks at while producers publish."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.stopped = False
        self.going: list[asyncio.Task[None]] = []

    async def go(self) -> None:
        """All producers publish, each as soon as it was answered; now and then they repeat."""
        self.going = [asyncio.create_task(self._publish(n)) for n in range(len(self.producers))]
        await self.more(20)

    async def more(self, count: int) -> None:
        """Until so many more messages are acknowledged."""
        goal = len(self.ledger.ids) + count
        await until(lambda: len(self.ledger.ids) >= goal, "publishes do not go on")

    async def over(self) -> None:
        """Producers come to their ends, all is healed, and judged."""
        self.stopped = True
        await asyncio.gather(*self.going)
        await self.heal()
        await self.judge()

    async def end(self) -> None:
        for task in self.going:
            task.cancel()
        await super().end()

    async def _publish(self, number: int) -> None:
        producer = self.producers[number]
        while not self.stopped:
            if self.rng.random() < 0.2:
                self.repeat(producer, self.rng.randint(1, 3))
            else:
                self.publish(producer, self.rng.choice([1, 1, 3, 8]), self.rng.random() < 0.7)
            if producer.flight:
                await asyncio.wait([producer.flight])
            await asyncio.sleep(0.002)

    async def owner(self, segment: int = 0) -> Broker:
        """Who owns a segment, and knows it."""
        for _ in range(400):
            for broker in self.cluster.living:
                topic = self.topic(broker)
                known = inside.catalog(broker).records(topic).get(segment) if topic else None
                if known and known.record.owner == broker.id:
                    return broker
            await asyncio.sleep(0.01)
        raise AssertionError(f"nobody owns {segment}")

    async def gathered(self, count: int) -> Broker:
        """Have all segments moved to the owner of the first one, where they stay: no leader of now evens out."""
        for broker in self.cluster.living:
            inside.leader(broker)._rebalancer.rebalance = _leave  # type: ignore[method-assign]
        for _ in range(200):
            await self.gather(range(count))  # which an evening out that was under way may undo
            owner = await self.owner(0)
            records = inside.catalog(owner).segments(self.known(owner)).values()
            if {record.owner for record in records} == {owner.id}:
                return owner
        raise AssertionError("segments do not stay at one broker")

    def known(self, broker: Broker) -> Topic:
        """The topic at a broker."""
        return inside.topic(broker, "t")

    async def until_sealed(self, *segments: int) -> dict[int, SegmentRecord]:
        """Until these have given way: all records."""
        for _ in range(1000):
            records = await self.records()
            if all(n in records and records[n].state == "sealed" for n in segments):
                return records
            await asyncio.sleep(0.01)
        raise AssertionError(f"{segments} are not replaced: {await self.records()}")


async def _leave() -> None:
    pass


@asynccontextmanager
async def scene(folder: Path, segments: int = 1, **more: Any) -> AsyncIterator[Scene]:
    """A scene that has begun."""
    made = Scene(folder, 1, **more)
    try:
        await made.begin(segments)
        yield made
    finally:
        await made.end()

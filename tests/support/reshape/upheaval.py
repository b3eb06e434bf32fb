"""A cluster in the test's own loop whose segments change while producers go on; steps for whoever chooses them."""

import asyncio
import random
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from seaweedq.broker.broker import Broker
from seaweedq.broker.topics.catalog import Topic
from seaweedq.coordination import keys
from seaweedq.coordination.records import SegmentRecord, TopicConfig
from seaweedq.errors import CoordinationUnavailable, DataFolderInUse, SeaweedqError
from seaweedq.storage.memory import MemoryStore
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import until
from tests.support.brokers.stored import record_of
from tests.support.reshape.judging import chains_are_sound, fetched, judged, records_are_sound
from tests.support.reshape.lives import Lives, lives
from tests.support.reshape.producing import Ledger, Producer

PLACES = (
    *("plan.write", "reshape.flushed", "reshape.commit", "reshape.committed", "reshape.held", "reshape.sealed"),
    *("reshape.replaced", "entry.append", "entry.appended", "flush.release", "commit.append", "commit.durable"),
    *("move.flushed", "move.given", "leader.give", "recover.append", "takeover.recovered"),
)
SETTLE_S = 30.0


class Upheaval:
    """The cluster, its topic `t`, its producers. `seed` decides what steps leave open."""

    def __init__(
        self, folder: Path, seed: int, count: int = 3, store: MemoryStore | None = None, **settings: Any
    ) -> None:
        self.rng = random.Random(seed)
        self.ledger = Ledger()
        self.producers = [
            Producer(name, self.ledger, label)
            for name, label in [("sure-0", "s0"), ("sure-1", "s1"), ("sure-2", "s2"), (None, "p0"), (None, "p1")]
        ]
        self.log: list[str] = []
        self.work: set[asyncio.Task[Any]] = set()
        self._stack = AsyncExitStack()
        self._made = lives(folder, count, store, **{"publish_timeout_s": 2, **settings})
        self.cluster: Lives

    async def begin(self, segments: int) -> None:
        """Up to a topic of so many segments that every broker knows."""
        self.cluster = await self._stack.enter_async_context(self._made)
        await inside.topic_admin(self.cluster.brokers[0]).create("t", TopicConfig(initial_segments=segments))
        for broker in self.cluster.brokers:
            await inside.catalog(broker).require("t")

    async def end(self) -> None:
        """Whatever has happened."""
        for task in [*self.work, *(p.flight for p in self.producers if p.flight)]:
            task.cancel()
        await self._stack.aclose()

    async def records(self) -> dict[int, SegmentRecord]:
        """As coordination has them: the truth."""
        page = await self.cluster.coordination.range("segments/t/", limit=10_000)
        return {keys.SEGMENTS.parse(e.key)[2]: record_of(keys.SEGMENTS, e.value) for e in page.entries}

    async def open(self) -> list[int]:
        """The open segments, by their ranges."""
        records = await self.records()
        return sorted((n for n, r in records.items() if r.state == "open"), key=lambda n: records[n].low)

    def any_broker(self) -> Broker | None:
        """One that lives."""
        living = self.cluster.living
        return self.rng.choice(living) if living else None

    def topic(self, broker: Broker) -> Topic | None:
        """As this broker knows it."""
        return inside.catalog(broker).get("t")

    def publish(self, producer: Producer, size: int, keyed: bool) -> None:
        """Send the next request, at any broker."""
        if producer.free and (broker := self.any_broker()):
            messages = producer.draw(size, self.rng, keyed)
            self.log.append(f"{producer.label} sends {size} at {broker.process.url}")
            producer.send(self.cluster, broker, messages)

    def repeat(self, producer: Producer, back: int) -> None:
        """Send one of the last four that were answered again, at any broker."""
        back = min(back, len(producer.answered))
        if producer.name and producer.free and producer.waiting is None and back and (broker := self.any_broker()):
            self.log.append(f"{producer.label} repeats {back} back at {broker.process.url}")
            producer.repeat(self.cluster, broker, back)

    def plan(self, segments: Sequence[int], points: Sequence[int]) -> None:
        """Have segments replaced, whoever owns them."""
        if broker := self.any_broker():
            self.log.append(f"{broker.process.url} plans {segments} at {points}")
            self.do(broker, self.replace(broker, segments, points))

    async def replace(self, broker: Broker, segments: Sequence[int], points: Sequence[int]) -> None:
        if topic := self.topic(broker):
            await inside.planner(broker).plan(topic, segments, points)

    async def gather(self, segments: Sequence[int]) -> None:
        """Have segments moved to the owner of the first, as far as that works out soon."""
        records = await self.records()
        for broker in self.cluster.living:
            if broker.id == records[segments[0]].owner:
                for segment in segments[1:]:
                    self.move(segment, broker)
        await asyncio.sleep(0.05)

    def move(self, segment: int, target: Broker) -> None:
        """Have a segment moved."""
        self.log.append(f"{segment} moves to {target.process.url}")
        for broker in self.cluster.living:
            topic = self.topic(broker)
            known = inside.catalog(broker).records(topic).get(segment) if topic else None
            if topic and known and known.record.owner == broker.id:
                self.do(broker, inside.mover(broker).move(topic, segment, target.id))

    def flush(self) -> None:
        """Have some tails flushed."""
        for broker in self.cluster.living:
            for segment in list(inside.dirty_segments(broker)):
                if not segment.closed:
                    self.do(broker, inside.flusher(broker).flush(segment))

    def do(self, broker: Broker, work: Any) -> None:
        async def run() -> None:
            with suppress(SeaweedqError):
                await work

        task = self.cluster.lives[broker].start(run())
        self.work.add(task)
        task.add_done_callback(self.work.discard)

    async def crash(self, broker: Broker) -> None:
        """It dies."""
        self.log.append(f"{broker.process.url} is killed")
        await self.cluster.crash(broker)

    async def revive(self) -> None:
        """All who are dead, or zombies, begin again. Coordination answers meanwhile: without it nobody would."""
        self.cluster.coordination.before = self.cluster.coordination.after = _nothing
        for broker in await self._bury():
            self.log.append(f"{broker.process.url} begins again")
            for _ in range(100):
                with suppress(DataFolderInUse):  # another one works its journal in
                    await self.cluster.begin_again(broker)
                    break
                await asyncio.sleep(0.05)
                await self._end_the_dead()
            else:
                raise AssertionError(f"the folder of {broker.process.url} stays in use")

    async def _bury(self) -> list[Broker]:
        """End all who do not live well: who they were."""
        ended = [b for b, life in self.cluster.lives.items() if life.over or life.orphaned or b.lost.is_set()]
        for broker in ended:
            if broker.process.url in self.cluster.apps:
                await self.cluster.crash(broker)
            del self.cluster.lives[broker]
            self.cluster.brokers.remove(broker)
        return ended

    async def _end_the_dead(self) -> None:
        """Those who have died at a place meanwhile: their locks go."""
        for broker, life in self.cluster.lives.items():
            if life.over and broker.process.url in self.cluster.apps:
                await self.cluster.crash(broker)

    def lose_an_answer(self, happens: bool) -> None:
        """The next transaction about segments: its answer is lost, or it does not come to pass."""

        async def lost(writes: Any) -> None:
            if any(write.key.startswith("segments/t/") for write in writes):
                self.cluster.coordination.before = self.cluster.coordination.after = _nothing
                self.log.append(f"the answer about {[w.key[-3:] for w in writes]} is lost, it {happens=}")
                raise CoordinationUnavailable("lost")

        if happens:
            self.cluster.coordination.after = lost
        else:
            self.cluster.coordination.before = lost

    async def heal(self) -> None:
        """No more faults; what is under way comes to its end, and what was not answered is asked again until it is."""
        self.cluster.spare()
        self.cluster.coordination.before = self.cluster.coordination.after = _nothing
        await asyncio.gather(*(p.flight for p in self.producers if p.flight), return_exceptions=True)
        await self.revive()
        await self.revive()  # who has died while others began
        await self.cluster.see()
        end_s = asyncio.get_running_loop().time() + SETTLE_S
        for producer in self.producers:
            while producer.waiting is not None:
                assert asyncio.get_running_loop().time() < end_s, f"{producer.label} is not answered any more"
                producer.send(self.cluster, self.cluster.living[0], [])
                assert producer.flight
                await producer.flight
                await asyncio.sleep(0.05)

    async def settle(self) -> None:
        """Every change that was begun has ended, or was undone."""
        for _ in range(int(SETTLE_S / 0.05)):
            records = await self.records()
            alive = {broker.id for broker in self.cluster.living}
            if all(r.state == "sealed" or (r.intent is None and r.owner in alive) for r in records.values()):
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"changes do not come to an end: {await self.records()}")

    async def judge(self) -> None:
        """Everything, after `heal`: over HTTP at all brokers, and in the chains once all are stopped."""
        await self.settle()
        records = await self.records()
        records_are_sound(records)
        for broker in self.cluster.living:
            await until(lambda b=broker: len(inside.catalog(b).records(self.topic(b))) == len(records))
        reads = [await fetched(self.cluster, broker, sorted(records)) for broker in self.cluster.living]
        assert len(reads) == len(self.cluster.brokers)
        assert all(read == reads[0] for read in reads), "brokers read different things"
        await asyncio.gather(*(broker.stop() for broker in self.cluster.living))
        rows = chains_are_sound(self.cluster.store, records)
        assert rows == reads[0], "the files are not what brokers read"
        wrong = judged(self.ledger, rows, records)
        assert not wrong, "\n".join(wrong)


async def _nothing(writes: Any) -> None:
    pass


def points_within(low: int, high: int, rng: random.Random, count: int) -> list[int]:
    """Where a range may be cut."""
    return sorted({rng.randrange(low + 1, high) for _ in range(count)}) if high - low > count else []

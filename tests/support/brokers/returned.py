"""Three brokers whose coordination goes back, to a copy or to nothing, and is rebuilt; what they had acknowledged."""

from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from seaweedq.broker.broker import Broker
from seaweedq.clock import Clock
from seaweedq.coordination import keys
from seaweedq.coordination.backup import State
from seaweedq.coordination.interface import Delete, Put, read_all
from seaweedq.coordination.memory import MemoryCoordination
from seaweedq.coordination.records import Counter
from seaweedq.coordination.versioned import Versioned
from tests.support.brokers.in_process import Held
from tests.support.brokers.in_process_cluster import InLoop, in_loop
from tests.support.brokers.invariants import check_invariants
from tests.support.brokers.reshaped import at

TOPIC = "/v1/topics/t"


class CopiedCoordination(Held):
    """A coordination that is empty, or a copy of another one (`copied`)."""

    async def close(self) -> None:
        """As Held, but for the steps: a rebuild brings records back in whatever state they are."""
        try:
            await check_invariants(self)
        finally:
            await MemoryCoordination.close(self)


async def copied(of: Held, clock: Clock) -> CopiedCoordination:
    """A coordination as another one is now, at the same revision. Leases have ended meanwhile."""
    copy = CopiedCoordination(clock)
    entries, revision = await read_all(of, "")
    written: dict[int, list[Put | Delete]] = {}
    for entry in entries:
        if not entry.lease:
            written.setdefault(entry.revision, []).append(Put(entry.key, entry.value))
    passed = [number for number in range(1, revision + 1) if number not in written]
    padding: dict[int, list[Put | Delete]] = {number: [Put("passed", b"")] for number in passed[:-1]}
    padding |= {number: [Delete("passed")] for number in passed[-1:]}
    for number in range(1, revision + 1):
        assert await copy.commit([], written.get(number) or padding[number]) == number
    return copy


class ReturnedWorld:
    """What is common to the tests: `acked` are the messages that were acknowledged, in their order, by key."""

    def __init__(self, together: InLoop) -> None:
        self.together = together
        self.acked: dict[str, list[int]] = defaultdict(list)
        self._numbers = 0
        self._lives: list[Broker] = []
        self._first = together.coordination

    async def publish(self, broker: Broker, count: int = 20, keys: int = 7, topic: str = TOPIC) -> None:
        """Publishes through a broker, some keys in turns."""
        async with at(self.together, broker) as http:
            for _ in range(count):
                key, number = f"k{self._numbers % keys}", self._numbers
                self._numbers += 1
                answer = await http.post(f"{topic}/messages", json={"messages": [{"key": key, "value": number}]})
                assert answer.status_code in (200, 201), answer.text
                self.acked[key].append(number)

    async def snapshot(self) -> None:
        """What the leader does now and then."""
        coordination, backups = self.together.coordination, self.together.brokers[0].context.backups
        there = await coordination.get(keys.SNAPSHOTS.key())
        number = (keys.SNAPSHOTS.require(there).record.next if there else 0) + 1
        value = keys.SNAPSHOTS.encode(Versioned.new(Counter(number)))
        await coordination.commit([], [Put(keys.SNAPSHOTS.key(), value)])
        read, revision = await read_all(coordination, "")
        content = {entry.key: entry.value for entry in read if not entry.lease}
        generation = self.together.brokers[0].generations.mine.number
        await backups.put_snapshot(State(generation, number, revision, content))

    async def copy(self) -> CopiedCoordination:
        """A copy of the coordination as it is now."""
        return await copied(self.together.coordination, self.together.machine.clock)

    async def crash_all(self) -> list[Broker]:
        """Ends all brokers as SIGKILL does. Returns them."""
        dead = list(self.together.brokers)
        for broker in dead:
            if broker.process.url in self.together.apps:
                await self.together.vanish(broker)
        return dead

    async def bring_back(
        self, coordination: Held, dead: Sequence[Broker], in_their_processes: bool = False
    ) -> list[Broker]:
        """Has the brokers begin again over another coordination. Returns their lives, which wait or serve."""
        self.together.coordination = coordination
        return [await self._begin_again(broker, in_their_processes) for broker in dead]

    async def _begin_again(self, broker: Broker, in_its_process: bool) -> Broker:
        found = await self.together.begin_again(broker, in_its_process)
        self._lives.append(found)
        return found

    async def end(self) -> None:
        """Stops the brokers that have begun again."""
        for broker in self._lives:
            if broker.process.url in self.together.apps:
                self.together.unlisten(broker)
            await broker.stop()
        if self.together.coordination is not self._first:
            await self.together.coordination.close()

    async def rebuild(self, broker: Broker, **wish: Any) -> dict[str, Any]:
        """Asks a broker that waits for a rebuild."""
        async with at(self.together, broker) as http:
            answer = await http.post("/v1/cluster/rebuild", json=wish)
            assert answer.status_code == 200, answer.text
            found: dict[str, Any] = answer.json()
            return found

    async def go_on(self, waiting: Sequence[Broker]) -> list[Broker]:
        """The waiting lives end, and the next ones join."""
        return [await self.next_life(broker) for broker in waiting]  # one by one, as a leader may lock their folders

    async def next_life(self, broker: Broker) -> Broker:
        """The life behind one that has ended."""
        await broker.lost.wait()
        self.together.unlisten(broker)
        await broker.stop()
        self._lives.remove(broker)
        return await self._begin_again(broker, in_its_process=True)

    async def delivered(self, broker: Broker, subscription: str = "s", topic: str = TOPIC) -> dict[str, list[int]]:
        """All messages that a new subscription gets, in their order, by key."""
        found: dict[str, list[int]] = defaultdict(list)
        async with at(self.together, broker) as http:
            place = f"{topic}/subscriptions/{subscription}"
            answer = await http.put(place, json={"start": "earliest", "mode": "ordered"})
            assert answer.status_code in (200, 201), answer.text
            return await drained(http, place, found)


@asynccontextmanager
async def returned(folder: Path, count: int = 3, **settings: Any) -> AsyncIterator[ReturnedWorld]:
    """A world of some brokers; all are stopped at the end."""
    async with in_loop(folder, count, **settings) as together:
        world = ReturnedWorld(together)
        try:
            yield world
        finally:
            await world.end()


async def drained(http: httpx.AsyncClient, place: str, found: dict[str, list[int]]) -> dict[str, list[int]]:
    """Pulls and acks until nothing comes."""
    while True:
        answer = await http.post(f"{place}/pull", json={"max_messages": 100, "wait_s": 0.3})
        assert answer.status_code == 200, answer.text
        messages = answer.json()["messages"]
        if not messages:
            return found
        for one in messages:
            found[one["key"]].append(one["value"])
        acked = await http.post(f"{place}/ack", json={"ids": [one["id"] for one in messages]})
        assert acked.status_code == 200, acked.text

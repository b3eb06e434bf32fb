"""Two brokers and what they have, and what is asked of them once a record cannot be read."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from seaweedq.broker.broker import Broker
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Delete, Put
from seaweedq.coordination.records import (
    JournalRecord,
    TopicConfig,
)
from seaweedq.coordination.versioned import Versioned
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import InLoop, in_loop, until
from tests.support.brokers.reshaped import at

T = "/v1/topics/t"


class World:
    """Two brokers, the topic `t` with a segment at each, messages, a subscription and an upload; and the topic `other`,
    which must go on."""

    def __init__(self, together: InLoop) -> None:
        self.together = together
        self.coordination = together.coordination
        self.upload = ""
        self.restarted = False

    @property
    def living(self) -> list[Broker]:
        return [one for one in self.together.brokers if one.process.url in self.together.apps]

    def http(self, number: int = 0) -> httpx.AsyncClient:
        return at(self.together, self.living[number])

    async def begin(self) -> None:
        one = self.living[0]
        for name in ("t", "other"):
            await inside.topic_admin(one).create(name, TopicConfig(initial_segments=2))
        async with self.http() as http:
            for name in ("t", "other"):
                await self.publish(http, name)
                await self.ask(http, "PUT", f"/v1/topics/{name}/subscriptions/s", 201, {"start": "earliest"})
            begun = await self.ask(http, "POST", f"{T}/uploads", 201, {"size": 3, "content_type": "a/b"})
            self.upload = begun["upload_id"]

    async def ask(self, http: httpx.AsyncClient, method: str, path: str, status: int, body: Any = None) -> Any:
        answer = await http.request(method, path, **({} if body is None else {"json": body}))
        assert answer.status_code == status, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content and "json" in answer.headers.get("content-type", "") else answer.text

    async def publish(self, http: httpx.AsyncClient, name: str, status: int = 200, keys: int = 20) -> None:
        body = {"messages": [{"key": f"k{n}", "value": n} for n in range(keys)]}
        await self.ask(http, "POST", f"/v1/topics/{name}/messages", status, body)

    async def pull(self, http: httpx.AsyncClient, name: str, status: int = 200, ahead: bool = False) -> list[Any]:
        body = {"max_messages": 1000, "consumer": "c", "wait_s": 0, "ahead": ahead}
        found = await self.ask(http, "POST", f"/v1/topics/{name}/subscriptions/s/pull", status, body)
        return found["messages"] if status == 200 else []

    async def others_work(self) -> None:
        """All brokers live, and serve the other topic."""
        for number, broker in enumerate(self.living):
            assert not broker.lost.is_set()
            names = {task.get_name() for task in privates.tasks(broker)}
            assert {"roster", "catalog", "leader", "election", "reshaping"} <= names
            async with self.http(number) as http:
                await self.publish(http, "other")
                found = await self.pull(http, "other")
                await self.ask(
                    http, "POST", "/v1/topics/other/subscriptions/s/ack", 200, {"ids": [one["id"] for one in found]}
                )
                assert (await self.ask(http, "GET", "/v1/topics/other", 200))["messages"] > 0
        for broker in self.living:
            if inside.election(broker).is_leader:
                await inside.leader(broker).round()
            await inside.dispatcher(broker).checkpoint()

    async def refuses(self, method: str, path: str, body: Any = None, **fields: Any) -> None:
        """Each broker answers 503, and says what is needed."""
        for number in range(len(self.living)):
            async with self.http(number) as http:
                answer = await http.request(method, path, **({} if body is None else {"json": body}))
                assert answer.status_code == 503, f"{method} {path}: {answer.status_code} {answer.text}"
                found = answer.json()
                assert found["type"] == "/problems/needs-newer-broker", found
                assert {name: found.get(name) for name in fields} == fields
                assert answer.headers["retry-after"]

    async def restart(self, broker: Broker) -> None:
        """Stops a broker in order, and starts it again."""
        self.restarted = True
        await broker.drain()
        await broker.stop()
        del self.together.apps[broker.process.url]
        self.together.brokers.remove(broker)
        await self.together.begin_again(broker)
        ids = {one.id for one in self.living}
        await until(lambda: all(inside.roster(one).brokers.keys() >= ids for one in self.living))


Step = Callable[[World], Awaitable[None]]


async def nothing(world: World) -> None:
    pass


@dataclass
class Case:
    """A kind's record: its key in the world, what is refused while it cannot be read, and what works again. `record` is
    what a newer broker writes where there is none before. `prepare` makes what this case alone needs."""

    key: Callable[[World], str]
    broken: Step
    whole: Step
    record: Any = None
    noticed: bool = True
    prepare: Step = nothing

    async def remove(self, world: World) -> None:
        """Ends what was there for the test alone, in the steps that are drawn."""
        key = self.key(world)
        if isinstance(self.record, JournalRecord):
            done = keys.JOURNALS.encode(Versioned.new(self.record).replace(recovered=True))
            await world.coordination.commit([], [Put(key, done)])
        await world.coordination.commit([], [Delete(key)])


@asynccontextmanager
async def worlds(folder: Path) -> AsyncIterator[World]:
    async with in_loop(folder, publish_timeout_s=10) as together:
        world = World(together)
        await world.begin()
        try:
            yield world
        finally:
            for one in world.living:
                await one.stop()


async def pulled_until_refused(world: World, http: httpx.AsyncClient) -> list[Any]:
    """What other segments had; then the pull is refused, since the hidden one may have more."""
    found: list[Any] = []
    while True:
        body = {"max_messages": 1000, "consumer": "c", "wait_s": 0, "ahead": bool(found)}
        answer = await http.post(f"{T}/subscriptions/s/pull", json=body)
        if answer.status_code == 503:
            assert answer.json()["type"] == "/problems/needs-newer-broker"
            return found
        assert answer.json()["messages"], "an empty answer says that there is nothing"
        found += answer.json()["messages"]

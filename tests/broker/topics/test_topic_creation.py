"""A topic's creation beside other creations, beside deletions of the same name, and what it asks of the store."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from seaweedq.api.app import Application
from seaweedq.broker.broker import Broker
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Delete, Put
from seaweedq.storage.interface import Data
from seaweedq.storage.memory import MemoryStore
from tests.support.brokers import inside
from tests.support.brokers.in_process import Gate, running
from tests.support.brokers.in_process_cluster import in_loop, until
from tests.support.brokers.stored import record_of

T = keys.TOPICS.key("t")


class SlowStore(MemoryStore):
    """Takes the files of topic `slow` once `gate` is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()

    async def create(self, name: str, data: Data) -> bool:
        if name.startswith("topics/slow/"):
            await self.gate()
        return await super().create(name, data)


@asynccontextmanager
async def asking(broker: Broker) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(Application(broker)), base_url="http://localhost"
    ) as http:
        yield http


async def test_a_creation_that_waits_holds_up_no_other_one(tmp_path: Path) -> None:
    store = SlowStore()
    async with running(tmp_path, store) as broker, asking(broker) as http:
        slow = [asyncio.create_task(http.put("/v1/topics/slow")) for _ in range(2)]
        await store.gate.reached.wait()
        async with asyncio.timeout(5):
            assert (await http.put("/v1/topics/quick")).status_code == 201
        store.gate.open.set()
        assert sorted(answer.status_code for answer in await asyncio.gather(*slow)) == [200, 201]
        counter = await broker.process.coordination.get(keys.COUNTERS.key("slow"))
        assert counter
        assert record_of(keys.COUNTERS, counter.value).next == 1, "the second one waited for the first"
        assert not inside.topic_admin(broker)._creating


async def test_a_creation_opens_no_segment(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, asking(broker) as http:
        before = broker.process.store.requests.copy()
        answer = await http.put("/v1/topics/t", json={"initial_segments": 200})
        assert (answer.status_code, answer.json()["segments"], answer.json()["messages"]) == (201, 200, 0)
        assert broker.process.store.requests - before == {"create": 1}
        shown = (await http.get("/v1/topics/t")).json()
        assert shown == answer.json()
        lists = (broker.process.store.requests - before)["list"]
        assert lists == 201, "one for each, none for their sizes, and one look whether coordination was restored"


@pytest.mark.brokers
async def test_a_put_whose_topic_is_deleted_meanwhile_creates_it(tmp_path: Path) -> None:
    """Another broker's creation was faster, and its topic is deleted before the slower one has looked."""
    async with in_loop(tmp_path) as together:
        loser, winner = together.brokers
        lost, cleaned = Gate(), Gate()
        async with asking(loser) as slow, asking(winner) as quick:
            putting = asyncio.create_task(slow.put("/v1/topics/t"))

            async def hold(writes: Sequence[Put | Delete]) -> None:
                if asyncio.current_task() is putting and not cleaned.open.is_set():
                    if any(write.key == T for write in writes):
                        await lost()
                    elif any(isinstance(w, Delete) and w.key.startswith("segments/") for w in writes):
                        await cleaned()

            together.coordination.before = hold
            await lost.reached.wait()
            assert (await quick.put("/v1/topics/t")).status_code == 201
            lost.open.set()
            await cleaned.reached.wait()
            assert (await quick.delete("/v1/topics/t")).status_code == 204
            await until(lambda: inside.catalog(loser).find("t") is None)
            cleaned.open.set()
            answer = await putting
            assert (answer.status_code, answer.json()["name"]) == (201, "t")
            assert (await quick.get("/v1/topics/t")).status_code == 200


async def test_a_publish_whose_topic_is_not_made_in_time_leaves_no_creation(tmp_path: Path) -> None:
    store = SlowStore()
    settings = {"publish_timeout_s": 0.3, "auto_create_topics": True}
    async with running(tmp_path, store, **settings) as broker, asking(broker) as http:
        async with asyncio.timeout(10):
            answer = await http.post("/v1/topics/slow/messages", json={"value": 1})
        assert answer.status_code == 503
        left = await broker.process.coordination.range(keys.CREATIONS.prefix())
        assert not left.entries, (
            "it would count against max_topics, and hold up sweeps, for as long as the broker lives"
        )

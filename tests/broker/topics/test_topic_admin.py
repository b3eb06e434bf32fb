"""A topic's creation and deletion beside others of the same name: nothing hangs, nothing comes back. The sweep leaves
the files of successors that a plan has promised.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from seaweedq.api.app import Application
from seaweedq.broker.broker import Broker
from seaweedq.broker.log import reader as read
from seaweedq.broker.topics import topic_admin as topics
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Delete, Put
from seaweedq.coordination.records import Intent, SegmentRecord, Successor, TopicConfig
from seaweedq.errors import StoreUnavailable, TopicBeingDeleted
from seaweedq.segments.keyrange import KEY_SPACE
from seaweedq.storage.interface import Data
from seaweedq.storage.memory import MemoryStore
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.held_lookups import HeldStore
from tests.support.brokers.in_process import Gate, make_topic, publish, pull, running, subscribe
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
        async with asyncio.timeout(15):
            assert (await http.put("/v1/topics/quick")).status_code == 201
        store.gate.open.set()
        assert sorted(answer.status_code for answer in await asyncio.gather(*slow)) == [200, 201]
        counter = await broker.process.coordination.get(keys.COUNTERS.key("slow"))
        assert counter
        assert record_of(keys.COUNTERS, counter.value).next == 1, "the second one waited for the first"
        assert not inside.topic_admin(broker)._creating


async def test_a_creation_opens_no_segment(tmp_path: Path) -> None:
    listed: list[str] = []

    def take(moment: str, name: str) -> None:
        if moment == "before list" and not name.startswith("_journals/"):  # which the leader sweeps
            listed.append(name.split("/")[0])

    store = MemoryStore()
    async with running(tmp_path, store) as broker, asking(broker) as http:
        await until(lambda: broker.leadership.snapshots.made)  # which takes requests
        before, store.faults = broker.process.store.requests.copy(), take
        answer = await http.put("/v1/topics/t", json={"initial_segments": 200})
        assert (answer.status_code, answer.json()["segments"], answer.json()["messages"]) == (201, 200, 0)
        assert (broker.process.store.requests - before)["create"] == 2, "its first entry, and the change"
        assert listed == ["_generations"], "no other one has begun behind the change"
        shown = (await http.get("/v1/topics/t")).json()
        assert shown == answer.json()
        assert Counter(listed) == {"_generations": 1, "topics": 200}, "one for each, none for their sizes"


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
            await until(lambda: inside.catalog(loser).get("t") is None)
            cleaned.open.set()
            answer = await putting
            assert (answer.status_code, answer.json()["name"]) == (201, "t")
            assert (await quick.get("/v1/topics/t")).status_code == 200


async def test_a_publish_whose_topic_is_not_made_in_time_leaves_no_creation(tmp_path: Path) -> None:
    store = SlowStore()
    settings = {"publish_timeout_s": 0.3, "auto_create_topics": True}
    async with running(tmp_path, store, **settings) as broker, asking(broker) as http:
        async with asyncio.timeout(30):
            answer = await http.post("/v1/topics/slow/messages", json={"value": 1})
        assert answer.status_code == 503
        left = await broker.process.coordination.range(keys.CREATIONS.prefix())
        assert not left.entries, (
            "it would count against max_topics, and hold up sweeps, for as long as the broker lives"
        )


async def test_a_segment_opened_during_a_deletion_takes_nothing(tmp_path: Path) -> None:
    store = HeldStore()
    async with running(tmp_path, store) as broker:
        await inside.topic_admin(broker).create("t", TopicConfig())
        topic = inside.topic(broker, "t")
        store.gate = gate = Gate()
        opening = asyncio.create_task(inside.ownership(broker).mine(topic))
        await gate.reached.wait()
        store.gate = None
        await inside.deletion(broker).delete(topic)
        gate.open.set()
        with pytest.raises(TopicBeingDeleted):
            await opening
        assert not topic.opened


async def test_a_second_deletion_spares_the_next_topic_of_that_name(tmp_path: Path) -> None:
    store = HeldStore()
    async with running(tmp_path, store) as broker:
        topic = await make_topic(broker)
        late = asyncio.create_task(inside.deletion(broker).delete(topic))
        store.gate, store.who = Gate(), late
        await inside.deletion(broker).delete(topic)
        after = await make_topic(broker)
        await publish(broker, after, "1")
        await inside.positions(broker).positions(after, flush=True)
        files = [name for name in store.objects if name.startswith("topics/t/")]
        store.gate.open.set()
        await late
        assert [name for name in store.objects if name.startswith("topics/t/")] == files
        assert inside.topic(broker, "t") is after


async def test_a_deletion_that_failed_half_way_can_be_asked_for_again(tmp_path: Path) -> None:
    def refuse(moment: str, name: str) -> None:
        if moment == "before delete" and name.startswith("topics/"):
            raise StoreUnavailable("not now")

    store = MemoryStore()
    async with running(tmp_path, store) as broker, asking(broker) as http:
        await make_topic(broker)
        store.faults = refuse
        assert (await http.delete("/v1/topics/t")).status_code == 503
        assert (await http.put("/v1/topics/t")).json()["type"] == "/problems/topic-being-deleted"
        store.faults = lambda moment, name: None
        assert (await http.delete("/v1/topics/t")).status_code == 204
        assert (await http.get("/v1/topics/t")).status_code == 404
        assert (await http.delete("/v1/topics/t")).status_code == 404


async def test_what_a_deletion_takes_from_under_a_reader_is_no_damage(tmp_path: Path) -> None:
    store = HeldStore()
    async with running(tmp_path, store) as broker, asking(broker) as http:
        topic = await make_topic(broker)
        await publish(broker, topic, "1")
        await inside.positions(broker).positions(topic, flush=True)
        privates.known(topic.opened[0].chain).clear()  # as of a chain that was opened after its files were made
        store.gate = gate = Gate()
        showing = asyncio.create_task(http.get("/v1/topics/t"))
        await gate.reached.wait()
        store.gate = None
        await inside.deletion(broker).delete(topic)
        gate.open.set()
        assert (await showing).status_code == 409


@pytest.mark.timeout(20)
async def test_a_pull_that_reads_while_its_topic_goes_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reached, go_on = threading.Event(), threading.Event()

    def load(*arguments: Any) -> Any:
        group = read.Group(0, plain(*arguments).rows)
        reached.set()
        go_on.wait(30)
        return group

    plain = read.load
    async with running(tmp_path) as broker:
        topic = await make_topic(broker)
        await publish(broker, topic, "1", "2")
        await inside.positions(broker).positions(topic, flush=True)
        await publish(broker, topic, "3", "4")
        await subscribe(broker, topic)
        monkeypatch.setattr(read, "load", load)
        pulling = asyncio.create_task(pull(inside.dispatcher(broker), topic, "s", None, 100, 0))
        await asyncio.to_thread(reached.wait, 10)
        await inside.deletion(broker).delete(topic)
        go_on.set()
        with pytest.raises(TopicBeingDeleted):
            await pulling


@pytest.mark.brokers
async def test_the_sweep_removes_nothing_of_successors_to_be(tmp_path: Path, monkeypatch) -> None:
    async with in_loop(tmp_path, 1) as together:
        (broker,) = together.brokers
        await inside.topic_admin(broker).create("t", TopicConfig())
        topic = inside.topic(broker, "t")
        held: set[tuple[str, int, int]] = set()
        monkeypatch.setattr(inside.catalog(broker), "locked", lambda: held)  # nobody carries the plan out yet
        intent = await inside.planner(broker).plan(topic, [0], [1 << 30])
        early = f"topics/t/segment={intent.successors[1].id}/00000000-0000000000000000.parquet"
        await together.store.create(early, b"a successor's first entry, as it were")
        assert await inside.topic_admin(broker).sweep() == 0
        assert await together.store.list(early) == [early]
        await together.store.delete(early)
        monkeypatch.undo()
        inside.catalog(broker).locking.wake()
        await until(lambda: inside.catalog(broker).segments(topic)[0].state == "sealed")
        assert await inside.topic_admin(broker).sweep() == 0


def test_an_id_that_nobody_has_or_is_to_have_is_dead() -> None:
    assert topics.live_ids({}) == set()
    intent = Intent(7, "planned", (1,), (Successor(7, 0, 5), Successor(8, 5, KEY_SPACE)))
    record = SegmentRecord(0, KEY_SPACE, "open", (), (), None, None, 1, intent=intent)
    assert topics.live_ids({1: record, 2: replace(record, intent=None)}) == {1, 2, 7, 8}

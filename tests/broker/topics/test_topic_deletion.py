"""A topic deleted while others open, read or delete it: nothing hangs, nothing comes back, nothing new goes."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from seaweedq.api.app import Application
from seaweedq.broker.broker import Broker
from seaweedq.broker.log import reader as read
from seaweedq.coordination.records import TopicConfig
from seaweedq.errors import StoreUnavailable, TopicBeingDeleted
from seaweedq.storage.memory import MemoryStore
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.held_lookups import HeldStore
from tests.support.brokers.in_process import Gate, make_topic, publish, pull, running, subscribe


@asynccontextmanager
async def asking(broker: Broker) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(Application(broker)), base_url="http://localhost"
    ) as http:
        yield http


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
        go_on.wait(10)
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

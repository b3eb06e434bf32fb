"""How a life of a broker ends for those who are near: a fence is no crash, and who still waits at the end gets 503."""

import asyncio
import gc
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from seaweedq.api.app import Application
from seaweedq.broker.broker import Broker
from seaweedq.cli.server import broker_process
from seaweedq.cli.server.broker_process import BrokerProcess
from seaweedq.cli.server.stop_signals import StopSignals
from seaweedq.clock import SystemIds
from seaweedq.errors import Fenced
from seaweedq.journal.object_format import SlotHeaders
from seaweedq.journal.object_recovery import fence
from seaweedq.settings import Settings
from seaweedq.storage.generations import Generation, create_generation
from seaweedq.storage.memory import MemoryStore
from tests.support.brokers import inside
from tests.support.brokers.in_process import Gate, make_topic, publish, running
from tests.support.brokers.in_process_cluster import InLoop, in_loop, until
from tests.support.brokers.serving import NoDeadline, stop_signals
from tests.support.levels import newest


async def test_being_fenced_is_one_clear_line_and_no_crash(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    async with running(tmp_path, store, journal="object") as broker:
        topic = await make_topic(broker)
        await publish(broker, topic, "1")
        await fence(store, SlotHeaders(broker.id, SystemIds(), newest))
        outcomes = await asyncio.gather(*(publish(broker, topic, str(n)) for n in range(20)), return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {Fenced}
        async with asyncio.timeout(15):
            await broker.lost.wait()
        (line,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
        assert line.exc_info is None
        assert broker.id in line.getMessage()
        assert "another broker has begun to recover this broker's journal, and has written" in line.getMessage()


@pytest.mark.parametrize("kind", ["object", "file"])
async def test_a_life_that_has_acknowledged_nothing_sees_a_later_generation(tmp_path: Path, kind: str) -> None:
    """A rebuild that did not find its journal has begun a generation before."""
    store = MemoryStore()
    async with running(tmp_path, store, journal=kind) as broker:
        topic = await make_topic(broker)
        assert await create_generation(store, Generation(2, "other"))
        with pytest.raises(Fenced, match="the store has generation 2 of coordination"):
            await publish(broker, topic, "1")
        async with asyncio.timeout(15):
            await broker.lost.wait()


async def test_a_life_looks_once_for_a_later_generation(tmp_path: Path) -> None:
    """From its first commit on its journal is found by a rebuild, and fenced."""
    looks: list[str] = []
    store = MemoryStore(lambda moment, name: looks.append(moment) if name.startswith("_generations") else None)
    async with running(tmp_path, store, journal="object") as broker:
        topic = await make_topic(broker)
        looks.clear()
        for number in range(3):
            await publish(broker, topic, str(number))
        assert looks == ["before list", "after list"]
        (needed,) = await broker.context.journals.needed()
        at = await broker.context.coordination.range("")
        assert needed.seen.generation == 1
        assert 0 < needed.seen.revision <= at.revision


@pytest.mark.parametrize("path", ["messages", "segments"])
async def test_who_waits_when_the_serving_ends_gets_503(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker:
        topic, gate = await make_topic(broker), Gate()
        monkeypatch.setattr(inside.publisher(broker), "single", gate)
        monkeypatch.setattr(inside.positions(broker), "positions", gate)
        request, sent = asking(broker, "POST" if path == "messages" else "GET", f"/v1/topics/{topic.name}/{path}")
        await gate.reached.wait()
        broker.begin_stop()
        request.cancel()
        await request
        start, body = sent
        assert start["status"] == 503
        assert msgspec.json.decode(body["body"])["type"] == "/problems/not-ready"


async def test_a_request_that_is_broken_off_in_the_midst_of_life_is_not_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker:
        topic, gate = await make_topic(broker), Gate()
        monkeypatch.setattr(inside.publisher(broker), "single", gate)
        request, sent = asking(broker, "POST", f"/v1/topics/{topic.name}/messages")
        await gate.reached.wait()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert sent == []


def asking(broker: Broker, method: str, path: str) -> tuple[asyncio.Task[None], list[Any]]:
    """A request, and what is sent in answer to it."""
    sent: list[Any] = []
    content = b'{"value": 1}'
    head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": head,
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": content, "more_body": False}

    async def out(message: Any) -> None:
        sent.append(message)

    return asyncio.create_task(Application(broker)(scope, receive, out)), sent


@pytest.mark.brokers
async def test_a_start_in_a_dead_ones_folder_ends_its_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with in_loop(tmp_path, 2, journal="object", lease_s=60) as together:
        dead, other = together.brokers
        topic = await make_topic(dead)
        await publish(dead, topic, "1")
        with monkeypatch.context() as patch:
            patch.setattr(together.coordination.leases, "revoke", nothing)
            await together.crash(dead)
        assert await together.coordination.get(f"brokers/{dead.id}")
        next_life = await together.begin_again(dead)
        await until(
            lambda: inside.catalog(other).segment(inside.topic(other, "t"), 0).record.owner in {*living(together, dead)}
        )
        await publish(next_life, inside.topic(next_life, "t"), "2")


async def nothing(lease: int) -> None:
    pass


def living(together: InLoop, dead: Broker) -> set[str]:
    return {broker.id for broker in together.brokers if broker is not dead}


@pytest.mark.parametrize("signalled", [False, True])
async def test_who_loses_its_lease_begins_again_unless_it_was_told_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signalled: bool
) -> None:
    async def lose(broker: Broker, stop: StopSignals) -> bool:
        broker.lost.set()
        if signalled:
            stop.ask()
        return False

    monkeypatch.setattr(broker_process, "started", lose)
    process = BrokerProcess(Settings(data_dir=tmp_path, port=0), stop_signals(), NoDeadline())
    assert await process.live() is not signalled


@pytest.mark.long
def test_lives_that_were_ready_leave_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each freezes its objects for the collector once it is ready; they go before the next one begins."""
    stop, frozen = StopSignals(NoDeadline(), 0, 0), []

    def lose(settings: Settings, broker: Broker) -> None:
        broker.lost.set()
        frozen.append(gc.get_freeze_count())
        if len(frozen) == 5:
            stop.ask()

    monkeypatch.setattr(broker_process, "AGAIN_S", 0.0)
    monkeypatch.setattr(broker_process, "greet", lose)
    try:
        BrokerProcess(Settings(data_dir=tmp_path, port=0), stop, NoDeadline()).run()
    finally:
        gc.unfreeze()
    assert len(frozen) == 5
    assert frozen[-1] - frozen[1] < 3_000, "a life has some 7,000 objects"

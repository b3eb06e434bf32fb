"""`publish_timeout_s` covers all of a publish, and stores that hang hold up nobody who needs no store."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from seaweedq.api.app import Application
from seaweedq.broker.broker import Broker
from seaweedq.clock import SystemIds
from seaweedq.storage.local import LocalStore
from tests.support.brokers import inside
from tests.support.brokers.in_process import Gate, held, make_topic, publish, running

TIMEOUT_S = 0.5
WITHIN_S = 5.0


class BlackHole(LocalStore):
    """A store of files whose blocking reads never end, once it is `dark`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, SystemIds())
        self.dark = False
        self.light = threading.Event()

    def hang(self, calls: int) -> None:
        """As many reads hang, as those of clients who fetch."""
        self.dark = True
        for _ in range(calls):
            self.readers.submit(self.light.wait)

    def _read(self, path: str, start: int, end: int | None) -> bytes:
        if self.dark:
            self.light.wait()
        return super()._read(path, start, end)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[BlackHole]:
    store = BlackHole(tmp_path / "store")
    yield store
    store.light.set()


def asking(broker: Broker) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(Application(broker)), base_url="http://127.0.0.1", timeout=60
    )


async def test_reads_that_hang_hold_up_no_publish_no_leader_and_no_stop(tmp_path: Path, store: BlackHole) -> None:
    async with running(tmp_path / "data", store, journal="file", shutdown_s=2) as broker:  # type: ignore[arg-type]
        topic = await make_topic(broker)
        store.hang(20)
        async with asyncio.timeout(WITHIN_S), asking(broker) as http:
            for n in range(20):
                await publish(broker, topic, str(n))
            large = [{"key": f"k{n}", "value": "x" * 1000} for n in range(200)]
            answer = await http.post("/v1/topics/t/messages", json={"messages": large})
            assert answer.status_code == 200
            await inside.leader(broker).round()
            await inside.topic_admin(broker).create("another", topic.record.config)
            await broker.stop()
        assert await held(broker).get(f"brokers/{broker.id}") is None


async def test_a_segment_that_cannot_be_opened_ends_the_publish_in_time(tmp_path: Path, store: BlackHole) -> None:
    async with running(tmp_path / "data", store, publish_timeout_s=TIMEOUT_S) as broker:  # type: ignore[arg-type]
        topic = await make_topic(broker)
        topic.opened.clear()
        topic.routing = None
        store.hang(20)
        async with asyncio.timeout(WITHIN_S), asking(broker) as http:
            for body in ({"value": 1}, {"messages": [{"value": n} for n in range(3)]}):
                answer = await http.post("/v1/topics/t/messages", json=body)
                assert answer.status_code == 503
                assert f"within publish_timeout_s={TIMEOUT_S:g}; nothing was taken" in answer.json()["detail"]


@pytest.mark.parametrize("phase", ["known", "commit"])
async def test_a_publish_that_waits_in_several_places_has_one_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    gate = Gate()
    async with running(tmp_path, publish_timeout_s=TIMEOUT_S) as broker, asking(broker) as http:
        await make_topic(broker)
        name = "t"
        if phase == "known":
            monkeypatch.setattr(inside.catalog(broker), "known", gate)
            name = "unknown"
        else:
            monkeypatch.setattr(inside.journal(broker), "append", gate)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        async with asyncio.timeout(WITHIN_S):
            answer: Any = await http.post(f"/v1/topics/{name}/messages", json={"value": 1})
        assert loop.time() - began_s >= TIMEOUT_S * 0.9
        assert answer.status_code == 503
        assert ("nothing was taken" if phase == "known" else "is unknown") in answer.json()["detail"]
        gate.open.set()

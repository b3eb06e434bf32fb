"""EventSource of a real browser, on a page of the broker's own, and on one of another origin."""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect

from seaweedq.broker.broker import Broker
from seaweedq.broker.topics.catalog import Topic
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.in_process import make_topic, publish, running
from tests.support.brokers.in_process_cluster import until
from tests.support.brokers.serving import served

SUB = "/v1/topics/t/subscriptions/s"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-port=0")
RECONNECT = """new Promise((done) => {
    const values = [], ids = [], source = new EventSource(%s);
    source.onmessage = (event) => {
        values.push(JSON.parse(event.data).value); ids.push(event.lastEventId);
        if (values.length === 4) { source.close(); done({ids, values}); }
    };
})"""
LISTEN = """new Promise((done) => {
    const values = [], source = new EventSource(%s);
    source.onerror = () => source.readyState === EventSource.CLOSED && done({closed: true, values});
    source.onmessage = (event) => {
        values.push(JSON.parse(event.data).value);
        if (values.length === 2) { source.close(); done({id: event.lastEventId, values}); }
    };
})"""
pytestmark = [pytest.mark.process, pytest.mark.long]


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[ClientConnection]:
    """A page of a headless browser, by its debugging protocol."""
    if CHROMIUM is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("there is no chromium on the PATH")
    profile = tmp_path / "profile"
    browser = await asyncio.create_subprocess_exec(
        CHROMIUM,
        *FLAGS,
        f"--user-data-dir={profile}",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(60):
            while not (told := profile / "DevToolsActivePort").exists() or not told.read_text():
                await asyncio.sleep(0.1)
            port = told.read_text().split()[0]
            async with httpx.AsyncClient(timeout=30, trust_env=False) as http:
                targets = (await http.get(f"http://127.0.0.1:{port}/json/list")).json()
        url = next(one["webSocketDebuggerUrl"] for one in targets if one["type"] == "page")
        async with connect(url, proxy=None, max_size=None) as socket:
            yield socket
    finally:
        browser.kill()
        await browser.wait()


async def told(page: ClientConnection, method: str, **params: Any) -> dict[str, Any]:
    """The browser's answer to a command."""
    await page.send(json.dumps({"id": 1, "method": method, "params": params}))
    async with asyncio.timeout(60):
        while (found := json.loads(await page.recv())).get("id") != 1:
            pass
    result: dict[str, Any] = found["result"]
    return result


async def shown(page: ClientConnection, url: str) -> None:
    """Open a page, and wait until it is there."""
    await told(page, "Page.navigate", url=url)
    ready = {"expression": f"document.readyState === 'complete' && location.href.startsWith({json.dumps(url)})"}
    async with asyncio.timeout(60):
        while not (await told(page, "Runtime.evaluate", **ready))["result"].get("value"):
            await asyncio.sleep(0.1)


async def heard(page: ClientConnection, url: str, script: str = LISTEN) -> dict[str, Any]:
    """What an EventSource gets, until the script is done."""
    asked = {"expression": script % json.dumps(url), "awaitPromise": True, "returnByValue": True}
    found: dict[str, Any] = (await told(page, "Runtime.evaluate", **asked))["result"]["value"]
    return found


async def test_a_page_of_the_broker_listens_and_one_of_a_stranger_does_not(
    tmp_path: Path, page: ClientConnection
) -> None:
    async with running(tmp_path / "here") as found, served(found) as here:
        topic = await make_topic(found)
        await publish(found, topic, "1", "[\n2]")
        await shown(page, f"{here.url}/healthz")
        listened = await heard(page, "/v1/topics/t/stream?start=earliest")
        assert listened["values"] == [1, [2]]
        assert listened["id"] == f"{topic.record.incarnation}:0-2"
        await shown(page, f"{here.url.replace('127.0.0.1', 'localhost')}/healthz")
        stranger = await heard(page, f"{here.url}/v1/topics/t/stream?start=earliest")
        assert stranger == {"closed": True, "values": []}


async def test_a_subscription_goes_on_when_its_connection_is_lost(tmp_path: Path, page: ClientConnection) -> None:
    """Two messages may be in flight: the browser gets two, loses its connection, and comes back by itself. Of the two
    one was acked; the other one it has."""
    async with running(tmp_path / "here") as found, served(found) as here:
        topic = await make_topic(found)
        await publish(found, topic, "1", "2", "3", "4")
        async with httpx.AsyncClient(base_url=here.url, timeout=30, trust_env=False) as http:
            assert (await http.put(SUB, json={"start": "earliest", "ack_deadline_s": 600})).status_code == 201
            await shown(page, f"{here.url}/healthz")
            listening = asyncio.create_task(heard(page, f"{SUB}/stream?max_in_flight=2", RECONNECT))
            await until(lambda: in_flight(found, topic) == 2)
            await asyncio.sleep(2)  # for the browser to take them
            connections = here.server.config.app.connections  # type: ignore[union-attr]
            for place in list(privates.regular(connections)):
                if place.transport.get_extra_info("peername") and place not in privates.quiet(connections):
                    place.transport.abort()
            assert (await http.post(f"{SUB}/ack", json={"ids": ["0-0", "0-1"]})).json()["acked"] == 2
            listened = await listening
        assert listened["values"] == [1, 2, 3, 4]
        assert [one.rpartition(".")[2] for one in listened["ids"]] == ["0", "1", "2", "3"]
        assert len({one.rpartition(".")[0].rpartition(".")[0] for one in listened["ids"]}) == 1, "it is one stream"


def in_flight(broker: Broker, topic: Topic) -> int:
    """How many messages of the subscription are leased."""
    return sum(one.in_flight for one in inside.dispatcher(broker).subscriptions() if one.topic is topic)

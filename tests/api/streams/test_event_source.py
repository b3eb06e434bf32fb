"""EventSource of a real browser, on a page of the broker's own, and on one of another origin."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect

from tests.support.brokers.in_process import make_topic, publish, running
from tests.support.brokers.serving import served

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-port=0")
LISTEN = """new Promise((done) => {
    const values = [], source = new EventSource(%s);
    source.onerror = () => source.readyState === EventSource.CLOSED && done({closed: true, values});
    source.onmessage = (event) => {
        values.push(JSON.parse(event.data).value);
        if (values.length === 2) { source.close(); done({id: event.lastEventId, values}); }
    };
})"""
pytestmark = [
    pytest.mark.usefixtures("long_run"),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the PATH"),
]


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[ClientConnection]:
    """A page of a headless browser, by its debugging protocol."""
    profile = tmp_path / "profile"
    browser = await asyncio.create_subprocess_exec(
        str(CHROMIUM),
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
            async with httpx.AsyncClient(trust_env=False) as http:
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


async def heard(page: ClientConnection, url: str) -> dict[str, Any]:
    """What an EventSource gets, up to two messages."""
    asked = {"expression": LISTEN % json.dumps(url), "awaitPromise": True, "returnByValue": True}
    found: dict[str, Any] = (await told(page, "Runtime.evaluate", **asked))["result"]["value"]
    return found


async def test_a_page_of_the_broker_listens_and_one_of_a_stranger_does_not(
    tmp_path: Path, page: ClientConnection
) -> None:
    async with running(tmp_path / "here") as found, served(found) as here:
        topic = await make_topic(found)
        await publish(found, topic, "1", "[\n2]")
        await shown(page, f"{here.url}/docs")
        listened = await heard(page, "/v1/topics/t/stream?start=earliest")
        assert listened["values"] == [1, [2]]
        assert listened["id"] == f"{topic.record.incarnation}:0-2"
        await shown(page, f"{here.url.replace('127.0.0.1', 'localhost')}/docs")
        stranger = await heard(page, f"{here.url}/v1/topics/t/stream?start=earliest")
        assert stranger == {"closed": True, "values": []}

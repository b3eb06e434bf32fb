"""The key space over time in a browser, at a broker and behind a path prefix: drawn, pointed at, zoomed into, in words,
and where there is nothing, no leader, or a broker that ends."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.console.test_console import PAGES, console, fill
from tests.support.brokers import inside
from tests.support.brokers.in_process import running
from tests.support.brokers.serving import served
from tests.support.browser import FAINT, UNNAMED, Page, browser, chromium
from tests.support.console_answers import Past
from tests.support.http.prefix_proxy import Answers, PrefixProxy, proxied

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        not chromium() and not os.environ.get("CI"), reason="there is no Chromium: `make chromium` installs it"
    ),
]
# The colours in the middle of the plane, and whether the canvas has any at all.
COLOURS = """(() => {
    const canvas = document.querySelector('.plane canvas');
    const {width, height} = canvas;
    const other = Object.assign(document.createElement('canvas'), {width, height});
    const copy = other.getContext('2d', {willReadFrequently: true});
    copy.drawImage(canvas, 0, 0);
    const found = new Set();
    for (let i = 1; i < 20; i += 1) {
        const at = copy.getImageData(width * i / 20, height * (i % 7 + 1) / 9, 1, 1).data;
        found.add(at.slice(0, 3).join());
    }
    return found.size;
})()"""
SAYS = "document.querySelector('.place').innerText"


@asynccontextmanager
async def behind(tmp_path: Path, answers: Answers) -> AsyncIterator[tuple[Page, str, PrefixProxy, httpx.AsyncClient]]:
    """A page, and a broker below a path prefix; these answers are given in its place. No request may leave the prefix,
    and no error may be in the browser's log."""
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(running(tmp_path))
        serving = await stack.enter_async_context(served(broker))
        url, proxy = await stack.enter_async_context(proxied(serving.url, answers=answers))
        page = await stack.enter_async_context(browser())
        yield (
            page,
            url,
            proxy,
            await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=30, trust_env=False)),
        )
        assert page.errors == []
        assert [path for path in proxy.astray if path != "/favicon.ico"] == []


async def test_the_past_is_drawn_pointed_at_zoomed_and_told_in_words(tmp_path: Path) -> None:
    async with behind(tmp_path, Past().answers()) as (page, url, _, _):
        await page.size(1280, 1000)
        await page.open(f"{url}#/topics/big/keys")
        await page.shows("Point at a position", "The leader, b0.1f2e", "10,000")
        await page.until(f"{COLOURS} > 5")
        await page.run("document.querySelector('.plane').focus()")
        await page.press("ArrowLeft")
        await page.until(f"{SAYS}.includes('messages/s') && {SAYS}.includes('Owner')")
        before = await page.run(SAYS)
        await page.press("PageUp")
        await page.until(f"{SAYS} !== {before!r}")
        for _ in range(8):
            await page.press("ArrowUp")
        await page.until(f"{SAYS}.includes('split')  || {SAYS}.includes('then 99') || {SAYS}.includes('of ')")
        assert await page.run("document.activeElement.className") == "plane"
        await page.press("+")
        await page.shows("Zoomed in")
        await page.until(f"{COLOURS} > 2")
        await page.press("0")
        await page.until("!document.body.innerText.includes('Zoomed in')")
        await page.run("document.querySelector('input[role=switch]').click()")
        await page.shows(
            "Messages received by each segment", "Splits, merges and rolls", "merge", "split", "hash 89478485: 75%"
        )
        rows = await page.run("document.querySelectorAll('table')[1].querySelectorAll('tbody tr').length")
        assert rows == 5
        for dark in (True, False):
            for width in (320, 1280):
                await page.size(width, 900, dark)
                assert await page.run("document.documentElement.scrollWidth") <= width
                assert await page.run(UNNAMED) == []
                assert await page.run(FAINT) == []


@pytest.mark.long
async def test_a_drag_shows_a_part_and_a_tap_tells_a_place(tmp_path: Path) -> None:
    async with behind(tmp_path, Past().answers()) as (page, url, _, _):
        await page.size(1000, 1000)
        await page.open(f"{url}#/topics/big/keys")
        await page.until(f"{COLOURS} > 5")
        box = await page.run("(({x, y, width, height}) => [x, y, width, height])"
                             "(document.querySelector('.plane').getBoundingClientRect())")  # fmt: skip
        await mouse(page, "mouseMoved", box, 0.9, 0.9)
        await page.until(f"{SAYS}.includes('hot') || {SAYS}.includes('Hot key')")
        await mouse(page, "mousePressed", box, 0.3, 0.2)
        await mouse(page, "mouseMoved", box, 0.6, 0.5)
        await mouse(page, "mouseReleased", box, 0.6, 0.5)
        await page.shows("Zoomed in")
        await page.click("Zoom in")
        await page.click("Reset to live")
        await page.until("!document.body.innerText.includes('Zoomed in')")


async def mouse(page: Page, kind: str, box: list[float], x: float, y: float) -> None:
    more: dict[str, Any] = {"button": "left", "clickCount": 1} if kind != "mouseMoved" else {}
    await page.send(
        "Input.dispatchMouseEvent",
        type=kind,
        x=box[0] + x * box[2],
        y=box[1] + y * box[3],
        pointerType="mouse",
        **more,
    )
    await page.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


@pytest.mark.long
async def test_all_pages_work_below_a_path_prefix(tmp_path: Path) -> None:
    async with behind(tmp_path, {}) as (page, url, _, http):
        await fill(http)
        for place in [*PAGES, "#/topics/orders/keys"]:
            await page.open(f"{url}{place}")
            await page.until("document.querySelector('h1') && !document.querySelector('p[aria-busy]')")
            assert not await page.run("document.querySelector('[role=alert]')"), place
        await page.open(f"{url}#/topics/orders/files")
        await page.shows(".parquet")
        await page.open(f"{url}#/brokers")
        await page.shows("Nothing: every segment has a running owner", "Owners of the key space", "100%")


@pytest.mark.long
async def test_nothing_no_leader_and_a_broker_that_ends_while_it_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seaweedq.broker.load.FIND_S", 0.1)
    async with console(tmp_path) as (page, serving, http):
        await http.put("/v1/topics/idle")
        await page.open(f"{serving.url}/#/topics/idle/keys")
        await page.shows("The leader", "none in this time", "Point at a position")
        await page.run("document.querySelector('input[role=switch]').click()")
        await page.shows("Messages received by each segment", "No changes in this time")

        async def nobody() -> None:
            return None

        monkeypatch.setattr(inside.election(serving.broker), "leader", nobody)
        await page.shows("Not up to date", "the cluster has no leader")
        await page.open(f"{serving.url}/#/topics")
        await page.until("document.querySelector('h1').innerText === 'Topics'")  # else the page goes on as it was
        await page.open(f"{serving.url}/#/topics/idle/keys")
        await page.shows("Request failed", "the cluster has no leader")
        monkeypatch.undo()
        await page.shows("The leader")
        serving.stop.ask()
        await asyncio.wait_for(serving.ended, 20)
        await page.shows("Not up to date", "idle")

"""The console in a browser: each page with data, without, and with errors; what a person does there; and no error in
the browser's own log."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from seaweedq.segments.keyrange import hash_key
from tests.support.brokers.in_process import running
from tests.support.brokers.serving import Served, served
from tests.support.browser import FAINT, UNNAMED, Page, browser, chromium

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        not chromium() and not os.environ.get("CI"), reason="there is no Chromium: `make chromium` installs it"
    ),
]
BIG = 12345678901234567890  # which a float does not hold
PAGES = [
    "",
    "#/topics/orders",
    "#/topics/orders/publish",
    "#/topics/orders/segments",
    "#/topics/orders/files",
    "#/topics/orders/settings",
    "#/subscriptions",
    "#/brokers",
]


@asynccontextmanager
async def console(tmp_path: Path) -> AsyncIterator[tuple[Page, Served, httpx.AsyncClient]]:
    """A page, a broker to look at, and a client of it. No error may be in the browser's log at the end."""
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(running(tmp_path))
        serving = await stack.enter_async_context(served(broker))
        page = await stack.enter_async_context(browser())
        yield (
            page,
            serving,
            await stack.enter_async_context(httpx.AsyncClient(base_url=serving.url, timeout=30, trust_env=False)),
        )
        assert page.errors == []


async def fill(http: httpx.AsyncClient) -> None:
    """Two topics, one with messages and a subscription."""
    await http.put("/v1/topics/orders", json={"initial_segments": 2})
    await http.put("/v1/topics/clicks", json={"format": "bytes"})
    messages: list[dict[str, Any]] = [{"key": f"k{n % 7}", "value": {"n": n, "big": BIG}} for n in range(40)]
    messages[-1]["headers"] = {"source": "<b>not a tag</b>"}
    answer = await http.post("/v1/topics/orders/messages", json={"messages": messages})
    assert answer.status_code == 200, answer.text
    await http.put("/v1/topics/orders/subscriptions/billing", json={"start": "earliest"})
    await http.post("/v1/topics/orders/flush")


@pytest.mark.long
async def test_each_page_shows_its_data_in_both_colours_and_on_a_narrow_screen(tmp_path: Path) -> None:
    async with console(tmp_path) as (page, serving, http):
        await page.open(f"{serving.url}/")
        await page.shows("No topics yet")
        await page.open(f"{serving.url}/#/subscriptions")
        await page.shows("No subscription yet")
        await fill(http)
        shown = {
            "": ["orders", "clicks", "40"],
            "#/topics/orders": [str(BIG), "The newest"],
            "#/topics/orders/segments": ["50%", serving.broker.id],
            "#/topics/orders/files": [".parquet", "read_parquet(", "spark.read.parquet("],
            "#/topics/orders/settings": ["Maximum segments"],
            "#/subscriptions": ["billing", "ordered"],
            "#/brokers": [serving.broker.id, "leader"],
        }
        for place, texts in shown.items():
            await page.open(f"{serving.url}/{place}")
            await page.shows(*texts)
        for dark, place in [(True, one) for one in PAGES] + [(False, PAGES[-1])]:
            await page.size(320, 700, dark)
            await page.open(f"{serving.url}/{place}")
            await page.until("document.querySelector('h1') && !document.querySelector('p[aria-busy]')")
            assert await page.run("document.documentElement.scrollWidth") <= 320, place
            assert await page.run(UNNAMED) == [], place
            assert await page.run(FAINT) == [], place


async def test_a_person_creates_publishes_reads_changes_and_deletes(tmp_path: Path) -> None:
    async with console(tmp_path) as (page, serving, http):
        await page.open(f"{serving.url}/")
        await page.click("Create the first topic")
        await page.fill("Name", "Not A Name")
        await page.click("Create")
        await page.shows("Request failed", "Not A Name")
        await page.fill("Name", "orders")
        await page.click("Create")
        await page.click("orders")
        await page.shows("No messages found")
        await page.click("Publish")
        await page.fill("Value, as JSON", "{")
        await page.shows("Not JSON")
        await page.fill("Value, as JSON", f'{{"big": {BIG}, "text": "<i>x</i>"}}')
        await page.fill("Key (optional)", "ada")
        await page.fill("Headers (optional)", "source: console")
        await page.run("document.querySelector('form button[type=submit]').click()")
        await page.click("0-0")
        await page.shows("From an offset on")
        await page.click("0-0")
        await page.shows("source", "console", f'"big": {BIG}', '"text": "<i>x</i>"')
        await page.fill("Messages", "key")
        await page.fill("Key", "nobody")
        await page.click("Show")
        await page.shows("1 message searched: no other message can have this key", "No messages found")
        await page.fill("Key", "ada")
        await page.click("Show")
        await page.shows("0-0")
        await http.post("/v1/topics/orders/messages", json={"messages": [{"key": "bob", "value": {"big": 1}}]})
        await page.fill("Key", "bob")
        await page.click("Show")
        await page.shows("2 messages searched", "0-1")
        await page.fill("Messages", "time")
        await page.click("Show")
        await page.shows("0-0")
        stored = (await http.get("/v1/topics/orders/segments/0/messages")).json()["messages"]
        assert [(one["key"], one["value"]["big"], one["headers"]) for one in stored] == [
            ("ada", BIG, {"source": "console"}),
            ("bob", 1, {}),
        ]

        await page.click("Settings")
        await page.fill("Maximum segments", "7")
        await page.click("Change")
        await page.shows("Topic updated")
        assert (await http.get("/v1/topics/orders")).json()["scaling"]["max_segments"] == 7
        await page.click("Delete the topic")
        await page.fill("Type orders to confirm", "order")
        assert await page.run("document.querySelector('dialog button[type=submit]').disabled")
        await page.press("Escape")
        await page.until("!document.querySelector('dialog')")
        await page.click("Delete the topic")
        await page.fill("Type orders to confirm", "orders")
        await page.click("Delete")
        await page.shows("No topics yet")
        assert (await http.get("/v1/topics/orders")).status_code == 404


KEYS = ["", "ada", "abcd", "k\u00e4se", "\u6d77\u85fb", "customer-1234567"]


@pytest.mark.long
async def test_the_page_of_the_api_works_under_its_policy(tmp_path: Path) -> None:
    """It loads the document, and sends a request of a person's."""
    async with console(tmp_path) as (page, serving, _):
        await page.open(f"{serving.url}/docs")
        await page.until("document.querySelectorAll('.opblock').length > 40")
        await page.run("document.querySelector('.opblock-get .opblock-summary-control').click()")
        await page.until("!!document.querySelector('.try-out__btn')")
        await page.run("document.querySelector('.try-out__btn').click()")
        await page.until("!!document.querySelector('.execute')")
        await page.run("document.querySelector('.execute').click()")
        assert await page.until("document.querySelector('.live-responses-table .response-col_status')?.innerText")


async def test_a_search_for_a_key_reads_its_places_and_follows_what_was_asked(tmp_path: Path) -> None:
    async with console(tmp_path) as (page, serving, http):
        await http.put("/v1/topics/orders", json={"initial_segments": 8})
        messages = [{"key": f"k{n}", "value": n} for n in range(64)]
        await http.post("/v1/topics/orders/messages", json={"messages": messages})
        await page.open(f"{serving.url}/#/topics/orders")
        await page.shows("The newest", "k62")
        hashes = f"import('./console/key_hash.js').then((one) => {json.dumps(KEYS)}.map(one.hashOf))"
        assert await page.run(hashes) == [hash_key(key) for key in KEYS]

        long = """import('./console/json.js').then((one) => {
            const texts = [`{"v":"${'x\\\\n'.repeat(10)}${'x'.repeat(2 ** 24)}","n":1.0}`,
                `{"v":"${'\\\\n'.repeat(5e6)}","n":1.0}`, `{"a":"\\\\"1.0","b\\\\\\\\":1.0}`, "[]", "1.0"];
            return texts.map((text) => one.pretty(one.parse(text)) === text);
        })"""
        assert await page.run(long) == [True] * 5

        await page.fill("Messages", "key")
        await page.fill("Key", "k9")
        await page.click("Show")
        (segment,) = [
            one
            for one in (await http.get("/v1/topics/orders/segments")).json()["segments"]
            if one["low"] <= hash_key("k9") < one["high"]
        ]
        assert 1 < segment["end_offset"] < 32
        await page.shows(f"{segment['end_offset']} messages searched: no other message can have this key")
        assert await page.run("document.querySelectorAll('.messages tbody tr').length") == 1

        await page.open(f"{serving.url}/#/topics/orders/messages/{segment['id']}/0")
        await page.shows("From an offset on", "Next messages")
        await page.fill("Messages", "newest")  # and nothing is asked for yet
        await page.click("Next messages")
        await page.shows("No messages found")
        assert await page.run("document.querySelector('.search select').value") == "offset"


@pytest.mark.long
async def test_errors_are_told_and_a_broker_that_ends_leaves_what_it_said_last(tmp_path: Path) -> None:
    async with console(tmp_path) as (page, serving, http):
        for place in ("#/topics/nobody", "#/topics/nobody/segments"):
            await page.open(f"{serving.url}/{place}")
            await page.shows("Request failed", "nobody")
        await page.open(f"{serving.url}/#/nothing/%zz")
        await page.shows("Page not found")
        await fill(http)
        await page.open(f"{serving.url}/")
        await page.shows("orders", "40")
        await page.press("Tab")  # the way past the navigation comes first
        assert await page.run("document.activeElement.innerText") == "Skip to content"
        await page.press("Enter")
        assert await page.run("document.activeElement.id") == "main"
        await page.open(f"{serving.url}/#/brokers")
        await page.shows(serving.broker.id)
        serving.stop.ask()
        await asyncio.wait_for(serving.ended, 20)
        await page.shows("Not up to date", serving.broker.id)


OFFERED = """[...document.querySelectorAll(
    'a[href], button:not([disabled]), input, select, textarea, summary, [tabindex="0"]')]
    .filter((one) => one.checkVisibility() && !one.closest('[inert]'))"""
FOCUSED = """(() => {
    const one = document.activeElement;
    const style = getComputedStyle(one);
    window.met = (window.met || new Set()).add(one);
    return style.outlineStyle !== 'none' || style.boxShadow !== 'none';
})()"""


@pytest.mark.long
async def test_the_tab_key_reaches_all_that_a_page_offers_and_shows_where_it_is(tmp_path: Path) -> None:
    async with console(tmp_path) as (page, serving, http):
        await fill(http)
        for place in [*PAGES, "#/topics/orders/keys"]:
            await page.open("about:blank")
            await page.open(f"{serving.url}/{place}")
            await page.until("document.querySelector('h1') && !document.querySelector('p[aria-busy]')")
            pressed = 0
            while pressed < await page.run(f"{OFFERED}.length"):  # a page that loads more offers more
                pressed += 1
                await page.press("Tab")
                assert await page.run(FOCUSED), (place, await page.run("document.activeElement.outerHTML"))
            missed = f"{OFFERED}.filter((one) => !met.has(one) && one.type !== 'radio').map((one) => one.outerHTML)"
            assert await page.run(missed) == [], place


@pytest.mark.long
async def test_a_topic_is_created_and_deleted_by_the_keyboard_alone(tmp_path: Path) -> None:
    async with console(tmp_path) as (page, serving, http):

        async def go(text: str) -> None:
            for _ in range(100):
                if await page.run("(document.activeElement.labels?.[0] || document.activeElement).innerText") == text:
                    return
                await page.press("Tab")
            raise AssertionError(text)

        await page.open(f"{serving.url}/")
        await page.shows("No topics yet")
        await go("Create the first topic")
        await page.press("Enter")
        await go("Name")
        await page.send("Input.insertText", text="typed")
        await page.press("Enter")
        await page.shows("typed")
        await page.until("!document.querySelector('dialog')")
        await page.open(f"{serving.url}/#/topics/typed/settings")
        await page.shows("Delete the topic")
        await go("Delete the topic")
        await page.press("Enter")
        await go("Type typed to confirm")
        await page.send("Input.insertText", text="typed")
        await page.press("Enter")
        await page.shows("No topics yet")
        assert (await http.get("/v1/topics/typed")).status_code == 404


HASTE = """{  // a page asks again within a second, not within three to ten
    const later = setTimeout;
    setTimeout = (act, ms) => later(act, ms < 1000 ? ms : ms / 10);
}"""


@pytest.mark.long
async def test_each_page_keeps_what_it_said_while_no_broker_answers(tmp_path: Path) -> None:
    async with console(tmp_path) as (page, serving, http):
        await fill(http)
        await page.send("Network.enable")
        await page.send("Page.addScriptToEvaluateOnNewDocument", source=HASTE)

        async def reach(is_there: bool) -> None:
            speed = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
            await page.send("Network.emulateNetworkConditions", offline=not is_there, **speed)

        for place in [*PAGES, "#/topics/orders/keys"]:
            await page.open("about:blank")
            await page.open(f"{serving.url}/{place}")
            await page.until("document.querySelector('h1') && !document.querySelector('p[aria-busy]')")
            said = await page.run("document.querySelector('h1').innerText")
            await reach(False)
            await page.shows("Not up to date", "Try again", said)
            assert await page.run("document.documentElement.scrollWidth <= innerWidth"), place
            await reach(True)
            await page.click("Try again")
            await page.until("!document.body.innerText.includes('Not up to date')")

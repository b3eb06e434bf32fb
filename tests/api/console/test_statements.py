"""The statements of the console's pages hold: pages of lists count what they show, states, sizes and times are those of
the API, and what is left out is told."""

import asyncio
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.console.test_console import console
from tests.api.console.test_key_space import behind
from tests.support.browser import Page, chromium
from tests.support.console_answers import Past, text

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        not chromium() and not os.environ.get("CI"), reason="there is no Chromium: `make chromium` installs it"
    ),
]
LONG = "a-name-that-is-as-long-as-names-may-be-" + "x" * 79 + "-and-ends"
LOOKS_AGAIN = "document.dispatchEvent(new Event('visibilitychange'))"  # and does not wait for its next turn
ROWS = "document.querySelectorAll('tbody tr').length"


async def subscribed(http: httpx.AsyncClient, topic: str, *names: str) -> None:
    for name in names:
        answer = await http.put(f"/v1/topics/{topic}/subscriptions/{name}", json={"start": "earliest"})
        assert answer.status_code == 201, answer.text


async def left_of(page: Page, heading: str) -> float:
    """How far a column of the table begins from the left of the page."""
    there = f"[...document.querySelectorAll('th')].find((one) => one.innerText === {heading!r})"
    found: float = await page.until(f"{there}.getBoundingClientRect().left")
    return found


@pytest.mark.long
async def test_pages_count_subscriptions_and_show_the_states_of_their_consumers(
    tmp_path: Path,
) -> None:
    async with console(tmp_path) as (page, serving, http):
        await page.open(f"{serving.url}/#/subscriptions")
        await page.shows("No subscription yet", "seaweedq pull TOPIC")
        for n in range(21):
            await http.put(f"/v1/topics/t{n:02}")
        await subscribed(http, "t20", "last")
        await page.open(f"{serving.url}/?#/subscriptions")
        await page.shows("last", "all acked")
        assert (await page.run(ROWS), await page.run("!!document.querySelector('nav.pages')")) == (1, False)

        sub = "/v1/topics/t20/subscriptions/last"
        await http.post("/v1/topics/t20/messages", json={"messages": [{"value": n} for n in range(40)]})
        await page.click("last")
        await page.run(LOOKS_AGAIN)
        await page.until("document.body.innerText.split('no consumers').length === 3")  # of a segment, too
        assert "delivering" not in await page.run("document.body.innerText")
        lease = (await http.post(f"{sub}/pull", json={"max_messages": 30})).json()["lease"]
        await page.run(LOOKS_AGAIN)
        await page.shows("delivering")
        assert "no consumer" not in await page.run("document.body.innerText")
        await http.post(f"{sub}/ack", json={"lease": lease})
        lease = (await http.post(f"{sub}/pull", json={})).json()["lease"]
        await http.post(f"{sub}/ack", json={"lease": lease})
        pull = asyncio.create_task(http.post(f"{sub}/pull", json={"wait_s": 30}, timeout=60))
        while not (shown := (await http.get(sub)).json())["waiting_pulls"]:
            assert not pull.done()
        await page.run(LOOKS_AGAIN)
        waits = "[...document.querySelectorAll('.whole dt')].find((one) => one.innerText === 'Open long polls')"
        await page.until(f"{waits}.nextSibling.innerText === '1'")
        cells = "[...document.querySelector('tr.opened').cells].map((one) => one.innerText)"
        assert (await page.run(cells))[10:] == [str(shown["consumers"]), "all acked"]
        pull.cancel()

        await subscribed(http, "t00", *(f"s{n:02}" for n in range(20)))
        await page.open(f"{serving.url}/#/subscriptions")
        await page.shows("1 to 20 of 21")
        await page.until(f"{ROWS} === 20")
        await page.click("Next")
        await page.shows("21 to 21 of 21", "last")
        await page.open(f"{serving.url}/#/subscriptions/t01")
        await page.shows("No subscription of t01 yet", "seaweedq pull t01 ")


async def test_sizes_of_files_stand_beside_tails_and_long_names_hide_no_column(
    tmp_path: Path,
) -> None:
    async with console(tmp_path) as (page, serving, http):
        await http.put(f"/v1/topics/{LONG}")
        await subscribed(http, LONG, LONG)
        message = {"key": LONG, "value": "v", "timestamp": "2026-01-31T12:00:00.123456Z", "headers": {LONG: "h"}}
        await http.post(f"/v1/topics/{LONG}/messages", json={"messages": [message]})
        await page.size(1280, 900)
        await page.open(f"{serving.url}/")
        await page.shows("Not in files yet")
        cells = "[...document.querySelectorAll('tbody td.number')].slice(1, 3).map((one) => one.innerText)"
        await page.until(f"{cells}[0] === '0 B' && {cells}[1] !== '0 B' && {cells}[1] !== '–'")
        await http.post(f"/v1/topics/{LONG}/flush")
        await page.run(LOOKS_AGAIN)
        await page.until(f"{cells}[1] === '0 B' && {cells}[0] !== '0 B'")
        assert await left_of(page, "Messages") < 450
        assert LONG in await page.run("document.querySelector('tbody th').innerText"), "all of it is read aloud"

        await page.open(f"{serving.url}/#/subscriptions")
        assert await left_of(page, "Behind") < 900
        await page.open(f"{serving.url}/#/topics/{LONG}")
        await page.shows(":00.123456")
        assert await left_of(page, "Value") < 800
        await page.click("0-0")
        await page.shows("Headers")
        assert await page.run("document.querySelector('.headers dd').getBoundingClientRect().right") <= 1280
        assert LONG in await page.run("document.querySelector('.whole code').innerText")
        assert await page.run("document.documentElement.scrollWidth") <= 1280

        await page.press("Tab")  # from the page's beginning
        await page.run("document.querySelector('.skip').focus()")
        below = "document.querySelector('.skip').getBoundingClientRect().bottom"
        assert await page.run(f"{below} <= document.querySelector('.brand').getBoundingClientRect().top")

        durations = "import('./console/format.js').then((one) => [one.duration(150), one.duration(90_061), "
        durations += "one.duration(90_061.5, true), one.duration(0.25), one.duration(7200), one.size(1023 * 1024)])"
        shown = ["2 min 30 s", "1 d 1 h", "1 d 1 h 1 min 1.5 s", "0.25 s", "2 h", "1,023 KiB"]
        assert await page.run(durations) == shown


@pytest.mark.long
async def test_a_page_of_messages_tells_of_more_and_has_sealed_segments_newest(
    tmp_path: Path,
) -> None:
    async with console(tmp_path) as (page, serving, http):
        await http.put("/v1/topics/cut")
        old = [{"key": "a", "value": n, "timestamp": f"2026-01-01T00:00:{n:02}Z"} for n in range(50)]
        await http.post("/v1/topics/cut/messages", json={"messages": old})
        await page.open(f"{serving.url}/#/topics/cut")
        await page.fill("At most", "20")
        await page.click("Show")
        await page.shows("The newest 20 messages; about 30 older messages are not shown")
        await page.fill("Messages", "key")
        await page.fill("Key", "a")
        await page.click("Show")
        await page.shows("50 messages searched", "The newest 20 messages; more messages are not shown")
        await page.fill("Messages", "time")
        await page.fill("Local time", "2025-12-30T00:00:00")
        await page.click("Show")
        await page.shows("The first 20 messages; more messages are not shown")

        newest = {"key": "b", "value": "the newest one", "timestamp": text(datetime.now(UTC))}
        await http.post("/v1/topics/cut/messages", json={"messages": [newest]})
        assert (await http.post("/v1/topics/cut/segments/0/roll")).is_success
        await http.post("/v1/topics/cut/messages", json={"messages": old})
        await page.open(f"{serving.url}/?#/topics/cut")
        await page.fill("At most", "20")
        await page.click("Show")
        await page.shows("The newest 20 messages;", "the newest one")


async def test_what_is_left_out_of_a_table_is_told(tmp_path: Path) -> None:
    past = Past()
    file: dict[str, Any] = {
        "segment": 0,
        "first_offset": 0,
        "next_offset": 9,
        "bytes": 1 << 20,
        "max_timestamp": text(past.begin),
    }
    answers = past.answers()
    listed = answers["v1/topics"]
    segments = [{**one, "rates": None if one["id"] == 5 else one["rates"]} for one in past.segments]
    answers |= {
        "v1/topics": lambda: listed() | {"unreadable": ["later"]},
        "v1/topics/big": lambda: past.topic() | {"start_offsets": {"0": 1234}},
        "v1/topics/big/segments": lambda: {"segments": segments, "unreadable": [77]},
        "v1/topics/big/files": lambda: {"files": [file | {"name": f"{n}.parquet"} for n in range(3)], "next": "0/2"},
        "v1/subscriptions": lambda: {"subscriptions": [], "unreadable": [{"topic": "big", "name": "newer"}]},
    }
    async with behind(tmp_path, answers) as (page, url, _, _):
        await page.open(f"{url}#/topics")
        await page.shows("which are not shown: later", "≥ ")
        await page.open(f"{url}#/topics/big/files")
        await page.shows(
            "The first 3 files, 3 MiB; more files follow", "List more files", "Deleted by retention", "1,234"
        )
        await page.shows("read these segments, which are not shown: 77", "≥ ")
        await page.open(f"{url}#/topics/big/segments")
        await page.shows("Show 6 sealed segments", "Messages per second")
        await page.open(f"{url}#/subscriptions")
        await page.shows("which are not shown: big/newer")

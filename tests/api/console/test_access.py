"""The console at a broker that asks for tokens: a form, a token in the page's memory alone, downloads that show it."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.support.brokers.in_process import running
from tests.support.brokers.serving import Served, served
from tests.support.browser import FAINT, UNNAMED, Page, browser, chromium

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        not chromium() and not os.environ.get("CI"), reason="there is no Chromium: `make chromium` installs it"
    ),
]
TOKEN = "the-token-of-these-tests-may-do-everything"
SHOWN = {"authorization": f"Bearer {TOKEN}"}
FORM = "This broker requires a token"
PAYLOAD = b"a payload by reference" * 100
KEPT = "JSON.stringify([document.cookie, location.href, {...localStorage}, {...sessionStorage}])"


@pytest.fixture
async def console(tmp_path: Path) -> AsyncIterator[tuple[Page, Served]]:
    """A page, and a broker with auth=required that has a topic with a payload. No error is in the browser's log."""
    (tmp_path / "token").write_text(TOKEN)
    given = {"auth": "required", "admin_token_file": str(tmp_path / "token")}
    async with running(tmp_path / "data", **given) as broker, served(broker) as serving, browser() as page:
        async with httpx.AsyncClient(
            base_url=f"{serving.url}/v1/topics/", headers=SHOWN, timeout=30, trust_env=False
        ) as http:
            await refer(http)
        yield page, serving
        assert page.errors == []


async def refer(http: httpx.AsyncClient) -> None:
    """Publishes a payload by reference to a new topic."""
    assert (await http.put("orders")).status_code == 201
    begun = (await http.post("orders/uploads", json={"size": len(PAYLOAD)})).json()
    link = httpx.URL(begun["url"])  # whose host the broker in this process only claims to have
    stored = await http.put(http.base_url.copy_with(raw_path=link.raw_path), content=PAYLOAD, headers=begun["headers"])
    assert stored.is_success, stored.text
    message = {"reference": {"upload_id": begun["upload_id"]}}
    sent = await http.post("orders/messages", json={"messages": [message]})
    assert sent.status_code == 200, sent.text


async def test_a_token_is_asked_for_shown_and_forgotten(console: tuple[Page, Served], tmp_path: Path) -> None:
    page, serving = console
    await page.open(f"{serving.url}/")
    await page.shows(FORM, "admin-token", "admin_token_file")
    assert await page.run("document.querySelector('input[type=password]').labels[0].innerText") == "Token"
    for dark in (True, False):
        await page.size(320, 700, dark)
        assert await page.run("document.documentElement.scrollWidth") <= 320
        assert await page.run(UNNAMED) == []
        assert await page.run(FAINT) == []
    for wrong, why in (("a token", "no blanks"), ("sq1_wrong", "Request failed")):
        await page.fill("Token", wrong)
        await page.click("Use token")
        await page.shows(FORM, why)
    await page.fill("Token", f" {TOKEN}\n")
    await page.click("Use token")
    await page.click("orders")
    await page.shows("payload of")
    assert TOKEN not in await page.run(KEPT)

    await page.send("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    await page.click("0-0")
    await page.click("Download")
    await page.click("Metrics")
    await saved(page, tmp_path / "orders-0-0", PAYLOAD)
    await saved(page, tmp_path / "metrics.txt", b"# HELP")

    await page.send("Page.reload")
    await page.shows(FORM)
    await page.fill("Token", TOKEN)
    await page.click("Use token")
    await page.shows("payload of")
    await page.click("Forget the token")
    await page.shows(FORM)
    assert not await page.run("document.body.innerText.includes('Forget the token')")


async def saved(page: Page, path: Path, beginning: bytes) -> None:
    """Waits until a download is there."""
    for _ in range(1000):
        if path.exists() and path.read_bytes().startswith(beginning):
            return
        await page.run("new Promise((done) => setTimeout(done, 20))")
    raise AssertionError(
        f"{path} is not there, but {[*path.parent.iterdir()]}; {await page.run('document.body.innerText')}"
    )

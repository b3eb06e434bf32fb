"""A headless Chromium over the DevTools protocol: pages are opened, asked, and what went wrong in them is collected."""

import asyncio
import base64
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--no-first-run",
    "--remote-debugging-port=0",
)
STARTS_S = 60
WAITS_S = 30


def chromium() -> str | None:
    """The browser's program, where there is one."""
    return os.environ.get("SEAWEEDQ_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")


class Page:
    """A tab; `errors` has what it threw, logged as an error, or was refused by a policy."""

    def __init__(self, connection: ClientConnection) -> None:
        self.errors: list[str] = []
        self._connection = connection
        self._last = 0
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._loop = asyncio.create_task(self._listen())

    async def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a command."""
        self._last += 1
        answer = self._answers[self._last] = asyncio.get_running_loop().create_future()
        await self._connection.send(json.dumps({"id": self._last, "method": method, "params": parameters}))
        found = await asyncio.wait_for(answer, WAITS_S)
        assert "error" not in found, (method, found["error"])
        result: dict[str, Any] = found["result"]
        return result

    async def open(self, url: str) -> None:
        """Goes to a URL."""
        await self.send("Page.navigate", url=url)

    async def run(self, script: str) -> Any:
        """The value of an expression, which may be a promise."""
        found = await self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def until(self, condition: str) -> Any:
        """Waits until an expression is true, and returns its value."""
        waiting = f"""new Promise((done, fail) => {{
            const end = Date.now() + {WAITS_S - 5}000;
            const look = () => {{
                let found;
                try {{ found = {condition}; }} catch {{ found = null; }}
                if (found) done(found);
                else if (Date.now() > end) fail(new Error({json.dumps(condition)} + " in: " + document.body.innerText));
                else setTimeout(look, 20);
            }};
            look();
        }})"""
        return await self.run(waiting)

    async def shows(self, *texts: str) -> None:
        """Waits until the page has all of these texts."""
        for text in texts:
            await self.until(f"document.body.innerText.includes({json.dumps(text)})")

    async def click(self, text: str) -> None:
        """Clicks on the first button or link of this text, or label."""
        named = f"(one.innerText.trim() === {json.dumps(text)} || one.ariaLabel === {json.dumps(text)})"
        place = "document.querySelector('dialog[open]') || document"
        await self.until(f"[...({place}).querySelectorAll('a, button')].find((one) => !one.disabled && {named})")
        await self.run(f"[...({place}).querySelectorAll('a, button')].find((one) => !one.disabled && {named}).click()")

    async def fill(self, label: str, value: str) -> None:
        """Puts a value into the field of this label, as a person who types does."""
        place = "document.querySelector('dialog[open]') || document"
        found = (
            f"""[...({place}).querySelectorAll('label')].find((one) => one.innerText.trim() === {json.dumps(label)})"""
        )
        await self.until(found)
        await self.run(f"""(() => {{
            const field = {found}.control;
            const kind = Object.getPrototypeOf(field);
            Object.getOwnPropertyDescriptor(kind, "value").set.call(field, {json.dumps(value)});
            field.dispatchEvent(new Event(field.tagName === "SELECT" ? "change" : "input", {{bubbles: true}}));
        }})()""")

    async def press(self, key: str, shift: bool = False) -> None:
        """Presses a key."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, "PageUp": 33, "ArrowLeft": 37, "ArrowUp": 38, "+": 187, "0": 48}
        more = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key], "modifiers": 8 if shift else 0}
        if key == "Enter":
            more["text"] = "\r"
        await self.send("Input.dispatchKeyEvent", type="keyDown", **more)
        await self.send("Input.dispatchKeyEvent", type="keyUp", **more)

    async def size(self, width: int, height: int = 900, dark: bool = False) -> None:
        """Sets the size of the screen, and the colours that its owner prefers."""
        await self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        wishes = {"prefers-color-scheme": "dark" if dark else "light", "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in wishes.items()]
        await self.send("Emulation.setEmulatedMedia", features=features)

    async def picture(self, path: Path) -> None:
        """Writes a screenshot."""
        path.write_bytes(base64.b64decode((await self.send("Page.captureScreenshot", format="png"))["data"]))

    async def close(self) -> None:
        """Ends the listening."""
        self._loop.cancel()
        with suppress(asyncio.CancelledError, ConnectionClosed):
            await self._loop

    async def _listen(self) -> None:
        async for text in self._connection:
            message = json.loads(text)
            if waiting := self._answers.pop(message.get("id"), None):
                waiting.set_result(message)
            elif error := _error_of(message.get("method"), message.get("params", {})):
                self.errors.append(error)


def _error_of(method: str | None, parameters: dict[str, Any]) -> str | None:
    """What an event tells of an error. A request that got no answer, or a refusal, is no defect of the page."""
    if method == "Runtime.exceptionThrown":
        details = parameters["exceptionDetails"]
        return str(details.get("exception", {}).get("description") or details["text"])
    if method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "assert", "warning"):
        return str([one.get("value") or one.get("description") for one in parameters["args"]])
    if method == "Log.entryAdded":
        entry = parameters["entry"]
        return str(entry["text"]) if entry["level"] in ("error", "warning") and entry["source"] != "network" else None
    return None


@asynccontextmanager
async def browser() -> AsyncIterator[Page]:
    """A page of a fresh browser, which ends with the block."""
    program = chromium()
    assert program, "there is no Chromium: apt-get install chromium, or name it in SEAWEEDQ_CHROMIUM"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        process = await asyncio.create_subprocess_exec(
            program, *ARGUMENTS, f"--user-data-dir={folder}", "about:blank", stderr=asyncio.subprocess.PIPE
        )
        try:
            url = await asyncio.wait_for(_page_url(process), STARTS_S)
            async with connect(url, max_size=None, proxy=None) as connection:
                page = Page(connection)
                for domain in ("Page", "Runtime", "Log"):
                    await page.send(f"{domain}.enable")
                try:
                    yield page
                finally:
                    await page.close()
        finally:
            process.kill()
            await process.wait()


async def _page_url(process: asyncio.subprocess.Process) -> str:
    """The address of the first tab's protocol: the browser prints its own, and lists its tabs."""
    assert process.stderr is not None
    while line := (await process.stderr.readline()).decode():
        if line.startswith("DevTools listening on "):
            return await _first_tab(line.split()[-1])
    raise AssertionError("the browser ended at its start")


async def _first_tab(url: str) -> str:
    async with connect(url, max_size=None, proxy=None) as connection:
        while True:
            await connection.send(json.dumps({"id": 1, "method": "Target.getTargets"}))
            targets = json.loads(await connection.recv())["result"]["targetInfos"]
            for one in targets:
                if one["type"] == "page":
                    return f"{url.split('/devtools/')[0]}/devtools/page/{one['targetId']}"
            await asyncio.sleep(0.05)


# The fields, buttons and links that have no name for those who do not see them.
UNNAMED = """[...document.querySelectorAll('input, select, textarea, button, a, [role=img], [role=region]')]
    .filter((one) => ![one.ariaLabel, one.innerText, ...[...(one.labels || [])].map((label) => label.textContent)]
        .some((name) => (name || "").trim()))
    .map((one) => one.outerHTML)"""

# The texts whose contrast with what is behind them is below 4.5 (WCAG AA). Buttons that are off may be faint.
FAINT = """(() => {
    const channel = (value) => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    const parse = (text) => text.match(/[0-9.]+/g).map(Number);
    const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
    const behind = (one) => {
        for (; one; one = one.parentElement) {
            const found = parse(getComputedStyle(one).backgroundColor);
            if (found.length < 4 || found[3] === 1) return found;
        }
        return parse(getComputedStyle(document.documentElement).backgroundColor);
    };
    const faint = [];
    for (const one of document.querySelectorAll('main *, header *, footer *')) {
        const own = [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
        if (!own || one.closest(':disabled') || !one.offsetParent) continue;
        const [a, b] = [light(parse(getComputedStyle(one).color)), light(behind(one))].sort((a, b) => b - a);
        if ((a + 0.05) / (b + 0.05) < 4.5) faint.push([one.tagName, one.innerText, getComputedStyle(one).color]);
    }
    return faint;
})()"""

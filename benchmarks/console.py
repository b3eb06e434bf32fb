"""Measures the console in a headless Chromium: the key space of 10,000 segments, and 1,000 topics. Prints, for each,
the time until it shows, the frames while a person points and zooms, and what scripts, layout and all tasks took of a
processor.

The answers are made up (tests/support/console_answers), so the broker costs nothing. Run it as
`python -m benchmarks.console`; it needs Chromium.
"""

import asyncio
import json
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.support.brokers.in_process import running
from tests.support.brokers.serving import served
from tests.support.browser import Page, browser
from tests.support.console_answers import Past, text
from tests.support.http.prefix_proxy import proxied

MEASURES_S = 10
FRAMES = f"""new Promise((done) => {{
    const found = [];
    let last = performance.now();
    const end = last + {MEASURES_S * 1000};
    const look = (now) => {{
        found.push(now - last);
        last = now;
        if (now < end) requestAnimationFrame(look);
        else done(found.slice(1).sort((a, b) => a - b));
    }};
    requestAnimationFrame(look);
}})"""
MOVES = """(() => {
    const plane = document.querySelector('.plane');
    const {left, top, width, height} = plane.getBoundingClientRect();
    let n = 0;
    setInterval(() => {
        n += 1;
        const place = {clientX: left + width * (0.5 + 0.45 * Math.sin(n / 9)), clientY: top + height * (0.5 + 0.45 * Math.cos(n / 7))};
        plane.dispatchEvent(new PointerEvent('pointermove', {...place, pointerType: 'mouse', bubbles: true}));
        if (n % 60 === 0) plane.dispatchEvent(new KeyboardEvent('keydown', {key: n % 240 ? '+' : '0', bubbles: true}));
    }, 33);
})()"""  # noqa: E501
TYPES = """(() => {
    const field = document.querySelector('input[type=search]');
    let n = 0;
    setInterval(() => {
        field.value = ['', 't', 'topic-0', 'topic-09', '9'][n++ % 5];
        field.dispatchEvent(new Event('input', {bubbles: true}));
    }, 200);
})()"""


def many_topics(count: int) -> dict[str, Callable[[], Any]]:
    """The answers of a broker with so many topics."""
    past = Past(segments=8)
    names = [f"topic-{n:04d}" for n in range(count)]
    created = {"state": "active", "format": "json", "created_at": text(datetime.now(UTC))}
    answers: dict[str, Callable[[], Any]] = {"v1/topics": lambda: {"topics": [{"name": n, **created} for n in names]}}
    for name in names:
        answers[f"v1/topics/{name}"] = lambda name=name: {**past.topic(), "name": name}  # type: ignore[misc]
        answers[f"v1/topics/{name}/segments"] = lambda: {"segments": past.segments}
    return answers


async def metrics(page: Page) -> dict[str, float]:
    """What the page has spent, by kind."""
    found = (await page.send("Performance.getMetrics"))["metrics"]
    return {one["name"]: one["value"] for one in found}


async def measure(name: str, broker_url: str, answers: dict[str, Any], place: str, ready: str, acts: str) -> None:
    """Opens a page and prints its figures."""
    async with proxied(broker_url, answers=answers) as (url, _), browser() as page:
        await page.send("Performance.enable", timeDomain="threadTicks")
        await page.size(1280, 1000)
        began = time.perf_counter()
        await page.open(f"{url}{place}")
        await page.until(ready)
        shown_s = time.perf_counter() - began
        before = await metrics(page)
        await page.run(acts)
        frames = await page.run(FRAMES)
        after = await metrics(page)
        spent = {
            kind: (after[f"{kind}Duration"] - before[f"{kind}Duration"]) / MEASURES_S
            for kind in ("Script", "Layout", "Task")
        }
        shares = ", ".join(f"{kind.lower()} {share:.0%}" for kind, share in spent.items())
        at = [frames[int(len(frames) * share)] for share in (0.5, 0.95, 0.99)]
        told = ", ".join(f"{one:.0f}" for one in [*at, frames[-1]])
        print(
            f"{name}: shown after {shown_s:.1f} s; frames of {MEASURES_S} s: {len(frames)}, "
            f"ms at the median, 95%, 99%, longest: {told}; of a processor {shares}; "
            f"{after['Nodes']:.0f} nodes, {after['JSHeapUsedSize'] / 2**20:.0f} MiB"
        )
        assert page.errors == []


async def main() -> None:
    """Prints all figures."""
    with tempfile.TemporaryDirectory() as folder:
        async with running(Path(folder)) as broker, served(broker) as serving:
            drawn = "document.querySelector('.plane') && document.querySelector('.legend').innerText.includes('10')"
            for count in (8, 10_000):
                past = Past(segments=count)
                await measure(f"{count:,} segments", serving.url, cached(past), "#/topics/big/keys", drawn, MOVES)
            rows = (
                "document.querySelectorAll('tbody tr').length >= 25 && document.body.innerText.includes('12,345,678')"
            )
            await measure("1,000 topics", serving.url, many_topics(1_000), "#/topics", rows, TYPES)


def cached(past: Past) -> dict[str, Any]:
    """The answers, made once: what they cost is not the console's."""
    made = {path: json.dumps(answer()).encode() for path, answer in past.answers().items()}
    return {path: lambda answer=answer: answer for path, answer in made.items()}


if __name__ == "__main__":
    asyncio.run(main())

"""The files that little load makes where puts have no budget: a recovery would have 4,000 slots to read at most, and a
publish that comes alone is a slot of its own. How many Parquet files come of that in an hour, and of how many puts.

Each load has a broker of its own, on a store whose puts take a fixed time. The limit is what the bounds on slots let
through at most: the window is full until there are many, and from then on they lie apart.
"""

import asyncio
import itertools
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import uvloop

from benchmarks import server
from benchmarks.http import Connection, Connections, request
from benchmarks.metrics import metrics_of
from benchmarks.object_journal import WINDOW
from benchmarks.result import Result
from benchmarks.schedule import on_schedule
from seaweedq import Client
from seaweedq.journal.object_journal import MOST_SLOTS
from seaweedq.journal.pacing import MANY_APART_S, MANY_NEEDED

PUT_MS, SEGMENTS, PUBLISHERS, EACH_PER_S, LOOK_S = 3.0, 4, 20, 5, 1.0
TOPIC = "little"
SECONDS = float(os.environ.get("SEAWEEDQ_BENCH_FILES_S", "900"))
CYCLE_S = MANY_NEEDED * PUT_MS / 1000 / WINDOW + (MOST_SLOTS - MANY_NEEDED) * MANY_APART_S
MOST_AN_HOUR = 3600 / CYCLE_S  # of a segment
CREATES, DELETES = (f'seaweedq_store_requests_total{{operation="{one}"}}' for one in ("create", "delete"))

PUTS, SLOTS = "seaweedq_journal_puts_total", "seaweedq_commits_total"

Load = Callable[[Connections, list[float]], Awaitable[object]]


@dataclass
class Found:
    """What a load has come to: seconds until each answer, and what the broker did meanwhile."""

    took_s: list[float] = field(default_factory=list)
    lasted_s: float = 0
    files: int = 0
    puts: float = 0
    slots: float = 0
    most_there: float = 0  # objects of the journal at a time


def measure(folder: Path) -> Iterator[Result]:
    """All loads at the same time."""
    with ExitStack() as stack:
        options = ("--journal-puts-per-s", "0")
        ports = [stack.enter_context(server.slow_broker(folder / name, PUT_MS, *options)).port for name in LOADS]
        found = uvloop.run(_all(ports))
    for name, one in zip(LOADS, found, strict=True):
        yield from _results(name, one)


def _results(name: str, one: Found) -> Iterator[Result]:
    hours = one.lasted_s / 3600
    note = (
        f"puts of {PUT_MS:g} ms, {SEGMENTS} segments, {one.lasted_s:.0f} s: {one.files} files, {one.slots:,.0f} slots, "
        f"{one.puts:,.0f} puts, {len(one.took_s):,} publishes of p50 {median(one.took_s) * 1000:.1f} ms; at most "
        f"{one.most_there:,.0f} slots at a time"
    )
    yield Result(
        name=f"journal_files, {name}",
        figure=one.files / SEGMENTS / hours,
        unit="files an hour and segment",
        limit=MOST_AN_HOUR,
        limit_is=f"{MOST_SLOTS:,} slots, as fast as they may come",
        target=1,
        target_of="ratio",
        better="lower",
        note=note,
    )
    yield Result(name=f"journal_files, {name}, puts", figure=one.puts / one.lasted_s, unit="puts/s", note=note)


async def _all(ports: Sequence[int]) -> Sequence[Found]:
    loads = zip(ports, LOADS.values(), strict=True)
    return await asyncio.gather(*(_loaded(port, connections, load) for port, (connections, load) in loads))


async def _loaded(port: int, connections: int, load: Load) -> Found:
    """One load, while somebody looks how many slots there are."""
    url, found = f"http://127.0.0.1:{port}", Found()
    opened = [await Connection.to(port) for _ in range(connections)]
    await opened[0].ask_json("PUT", f"/v1/topics/{TOPIC}", {"initial_segments": SEGMENTS})
    before, begun = metrics_of(url), time.perf_counter()
    watching = asyncio.create_task(_watch(url, found))
    await load(opened, found.took_s)
    found.lasted_s = time.perf_counter() - begun
    watching.cancel()
    after = metrics_of(url)
    found.puts, found.slots = (after[name] - before[name] for name in (PUTS, SLOTS))
    for connection in opened:
        connection.close()
    with Client(url) as client:
        found.files = len(list(client.files(TOPIC)))
    return found


async def _watch(url: str, found: Found) -> None:
    while True:
        seen = await asyncio.to_thread(metrics_of, url)
        found.most_there = max(found.most_there, seen[CREATES] - seen[DELETES])
        await asyncio.sleep(LOOK_S)


async def _alone(opened: Connections, took_s: list[float]) -> None:
    """One publisher, as fast as answers come."""
    end = time.perf_counter() + SECONDS
    for number in itertools.count():
        begun = time.perf_counter()
        await opened[0].ask(_message(number))
        took_s.append((now := time.perf_counter()) - begun)
        if now > end:
            return


async def _several(opened: Connections, took_s: list[float]) -> None:
    """Publishers that come on a schedule, whether they are answered or not."""
    numbers = itertools.count()

    async def send(connection: Connection, due: float) -> None:
        await connection.ask(_message(next(numbers)))
        took_s.append(time.perf_counter() - due)

    await on_schedule(opened, PUBLISHERS * EACH_PER_S, SECONDS, send)


def _message(number: int) -> bytes:
    body = b'{"key":"key-%d","value":{"n":%d}}' % (number, number)
    return request(f"/v1/topics/{TOPIC}/messages", body, "application/json")


# Each with its connections.
LOADS: dict[str, tuple[int, Load]] = {
    "one alone": (1, _alone),
    f"{PUBLISHERS} of {EACH_PER_S}/s": (PUBLISHERS, _several),
}

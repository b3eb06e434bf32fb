"""10 million messages through a broker with a budget of 512 MiB: how much memory it ever has."""

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path

from benchmarks import messages, server
from benchmarks.http import Connection, Connections, Failed, run
from benchmarks.result import Result

COUNT, BUDGET_MIB, CONNECTIONS, DISTINCT = 10_000_000, 512, 8, 50


def measure(folder: Path) -> Iterator[Result]:
    """Half as Arrow bytes, half as NDJSON, as fast as they are taken, and a fetch of old rows now and then."""
    with server.broker(folder / "data", "--memory-budget-bytes", str(BUDGET_MIB << 20)) as broker:
        refused = run(broker.port, CONNECTIONS, _publish)
        peak = broker.memory_bytes("VmHWM")
    yield Result(
        name="memory",
        figure=peak / 2**20,
        unit="MiB",
        limit=BUDGET_MIB,
        limit_is="the broker's budget",
        target=1024,
        better="lower",
        note=f"{COUNT:,} messages, half Arrow, half NDJSON, read meanwhile; {refused} times a 503 came first",
    )


async def _publish(opened: Connections) -> int:
    *publishers, reader = opened
    await reader.ask_json("PUT", "/v1/topics/arrow", {"format": "bytes", "initial_segments": 4})
    await reader.ask_json("PUT", "/v1/topics/lines", {"initial_segments": 4})
    arrow = [messages.arrow_request("arrow", batch) for batch in messages.arrow_batches(DISTINCT)]
    lines = [messages.ndjson_request("lines", body) for body in messages.ndjson_bodies(DISTINCT)]
    pairs = zip(itertools.cycle(arrow), itertools.cycle(lines), strict=True)
    left = itertools.islice(itertools.chain.from_iterable(pairs), COUNT // messages.BATCH)
    reading = asyncio.create_task(_read(reader))
    refused = sum(await asyncio.gather(*(_send(connection, left) for connection in publishers)))
    reading.cancel()
    await asyncio.wait([reading])
    return refused


async def _send(connection: Connection, left: Iterator[bytes]) -> int:
    """Publish until nothing is left: how often the broker had to be asked again."""
    refused = 0
    for one in left:
        while True:
            try:
                await connection.ask(one)
                break
            except Failed as error:
                if not str(error).startswith("503"):
                    raise
                refused += 1
                await asyncio.sleep(0.1)
    return refused


async def _read(connection: Connection) -> None:
    for number in itertools.count():
        path = f"/v1/topics/lines/segments/{number % 4}/messages?limit=10000&offset={number // 4 * 10_000}"
        try:
            await connection.ask_json("GET", path)
        except Failed:
            pass  # beyond the end, or refused
        await asyncio.sleep(0.02)

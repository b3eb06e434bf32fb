"""1,000 topics with 10,000 segments in one broker, beside one topic with one segment: latency of a publish, memory of a
message."""

import asyncio
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import messages, server
from benchmarks.http import Connection, Connections, request, run
from benchmarks.result import Result

TOPICS, SEGMENTS, PROBES, BATCHES = 1_000, 10, 1_500, 40
CREATE_S = 90.0


def measure(folder: Path) -> Iterator[Result]:
    """Creation is bounded in time; how many topics there were is said."""
    with server.broker(folder / "one") as broker:
        run(broker.port, 8, lambda opened: _create(opened, 1, 1))
        one_ms, one_bytes = _load(broker, 1)
    with server.broker(folder / "many") as broker:
        begun = time.perf_counter()
        created: int = run(broker.port, 8, lambda opened: _create(opened, TOPICS, SEGMENTS))
        took_s = time.perf_counter() - begun
        many_ms, many_bytes = _load(broker, created)
    note = f"{created:,} topics of {SEGMENTS} segments were created in {took_s:.0f} s"
    yield Result(
        name="topics: publish p50",
        figure=many_ms,
        unit="ms",
        limit=one_ms,
        limit_is="one topic of one segment",
        target=1.2,
        target_of="ratio",
        better="lower",
        note=f"one after the other, topics in turn; {note}",
    )
    yield Result(
        name="topics: memory",
        figure=many_bytes,
        unit="B/msg",
        limit=one_bytes,
        limit_is="one topic of one segment",
        target=1.2,
        target_of="ratio",
        better="lower",
        note=f"growth of resident memory by {BATCHES * messages.BATCH:,} messages in tails",
    )


def _load(broker: server.Server, topics: int) -> tuple[float, float]:
    """Milliseconds of a publish (median), and resident bytes a message."""
    run(broker.port, 8, lambda opened: _warm(opened, topics))
    latency: float = run(broker.port, 1, lambda opened: _probe(opened[0], topics))
    before = broker.memory_bytes()
    run(broker.port, 4, lambda opened: _fill(opened, topics))
    return latency, (broker.memory_bytes() - before) / (BATCHES * messages.BATCH)


async def _create(opened: Connections, topics: int, segments: int) -> int:
    left, created, begun = iter(range(topics)), 0, time.perf_counter()

    async def work(connection: Connection) -> None:
        nonlocal created
        for number in left:
            if time.perf_counter() - begun > CREATE_S:
                return
            await connection.ask_json("PUT", f"/v1/topics/t{number}", {"initial_segments": segments})
            created += 1

    await asyncio.gather(*map(work, opened))
    return created


async def _warm(opened: Connections, topics: int) -> None:
    left = iter(range(topics))

    async def work(connection: Connection) -> None:
        for number in left:
            await connection.ask(_single(number))

    await asyncio.gather(*map(work, opened))


async def _probe(connection: Connection, topics: int) -> float:
    times = []
    for number in range(PROBES):
        begun = time.perf_counter()
        await connection.ask(_single(number % topics))
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1000


async def _fill(opened: Connections, topics: int) -> None:
    left = iter(enumerate(messages.ndjson_bodies(BATCHES)))

    async def work(connection: Connection) -> None:
        for number, body in left:
            await connection.ask(messages.ndjson_request(f"t{number * 37 % topics}", body))

    await asyncio.gather(*map(work, opened))


def _single(topic: int) -> bytes:
    return request(f"/v1/topics/t{topic}/messages", b'{"key":"key","value":{"n":1}}', "application/json")

"""Pull and ack of JSON messages in batches of 500, beside an empty app that answers as many bytes."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import messages, server
from benchmarks.http import Connection, Connections, ask_all, request, run
from benchmarks.pulled import PULL, SIZE, ack, ids_of, sample
from benchmarks.result import Result

BATCHES, CONNECTIONS = 60, 4
COUNT = BATCHES * messages.BATCH
SUBSCRIPTION = "/v1/topics/pull/subscriptions"


def measure(folder: Path) -> Iterator[Result]:
    """Two subscriptions one after the other, each read to its end; the better one."""
    with server.broker(folder / "data") as broker, server.empty_app() as empty:
        speed, pulled_bytes = run(broker.port, CONNECTIONS, _consume_all)
        limit: float = run(empty.port, CONNECTIONS, lambda opened: _empty(opened, pulled_bytes))
    yield Result(
        name="pull",
        figure=speed,
        unit="msg/s",
        limit=limit,
        limit_is="an empty uvicorn app that answers as many bytes, ids read and sent back all the same",
        target=150_000,
        note=f"{COUNT:,} messages in batches of {SIZE} on {CONNECTIONS} connections, acks fsynced; better of two",
    )


async def _consume_all(opened: Connections) -> tuple[float, int]:
    await opened[0].ask_json("PUT", "/v1/topics/pull", {})
    await ask_all(opened, (messages.ndjson_request("pull", body) for body in messages.ndjson_bodies(BATCHES)))
    times = []
    for name in ("a", "b"):
        await opened[0].ask_json("PUT", f"{SUBSCRIPTION}/{name}", {"start": "earliest"})
        begun = time.perf_counter()
        counts = await together(opened, f"{SUBSCRIPTION}/{name}")
        times.append(time.perf_counter() - begun)
        assert sum(counts) == COUNT, f"{sum(counts)} of {COUNT} messages were delivered"
    await opened[0].ask_json("PUT", f"{SUBSCRIPTION}/c", {"start": "earliest"})
    answer = await opened[0].ask(request(f"{SUBSCRIPTION}/c/pull", PULL, "application/json"))
    return COUNT / min(times), len(answer)


async def together(opened: Connections, path: str) -> list[int]:
    """Read a subscription to its end on all connections: how many messages each had."""
    return await asyncio.gather(*(_consume(connection, path) for connection in opened))


async def _consume(connection: Connection, path: str) -> int:
    pull = request(f"{path}/pull", PULL, "application/json")
    count = 0
    while ids := ids_of(await connection.ask(pull)):
        count += len(ids)
        await connection.ask(ack(f"{path}/ack", ids))
    return count


async def _empty(opened: Connections, size: int) -> float:
    answer = sample(size, COUNT)
    pull, rounds = request(f"/{size}", PULL, "application/json"), 400
    begun = time.perf_counter()

    async def turn(connection: Connection) -> None:
        for _ in range(rounds // CONNECTIONS):
            await connection.ask(pull)
            await connection.ask(ack("/30", ids_of(answer)))

    await asyncio.gather(*map(turn, opened))
    return rounds * SIZE / (time.perf_counter() - begun)

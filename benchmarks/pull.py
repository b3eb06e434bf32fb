"""Pull and ack of JSON messages in batches of 500, beside an empty app that answers as many bytes."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from benchmarks import messages, server
from benchmarks.http import Connection, Connections, ask_all, request, run
from benchmarks.result import Result

BATCHES, SIZE, CONNECTIONS = 60, 500, 4
COUNT = BATCHES * messages.BATCH
SUBSCRIPTION = "/v1/topics/pull/subscriptions"


class _Message(msgspec.Struct):
    id: str


class _Pulled(msgspec.Struct):
    messages: list[_Message]


_pulled = msgspec.json.Decoder(_Pulled)
_PULL = b'{"max_messages":%d}' % SIZE


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
    answer = await opened[0].ask(request(f"{SUBSCRIPTION}/c/pull", _PULL, "application/json"))
    return COUNT / min(times), len(answer)


async def together(opened: Connections, path: str) -> list[int]:
    """Read a subscription to its end on all connections: how many messages each had."""
    return await asyncio.gather(*(_consume(connection, path) for connection in opened))


async def _consume(connection: Connection, path: str) -> int:
    pull = request(f"{path}/pull", _PULL, "application/json")
    count = 0
    while ids := _ids(await connection.ask(pull)):
        count += len(ids)
        await connection.ask(_ack(f"{path}/ack", ids))
    return count


async def _empty(opened: Connections, size: int) -> float:
    ids = [f"0-{number}" for number in range(COUNT, COUNT + SIZE)]
    sample = msgspec.json.encode({"messages": [{"id": one, "value": "x" * (size // SIZE - 40)} for one in ids]})
    pull, rounds = request(f"/{size}", _PULL, "application/json"), 400
    begun = time.perf_counter()

    async def turn(connection: Connection) -> None:
        for _ in range(rounds // CONNECTIONS):
            await connection.ask(pull)
            await connection.ask(_ack("/30", _ids(sample)))

    await asyncio.gather(*map(turn, opened))
    return rounds * SIZE / (time.perf_counter() - begun)


def _ids(answer: bytes) -> list[str]:
    return [message.id for message in _pulled.decode(answer).messages]


def _ack(path: str, ids: list[str]) -> bytes:
    return request(path, msgspec.json.encode({"ids": ids}), "application/json")

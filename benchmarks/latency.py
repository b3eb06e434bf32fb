"""From publish to delivery at 1,000 messages/s, one a request, beside empty round trips at the same rate."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import server
from benchmarks.http import Connection, Connections, request, run
from benchmarks.result import Result

RATE, SECONDS, WARM_S, SENDERS = 1_000, 8.0, 1.0, 32
PULL = "/v1/topics/latency/subscriptions/s/pull"


class _Message(msgspec.Struct):
    id: str
    value: float


class _Pulled(msgspec.Struct):
    messages: list[_Message]


_pulled = msgspec.json.Decoder(_Pulled)


def measure(folder: Path) -> Iterator[Result]:
    """Each percentile beside the same one of the empty app."""
    with server.empty_app() as empty:
        limits: list[float] = run(empty.port, SENDERS, _round_trips)
    with server.broker(folder / "data") as broker:
        times: list[float] = run(broker.port, SENDERS + 2, _deliveries)
    for name, share, target in (("p50", 0.5, 3.0), ("p99", 0.99, 15.0)):
        yield Result(
            name=f"latency {name}",
            figure=percentile(times, share),
            unit="ms",
            limit=percentile(limits, share),
            limit_is="round trips to an empty uvicorn app at the same rate",
            target=target,
            better="lower",
            note=f"{RATE} messages/s on a schedule for {SECONDS:g} s, one long-polling consumer that acks",
        )


async def _round_trips(opened: Connections) -> list[float]:
    prepared = request("/90", b'{"value":1234567890.123456}', "application/json")
    times: list[float] = []

    async def send(connection: Connection, due: float) -> None:
        await connection.ask(prepared)
        times.append(time.perf_counter() - due)

    await _on_schedule(opened, send)
    return times


async def _deliveries(opened: Connections) -> list[float]:
    *senders, puller, acker = opened
    await puller.ask_json("PUT", "/v1/topics/latency", {})
    await puller.ask_json("PUT", "/v1/topics/latency/subscriptions/s", {})
    times: list[float] = []
    consumer = asyncio.create_task(_consume(puller, acker, times))

    async def send(connection: Connection, due: float) -> None:
        await connection.ask(request("/v1/topics/latency/messages", b'{"value":%.9f}' % due, "application/json"))

    await _on_schedule(senders, send)
    await consumer
    return times


async def _consume(puller: Connection, acker: Connection, times: list[float]) -> None:
    pull = request(PULL, b'{"max_messages":1000,"wait_s":2}', "application/json")
    acked: asyncio.Future[Any] | None = None
    while messages := _pulled.decode(await puller.ask(pull)).messages:
        now = time.perf_counter()
        times += [now - message.value for message in messages]
        if acked:
            await acked
        body = msgspec.json.encode({"ids": [message.id for message in messages]})
        acked = asyncio.ensure_future(acker.ask(request(PULL.replace("/pull", "/ack"), body, "application/json")))
    if acked:
        await acked


async def _on_schedule(connections: Connections, send: Any) -> None:
    """`send(connection, due)` at RATE, on whichever connection is free; late ones count from when they were due."""
    free: asyncio.Queue[Connection] = asyncio.Queue()
    for connection in connections:
        free.put_nowait(connection)
    running: set[asyncio.Task[None]] = set()

    async def one(connection: Connection, due: float) -> None:
        await send(connection, due)
        free.put_nowait(connection)

    async for due in _ticks():
        task = asyncio.create_task(one(await free.get(), due))
        running.add(task)
        task.add_done_callback(running.discard)
    await asyncio.gather(*running)


async def _ticks() -> AsyncIterator[float]:
    begun = time.perf_counter()
    for number in itertools.count():
        due = begun + number / RATE
        if due > begun + WARM_S + SECONDS:
            return
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        yield due


def percentile(times: list[float], share: float) -> float:
    """In milliseconds, without what came while things were warming up."""
    ordered = sorted(times[int(RATE * WARM_S) :])
    return ordered[int(share * (len(ordered) - 1))] * 1000

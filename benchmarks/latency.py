"""From publish to delivery at 1,000 messages/s, one a request, beside empty round trips at the same rate."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import server
from benchmarks.http import Connection, Connections, request, run
from benchmarks.quantiles import quantile
from benchmarks.result import Result
from benchmarks.schedule import on_schedule, round_trips

RATE, SECONDS, WARM_S, SENDERS = 1_000, 8.0, 1.0, 32
WARM = int(RATE * WARM_S)  # messages that come while things are warming up, and do not count
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
            figure=1000 * quantile(times[WARM:], share),
            unit="ms",
            limit=1000 * quantile(limits[WARM:], share),
            limit_is="round trips to an empty uvicorn app at the same rate",
            target=target,
            better="lower",
            note=f"{RATE} messages/s on a schedule for {SECONDS:g} s, one long-polling consumer that acks",
        )


async def _round_trips(opened: Connections) -> list[float]:
    return await round_trips(opened, RATE, WARM_S + SECONDS)


async def _deliveries(opened: Connections) -> list[float]:
    *senders, puller, acker = opened
    await puller.ask_json("PUT", "/v1/topics/latency", {})
    await puller.ask_json("PUT", "/v1/topics/latency/subscriptions/s", {})
    times: list[float] = []
    consumer = asyncio.create_task(_consume(puller, acker, times))

    async def send(connection: Connection, due: float) -> None:
        await connection.ask(request("/v1/topics/latency/messages", b'{"value":%.9f}' % due, "application/json"))

    await on_schedule(senders, RATE, WARM_S + SECONDS, send)
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

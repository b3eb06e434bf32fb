"""From publish to the streams of 1, 10 and 100 subscriptions, at 1,000 deliveries/s together, beside empty round
trips."""

import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import server
from benchmarks.http import Connection, Connections, request, run
from benchmarks.result import Result
from benchmarks.schedule import on_schedule, percentile, round_trips

DELIVERIES, SECONDS, WARM_S, SENDERS, ACKERS = 1_000, 8.0, 1.0, 16, 4
COUNTS = (1, 10, 100)
_EVENT = re.compile(rb'data: \{"id":"([0-9-]+)","key":null,"value":([0-9.]+)')


def measure(folder: Path) -> Iterator[Result]:
    """Each percentile beside the same one of the empty app, at the same rate of publishes."""
    for count in COUNTS:
        with server.empty_app() as empty:
            limits: list[float] = run(empty.port, SENDERS, _asker(count))
        with server.broker(folder / str(count)) as broker:
            times: list[float] = run(broker.port, 1, _streams(broker.port, count))
        for name, share, target in (("p50", 0.5, 3.0), ("p99", 0.99, 15.0)):
            yield Result(
                name=f"streams of {count} {name}",
                figure=percentile(times, share),
                unit="ms",
                limit=percentile(limits, share),
                limit_is="round trips to an empty uvicorn app at the same rate of publishes",
                target=target,
                better="lower",
                note=f"{DELIVERIES // count} messages/s on a schedule for {SECONDS:g} s, to {count} streams that ack",
            )


def _asker(count: int) -> Any:
    async def ask(opened: Connections) -> list[float]:
        rate = DELIVERIES // count
        return (await round_trips(opened, rate, WARM_S + SECONDS))[int(WARM_S * rate) :]

    return ask


def _streams(port: int, count: int) -> Any:
    async def stream(opened: Connections) -> list[float]:
        (maker,) = opened
        await maker.ask_json("PUT", "/v1/topics/streams", {})
        listeners = []
        for number in range(count):
            await maker.ask_json("PUT", f"/v1/topics/streams/subscriptions/s{number}", {})
            listeners.append(await _Listener.to(port, number))
        senders = [await Connection.to(port) for _ in range(SENDERS)]  # now: the broker closes idle ones
        ackers = [await Connection.to(port) for _ in range(ACKERS)]
        begun = time.perf_counter()
        tasks = [asyncio.create_task(one.listen()) for one in listeners]
        tasks += [asyncio.create_task(_ack(acker, listeners[n::ACKERS])) for n, acker in enumerate(ackers)]

        async def send(connection: Connection, due: float) -> None:
            await connection.ask(request("/v1/topics/streams/messages", b'{"value":%.9f}' % due, "application/json"))

        published = await on_schedule(senders, DELIVERIES // count, WARM_S + SECONDS, send)
        await asyncio.sleep(1)
        for task in tasks:
            task.cancel()
        for connection in (*senders, *ackers):
            connection.close()
        assert sum(len(one.times) for one in listeners) == published * count, "not all was delivered"
        return [took for one in listeners for due, took in one.times if due > begun + WARM_S]

    return stream


class _Listener:
    """One stream: what came when, and what is not acked yet."""

    def __init__(self, number: int, reader: asyncio.StreamReader) -> None:
        self.number = number
        self.times: list[tuple[float, float]] = []
        self.ids: list[str] = []
        self._reader = reader

    @staticmethod
    async def to(port: int, number: int) -> "_Listener":
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            f"GET /v1/topics/streams/subscriptions/s{number}/stream HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
        )
        await reader.readuntil(b"retry:")
        found = _Listener(number, reader)
        found.writer = writer  # type: ignore[attr-defined]
        return found

    async def listen(self) -> None:
        rest = b""
        while content := await self._reader.read(1 << 16):
            now = time.perf_counter()
            rest += content
            end = rest.rfind(b"\n\n")
            for found in _EVENT.finditer(rest[: max(0, end)]):
                due = float(found[2])
                self.times.append((due, now - due))
                self.ids.append(found[1].decode())
            rest = rest[max(0, end) :]


async def _ack(acker: Connection, listeners: list[_Listener]) -> None:
    """Acks what came, of one subscription after another."""
    while True:
        for one in listeners:
            if one.ids:
                ids, one.ids = one.ids, []
                path = f"/v1/topics/streams/subscriptions/s{one.number}/ack"
                await acker.ask(request(path, msgspec.json.encode({"ids": ids}), "application/json"))
        await asyncio.sleep(0.02)

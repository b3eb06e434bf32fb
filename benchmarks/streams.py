"""From publish to the streams, and to the waiting pulls, of 1, 10 and 100 subscriptions, at 1,000 deliveries/s
together, beside empty round trips; and the broker's CPU for each publish, deliveries and acks included."""

import asyncio
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import server
from benchmarks.http import Connection, Connections, request, run
from benchmarks.quantiles import quantile
from benchmarks.result import Result
from benchmarks.schedule import on_schedule, round_trips

DELIVERIES, SECONDS, WARM_S, SENDERS, ACKERS = 1_000, 8.0, 1.0, 16, 4
COUNTS = (1, 10, 100)
PULL = b'{"max_messages":1000,"wait_s":5}'
_MESSAGE = re.compile(rb'\{"id":"([0-9-]+)","key":null,"value":([0-9.]+)')


def measure(folder: Path) -> Iterator[Result]:
    """Each percentile beside the same one of the empty app, at the same rate of publishes."""
    for count in COUNTS:
        with server.empty_app() as empty:
            limits: list[float] = run(empty.port, SENDERS, _asker(count))
        for what, listener in (("streams", Stream), ("pulls", _Puller)):
            with server.broker(folder / f"{what}{count}") as broker:
                times, cpu_s = run(broker.port, 1, deliveries(broker, count, listener, DELIVERIES // count))
            yield from _results(f"{what} of {count}", count, (times, limits), cpu_s)


def _results(name: str, count: int, times: tuple[list[float], list[float]], cpu_s: float) -> Iterator[Result]:
    note = f"{DELIVERIES // count} messages/s on a schedule for {SECONDS:g} s, to {count} consumers that ack"
    for share_name, share, target in (("p50", 0.5, 3.0), ("p99", 0.99, 15.0)):
        yield Result(
            name=f"{name} {share_name}",
            figure=1000 * quantile(times[0], share),
            unit="ms",
            limit=1000 * quantile(times[1], share),
            limit_is="round trips to an empty uvicorn app at the same rate of publishes",
            target=target,
            better="lower",
            note=note,
        )
    yield Result(name=f"{name}, CPU", figure=1000 * cpu_s, unit="ms a publish", better="lower", note=note)


def _asker(count: int) -> Any:
    async def ask(opened: Connections) -> list[float]:
        rate = DELIVERIES // count
        return (await round_trips(opened, rate, WARM_S + SECONDS))[int(WARM_S * rate) :]

    return ask


def deliveries(broker: server.Server, count: int, kind: Any, rate: int) -> Any:
    """Publishes at a rate, to so many listeners of a kind: how late their messages came, and the CPU a publish."""

    async def deliver(opened: Connections) -> tuple[list[float], float]:
        port = broker.port
        (maker,) = opened
        await maker.ask_json("PUT", "/v1/topics/streams", {})
        listeners: list[Any] = []
        for number in range(count):
            await maker.ask_json("PUT", f"/v1/topics/streams/subscriptions/s{number}", {})
            listeners.append(await kind.to(port, number))
        senders = [await Connection.to(port) for _ in range(SENDERS)]  # now: the broker closes idle ones
        ackers = [await Connection.to(port) for _ in range(ACKERS)]
        begun = time.perf_counter()
        tasks = [asyncio.create_task(one.listen()) for one in listeners]
        tasks += [asyncio.create_task(_ack(acker, listeners[n::ACKERS])) for n, acker in enumerate(ackers)]

        async def send(connection: Connection, due: float) -> None:
            await connection.ask(request("/v1/topics/streams/messages", b'{"value":%.9f}' % due, "application/json"))

        cpu_s = broker.cpu_s()
        published = await on_schedule(senders, rate, WARM_S + SECONDS, send)
        await asyncio.sleep(1)
        cpu_s = (broker.cpu_s() - cpu_s) / published
        for task in tasks:
            task.cancel()
        for connection in (*senders, *ackers):
            connection.close()
        assert sum(len(one.times) for one in listeners) == published * count, "not all was delivered"
        return [took for one in listeners for due, took in one.times if due > begun + WARM_S], cpu_s

    return deliver


class Listener:
    """One consumer: what came when, and what is not acked yet."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.times: list[tuple[float, float]] = []
        self.ids: list[str] = []

    def take(self, content: bytes) -> None:
        now = time.perf_counter()
        for found in _MESSAGE.finditer(content):
            due = float(found[2])
            self.times.append((due, now - due))
            self.ids.append(found[1].decode())


class Stream(Listener):
    """One stream."""

    def __init__(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(number)
        self._reader, self._writer = reader, writer

    @staticmethod
    async def to(port: int, number: int) -> "Stream":
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            f"GET /v1/topics/streams/subscriptions/s{number}/stream HTTP/1.1\r\nhost: localhost\r\n"
            "seaweedq-client: benchmark\r\n\r\n".encode()
        )
        await reader.readuntil(b"retry:")
        return Stream(number, reader, writer)

    async def listen(self) -> None:
        rest = b""
        while content := await self._reader.read(1 << 16):
            rest += content
            end = max(0, rest.rfind(b"\n\n"))
            self.take(rest[:end])
            rest = rest[end:]


class _Puller(Listener):
    """One consumer that pulls, and waits."""

    def __init__(self, number: int, connection: Connection) -> None:
        super().__init__(number)
        self._connection = connection

    @staticmethod
    async def to(port: int, number: int) -> "_Puller":
        return _Puller(number, await Connection.to(port))

    async def listen(self) -> None:
        prepared = request(f"/v1/topics/streams/subscriptions/s{self.number}/pull", PULL, "application/json")
        while True:
            self.take(await self._connection.ask(prepared))


async def _ack(acker: Connection, listeners: Sequence[Listener]) -> None:
    """Acks what came, of one subscription after another."""
    while True:
        for one in listeners:
            if one.ids:
                ids, one.ids = one.ids, []
                path = f"/v1/topics/streams/subscriptions/s{one.number}/ack"
                await acker.ask(request(path, msgspec.json.encode({"ids": ids}), "application/json"))
        await asyncio.sleep(0.02)

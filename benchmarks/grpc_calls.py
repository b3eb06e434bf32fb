"""The gRPC port beside HTTP's: publishes of one message beside an empty method of grpc.aio; batches in a stream beside
the same ones as NDJSON and beside `send()`; deliveries of Subscribe beside those of server-sent events. Each has the
broker's CPU for a message."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio
import pyarrow as pa
import uvloop

from benchmarks import messages, server
from benchmarks.cluster_processes import free_port
from benchmarks.http import Connections, ask_all, run
from benchmarks.quantiles import quantile
from benchmarks.result import Result
from benchmarks.streams import Listener, Stream, deliveries
from seaweedq import Client
from seaweedq.api.grpc import queue_pb2 as pb

ROUNDS, CALLS, AT_ONCE = 5, 3_000, 16
RATE = 200  # of publishes, below what fills a core
BATCHES, ROWS, IN_FLIGHT = 200, 1_000, 8
COUNT = BATCHES * ROWS
QUEUE = f"/{pb.DESCRIPTOR.services_by_name['QueueService'].full_name}"
EMPTY = "/benchmarks.Empty/Call"


def measure(folder: Path) -> Iterator[Result]:
    """Rounds in turns; the best one of each."""
    yield from _unary(folder)
    yield from _batches(folder)
    yield from _delivered(folder)


def _unary(folder: Path) -> Iterator[Result]:
    one = pb.PublishRequest(topic="t", messages=[pb.NewMessage(key="k", value=b'{"n":1}')]).SerializeToString()
    port, found = free_port(), dict[str, list[tuple[float, float]]]()
    with server.broker(folder / "unary", "--grpc-port", str(port)) as broker, server.empty_grpc() as empty:
        with Client(f"http://127.0.0.1:{broker.port}") as client:
            client.create_topic("t")
        for _ in range(ROUNDS):
            for path, there, at in ((EMPTY, empty, empty.port), (f"{QUEUE}/Publish", broker, port)):
                before = there.cpu_s()
                took_s = uvloop.run(_calls(at, path, one))
                found.setdefault(path, []).append((took_s / CALLS, (there.cpu_s() - before) / CALLS))
    (empty_s, empty_cpu_s), (publish_s, publish_cpu_s) = (map(min, zip(*each, strict=True)) for each in found.values())
    note = f"{AT_ONCE} at a time, best of {ROUNDS} rounds of {CALLS:,}"
    yield Result(
        name="gRPC, Publish of one message",
        figure=1 / publish_s,
        unit="calls/s",
        limit=1 / empty_s,
        limit_is="an empty method of grpc.aio",
        target=0.7,
        target_of="ratio",
        note=note,
    )
    yield Result(
        name="gRPC, Publish of one message, CPU",
        figure=1e6 * publish_cpu_s,
        unit="µs",
        limit=1e6 * empty_cpu_s,
        limit_is="an empty method of grpc.aio",
        better="lower",
        note=note,
    )


async def _calls(port: int, path: str, body: bytes) -> float:
    """Returns the seconds of CALLS calls."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(path)
        await call(body, wait_for_ready=True)
        left = iter(range(CALLS))

        async def ask() -> None:
            for _ in left:
                await call(body)

        begun = time.perf_counter()
        await asyncio.gather(*[ask() for _ in range(AT_ONCE)])
        return time.perf_counter() - begun


def _batches(folder: Path) -> Iterator[Result]:
    lines = [line for body in messages.ndjson_bodies(-(-COUNT // messages.BATCH)) for line in body.splitlines()]
    bodies = [b"\n".join(lines[at : at + ROWS]) for at in range(0, COUNT, ROWS)]
    rows = [[json.loads(line) for line in body.splitlines()] for body in bodies]
    as_messages = [_request(batch) for batch in rows]
    as_arrow = [pb.PublishStreamRequest(topic="b", arrow=_arrow(batch)).SerializeToString() for batch in rows]
    port = free_port()
    with server.broker(folder / "batches", "--grpc-port", str(port)) as broker:
        url = f"http://127.0.0.1:{broker.port}"
        with Client(url) as client:
            client.create_topic("t")
            client.create_topic("b", format="bytes")
        kinds: dict[str, Callable[[], float]] = {
            "NDJSON over HTTP": lambda: run(broker.port, IN_FLIGHT, partial(_posted, bodies)),
            "send()": lambda: _sent(url, rows),
            "PublishStream of messages": lambda: uvloop.run(_streamed(port, as_messages)),
            "PublishStream of Arrow": lambda: uvloop.run(_streamed(port, as_arrow)),
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
        for _ in range(ROUNDS):
            for name, publish in kinds.items():
                before = broker.cpu_s()
                found[name].append((publish(), broker.cpu_s() - before))
    best_s = {name: min(took_s for took_s, _ in each) for name, each in found.items()}
    for name, took_s in best_s.items():
        cpu_s = min(cpu_s for _, cpu_s in found[name])
        yield Result(
            name=f"gRPC beside HTTP, {name}",
            figure=COUNT / took_s,
            unit="msg/s",
            limit=COUNT / best_s["NDJSON over HTTP"] if "Stream" in name else None,
            limit_is="NDJSON over HTTP" if "Stream" in name else "",
            note=f"{1e6 * cpu_s / COUNT:.2f} µs of the broker's CPU a message; batches of {ROWS:,}, {IN_FLIGHT} "
            f"unanswered; best of {ROUNDS} rounds of {COUNT:,}",
        )


def _request(rows: Sequence[dict[str, Any]]) -> bytes:
    new = [pb.NewMessage(key=one["key"], value=json.dumps(one["value"]).encode()) for one in rows]
    return pb.PublishStreamRequest(topic="t", messages=new).SerializeToString()


def _arrow(rows: Sequence[dict[str, Any]]) -> bytes:
    values = [json.dumps(one["value"]).encode() for one in rows]
    batch = pa.RecordBatch.from_arrays([pa.array([one["key"] for one in rows]), pa.array(values)], ["_key", "value"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


async def _posted(bodies: Sequence[bytes], opened: Connections) -> float:
    prepared = [messages.ndjson_request("t", body) for body in bodies]
    begun = time.perf_counter()
    await ask_all(opened, prepared)
    return time.perf_counter() - begun


def _sent(url: str, batches: Sequence[Sequence[dict[str, Any]]]) -> float:
    with Client(url) as client:
        begun = time.perf_counter()
        with client.producer("t") as producer:
            for batch in batches:
                for one in batch:
                    producer.send(one["value"], key=one["key"])
        return time.perf_counter() - begun


async def _streamed(port: int, requests: Sequence[bytes]) -> float:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        room = asyncio.Semaphore(IN_FLIGHT)

        async def batches() -> AsyncIterator[bytes]:
            for one in requests:
                await room.acquire()
                yield one

        await channel.channel_ready()
        begun, answered = time.perf_counter(), 0
        async for answer in channel.stream_stream(f"{QUEUE}/PublishStream")(batches()):
            durable = pb.PublishStreamResponse.FromString(answer).batches
            for _ in range(durable - answered):
                room.release()
            answered = durable
        assert answered == len(requests)
        return time.perf_counter() - begun


def _delivered(folder: Path) -> Iterator[Result]:
    """To one consumer. The empty round trips tell what the machine gives at this rate."""
    port = free_port()
    for name, listener in (("server-sent events", Stream), ("Subscribe", _Subscribed.at(port))):
        with server.broker(folder / name.split("-")[0], "--grpc-port", str(port)) as broker:
            times, cpu_s = run(broker.port, 1, deliveries(broker, 1, listener, RATE))
        for share in (0.5, 0.99):
            yield Result(
                name=f"gRPC beside HTTP, {name}, p{100 * share:g}",
                figure=1000 * quantile(times, share),
                unit="ms",
                better="lower",
                note=f"publish to delivery, {RATE} messages/s over HTTP on a schedule, one consumer that acks; "
                f"{1e6 * cpu_s:.0f} µs of the broker's CPU a message, its publish included",
            )


class _Subscribed(Listener):
    """One stream of gRPC, which acks what it gets."""

    def __init__(self, number: int, channel: grpc.aio.Channel) -> None:
        super().__init__(number)
        self._channel = channel
        self._call = channel.stream_stream(f"{QUEUE}/Subscribe")()

    @classmethod
    def at(cls, port: int) -> Any:
        """Listeners at a gRPC port, whatever port HTTP has."""

        class Listeners:
            @staticmethod
            async def to(_: int, number: int) -> "_Subscribed":
                one = cls(number, grpc.aio.insecure_channel(f"127.0.0.1:{port}"))
                start = pb.SubscribeStart(topic="streams", subscription=f"s{number}")
                await one._call.write(pb.SubscribeRequest(start=start).SerializeToString())
                return one

        return Listeners

    async def listen(self) -> None:
        """Takes deliveries, and acks them."""
        while (read := await self._call.read()) is not grpc.aio.EOF:
            delivery = pb.SubscribeResponse.FromString(read).delivery
            now = time.perf_counter()
            self.times += [(float(one.value), now - float(one.value)) for one in delivery.messages]
            if ids := [one.id for one in delivery.messages]:
                await self._call.write(pb.SubscribeRequest(ack=pb.Ack(ids=ids)).SerializeToString())


async def _serve() -> None:
    async def nothing(request: bytes, context: Any) -> bytes:
        return b""

    _, service, method = EMPTY.split("/")
    empty = grpc.aio.server()
    handlers = {method: grpc.unary_unary_rpc_method_handler(nothing)}
    empty.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])
    port = empty.add_insecure_port("127.0.0.1:0")
    await empty.start()
    print(f"http://127.0.0.1:{port}", flush=True)
    await empty.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(_serve())

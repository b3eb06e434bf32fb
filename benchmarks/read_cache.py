"""Consumers of old messages on S3, where a GET takes 30 ms, with the cache on disk; beside the same on a folder store.

Ten consumers begin at the start of a topic of 60 MB and read it at their own paces, without leases. The cache in
memory has a fifth of the topic, so that consumers which are apart share nothing there. Publishes beside them go to a
file journal, and are timed by a process of their own.
"""

import asyncio
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import uvloop

from benchmarks.cluster_processes import BUCKET, ENV, Broker, start_s3
from benchmarks.http import ARROW, Connection, request
from benchmarks.messages import arrow_request
from benchmarks.metrics import metrics_of
from benchmarks.quantiles import quantile
from benchmarks.result import Result

ROWS, BATCHES, VALUE_BYTES = 500, 120, 1000
PAGE, CONSUMERS = 1000, 10
GET_S, EVERY_S = 0.03, 0.05
SPREAD_S = 0.05  # between the paces of two consumers, a page
TIMES = 2
SETTINGS = ("--flush-max-bytes", "4MiB", "--memory-cache-bytes", "12MiB", "--cache-bytes", "1GiB")


def measure(folder: Path) -> Iterator[Result]:
    """One consumer, a second one, ten, and ten beside publishes."""
    os.environ.update(ENV)
    with ExitStack() as stack:
        s3 = start_s3(stack, folder, GET_S)
        options = ("--store", f"s3://{BUCKET}/q", "--s3-endpoints", s3, "--s3-addressing", "path", *SETTINGS)
        cached = _broker(stack, folder, "cached", *options, "--cache-dir", str(folder / "cache"))
        local = _broker(stack, folder, "local", *SETTINGS)
        for broker in (cached, local):
            broker.start()
            uvloop.run(_fill(broker.port))
        one, first_s, second_s = _alone(cached)
        _, _, local_s = _alone(local)
        figures: dict[str, list[float]] = {"cached": [], "local": []}
        ten = (0.0, 0.0)
        for _ in range(TIMES):
            for broker in (cached, local):
                _restart(broker)
                before = _asked(broker)
                figures[broker.name] += _together(broker.port)
                if broker is cached:
                    ten = (_asked(broker)[0] - before[0], _asked(broker)[1] - before[1])
    note = f"{ROWS * BATCHES * VALUE_BYTES / 1e6:g} MB, a GET takes {GET_S * 1000:g} ms; first reader {first_s:.3g} s"
    most = {"target": 1.1, "target_of": "ratio", "better": "lower", "limit_is": "one consumer", "note": note}
    yield Result(name="GETs of ten consumers", figure=ten[0], unit="", limit=one[0], **most)
    yield Result(name="bytes of ten consumers", figure=ten[1] / 1e6, unit="MB", limit=one[1] / 1e6, **most)
    size = ROWS * BATCHES
    speeds = {"target": 0.8, "target_of": "ratio", "limit_is": "on a folder store", "note": note}
    yield Result(name="second reader", figure=size / second_s, unit="msg/s", limit=size / local_s, **speeds)
    p99 = {name: 1000 * quantile(found, 0.99) for name, found in figures.items()}
    beside = {"target": 1.2, "target_of": "ratio", "better": "lower", "limit_is": "beside them on a folder store"}
    yield Result(name="p99 of publishes beside ten", figure=p99["cached"], unit="ms", limit=p99["local"], **beside)


def _broker(stack: ExitStack, folder: Path, name: str, *options: str) -> Broker:
    broker = Broker(name, folder, ("--log-level", "info", *options))
    stack.callback(broker.kill)
    return broker


def _restart(broker: Broker) -> None:
    broker.stop()
    broker.start()


def _alone(broker: Broker) -> tuple[tuple[float, float], float, float]:
    """What one consumer asks of the store, and how long it and a second one take, behind a restart."""
    _restart(broker)
    before = _asked(broker)
    first_s = uvloop.run(_consume(broker.port, 0))
    asked = _asked(broker)
    return (asked[0] - before[0], asked[1] - before[1]), first_s, uvloop.run(_consume(broker.port, 0))


def _asked(broker: Broker) -> tuple[float, float]:
    """The GETs and the bytes that a broker has got from the store so far."""
    found, gets = metrics_of(broker.url), ("read", "size", "age", "open", "range")
    names = [f'{{operation="{one}"}}' for one in gets]
    return (
        sum(found.get(f"seaweedq_store_requests_total{name}", 0) for name in names),
        sum(found.get(f"seaweedq_store_received_bytes_total{name}", 0) for name in names),
    )


def _together(port: int) -> list[float]:
    """The seconds of publishes beside ten consumers."""
    with ProcessPoolExecutor(1) as other:
        publishing = other.submit(publish, port, CONSUMERS * SPREAD_S * ROWS * BATCHES / PAGE)
        uvloop.run(_consume_all(port))
        return publishing.result()


async def _consume_all(port: int) -> None:
    await asyncio.gather(*(_consume(port, at * SPREAD_S) for at in range(CONSUMERS)))


async def _fill(port: int) -> None:
    connection = await Connection.to(port)
    await connection.ask_json("PUT", "/v1/topics/old", {"format": "bytes"})
    for _ in range(BATCHES):
        values = pa.array([os.urandom(VALUE_BYTES) for _ in range(ROWS)], pa.binary())
        await connection.ask(arrow_request("old", pa.RecordBatch.from_arrays([values], names=["value"])))
    await connection.ask(request("/v1/topics/old/flush", b"", "application/json"))
    connection.close()


async def _consume(port: int, pause_s: float) -> float:
    """Reads the topic from its start, with a pause behind each page: the seconds without the pauses."""
    connection, took_s, offset = await Connection.to(port), 0.0, 0
    try:
        listed = await connection.ask_json("GET", "/v1/topics/old/segments")
        (segment,) = listed["segments"]
        while offset < ROWS * BATCHES:
            path = f"/v1/topics/old/segments/{segment['id']}/messages?offset={offset}&limit={PAGE}"
            began_s = time.perf_counter()
            found = await connection.ask(request(path, b"", "application/json", "GET", [f"accept: {ARROW}"]))
            offset += sum(batch.num_rows for batch in pa.ipc.open_stream(found))
            took_s += time.perf_counter() - began_s
            await asyncio.sleep(pause_s)
    finally:
        connection.close()
    return took_s


def publish(port: int, most_s: float) -> list[float]:
    """Publishes a message every EVERY_S for so long: the seconds of each."""
    return asyncio.run(_publish(port, most_s))


async def _publish(port: int, most_s: float) -> list[float]:
    connection, times = await Connection.to(port), []
    prepared = request("/v1/topics/new/messages", b'{"value":"x"}', "application/json")
    end_s = time.perf_counter() + most_s
    while (now_s := time.perf_counter()) < end_s:
        await connection.ask(prepared)
        times.append(time.perf_counter() - now_s)
        await asyncio.sleep(EVERY_S)
    connection.close()
    return times

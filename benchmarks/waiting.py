"""Pulls that wait at the broker that dispatches their subscription: memory, CPU while nothing comes, and what a publish
costs that one of them gets."""

import asyncio
import resource
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import server
from benchmarks.http import Connection, Connections, request, run
from benchmarks.result import Result

WAITING = 5_000
PUBLISHES = 100
IDLE_S = 4.0
MIB = 1024 * 1024
TOPIC = "/v1/topics/waiting"
PULL = request(f"{TOPIC}/subscriptions/s/pull", b'{"max_messages":1,"wait_s":30}', "application/json")
PUBLISH = request(f"{TOPIC}/messages", b'{"value":1}', "application/json")


def measure(folder: Path) -> Iterator[Result]:
    """Nobody waits, and then many do."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    options = ("--max-connections", str(WAITING + 100))
    with server.broker(folder / "data", *options) as broker:
        alone_s: float = run(broker.port, 1, lambda opened: _alone(opened[0], broker))
        idle, publish_s, memory_bytes = run(broker.port, WAITING, lambda opened: _waiting(opened, broker))
    note = f"{WAITING:,} pulls wait in one subscription"
    yield Result(
        name="waiting, memory",
        figure=memory_bytes / MIB,
        unit="MiB",
        target=400,
        better="lower",
        note=note,
    )
    yield Result(name="waiting, idle", figure=100 * idle, unit="% of a core", target=2, better="lower", note=note)
    yield Result(
        name="waiting, publish",
        figure=1000 * (publish_s - alone_s),
        unit="ms of CPU more",
        limit=1000 * alone_s,
        limit_is="CPU of the broker for a publish while nobody waits",
        target=5,
        better="lower",
        note=f"{note}; each publish feeds one, whose answer is included",
    )


async def _alone(connection: Connection, broker: server.Server) -> float:
    await connection.ask_json("PUT", TOPIC, {})
    await _publish(connection, PUBLISHES)
    begun = broker.cpu_s()
    await _publish(connection, PUBLISHES)
    return (broker.cpu_s() - begun) / PUBLISHES


async def _waiting(opened: Connections, broker: server.Server) -> tuple[float, float, int]:
    publisher = await Connection.to(broker.port)
    await publisher.ask_json("PUT", f"{TOPIC}/subscriptions/s", {"start": "latest", "mode": "shared"})
    begun_s = time.monotonic()
    waiting = [asyncio.create_task(connection.ask(PULL)) for connection in opened]
    await _settle(broker)
    cpu_s, since_s = broker.cpu_s(), time.monotonic()
    await asyncio.sleep(IDLE_S)
    idle = (broker.cpu_s() - cpu_s) / (time.monotonic() - since_s)
    memory_bytes = broker.memory_bytes()
    cpu_s = broker.cpu_s()
    await _publish(publisher, PUBLISHES)
    while sum(one.done() for one in waiting) < PUBLISHES:
        await asyncio.sleep(0.01)
    publish_s = (broker.cpu_s() - cpu_s) / PUBLISHES
    assert time.monotonic() - begun_s < 30, "the machine is too slow: waits have ended"
    assert sum(one.done() for one in waiting) == PUBLISHES
    for one in waiting:
        one.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    return idle, publish_s, memory_bytes


async def _publish(connection: Connection, count: int) -> None:
    for _ in range(count):
        await connection.ask(PUBLISH)


async def _settle(broker: server.Server) -> None:
    """Until the broker does nothing any more: all pulls wait."""
    last_s = -1.0
    while (now_s := broker.cpu_s()) - last_s > 0.05:
        last_s = now_s
        await asyncio.sleep(1)

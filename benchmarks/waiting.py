"""Pulls that wait, at the broker that dispatches their subscription and at another one: memory, CPU while nothing
comes, and what a publish costs that one of them gets."""

import asyncio
import resource
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.brokers_together import Brokers, brokers_together
from benchmarks.http import Connection, Connections, request, run
from benchmarks.result import Result

WAITING = 5_000
PUBLISHES = 100
IDLE_S = 4.0
LEAST_S = 12.0  # of the wait that must be left for the measurement
MIB = 1024 * 1024
TOPIC = "/v1/topics/waiting"
SUBSCRIPTION = f"{TOPIC}/subscriptions/s"
PULL = request(f"{SUBSCRIPTION}/pull", b'{"max_messages":1,"wait_s":30}', "application/json")
PUBLISH = request(f"{TOPIC}/messages", b'{"value":1}', "application/json")
OPTIONS = ("--max-connections", str(2 * WAITING))  # three quarters of them may wait


def measure(folder: Path) -> Iterator[Result]:
    """Nobody waits, and then many do: at the dispatcher, and at the other broker."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for where in ("here", "another broker"):
        with brokers_together(folder / where, 2, *OPTIONS) as brokers:
            yield from _measured(brokers, where)


def _measured(brokers: Brokers, where: str) -> Iterator[Result]:
    dispatching: int = run(brokers.ports[0], 1, lambda opened: dispatcher(opened[0], brokers.ports))
    other = next(port for port in brokers.ports if port != dispatching)
    alone_s: float = run(dispatching, 1, lambda opened: _alone(opened[0], brokers))
    port = dispatching if where == "here" else other
    idle, publish_s, memory_bytes = run(port, WAITING, lambda opened: _waiting(opened, dispatching, brokers))
    note = f"{WAITING:,} pulls wait in one subscription; CPU is that of two brokers"
    name = f"waiting at {where}" if where != "here" else "waiting"
    yield Result(name=f"{name}, memory", figure=memory_bytes / MIB, unit="MiB", target=400, better="lower", note=note)
    yield Result(name=f"{name}, idle", figure=100 * idle, unit="% of a core", target=2, better="lower", note=note)
    yield Result(
        name=f"{name}, publish",
        figure=1000 * (publish_s - alone_s),
        unit="ms of CPU more",
        limit=1000 * alone_s,
        limit_is="CPU for a publish while nobody waits",
        target=5,
        better="lower",
        note=f"{note}; each publish feeds one, whose answer is included",
    )


async def dispatcher(connection: Connection, ports: Sequence[int]) -> int:
    """Makes the topic and the subscription, and finds the port of its dispatcher."""
    await connection.ask_json("PUT", TOPIC, {})
    await connection.ask_json("PUT", SUBSCRIPTION, {"start": "latest", "mode": "shared"})
    await connection.ask_json("POST", f"{SUBSCRIPTION}/pull", {})
    for port in ports:
        asked = await Connection.to(port)
        if b'subscription="s"' in await asked.ask(request("/metrics", b"", "text/plain", "GET")):
            return port
    raise RuntimeError("no broker dispatches")


async def _alone(connection: Connection, brokers: Brokers) -> float:
    await _publish(connection, PUBLISHES)
    begun = brokers.cpu_s()
    await _publish(connection, PUBLISHES)
    used_s = brokers.cpu_s() - begun
    while (await connection.ask_json("POST", f"{SUBSCRIPTION}/pull", {"max_messages": 1000}))["messages"]:
        pass
    return used_s / PUBLISHES


async def _waiting(opened: Connections, dispatching: int, brokers: Brokers) -> tuple[float, float, int]:
    begun_s = time.monotonic()
    waiting = [asyncio.create_task(connection.ask(PULL)) for connection in opened]
    try:
        await _settle(brokers)
        for one in waiting:
            assert not one.done(), one.exception() or one.result()
        assert time.monotonic() - begun_s < 30 - LEAST_S, "the machine is too slow: waits would end meanwhile"
        return await _measured_beside(waiting, dispatching, brokers)
    finally:
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def _measured_beside(
    waiting: list["asyncio.Task[bytes]"], dispatching: int, brokers: Brokers
) -> tuple[float, float, int]:
    cpu_s, since_s = brokers.cpu_s(), time.monotonic()
    await asyncio.sleep(IDLE_S)
    idle = (brokers.cpu_s() - cpu_s) / (time.monotonic() - since_s)
    memory_bytes = brokers.memory_bytes()
    publisher = await Connection.to(dispatching)  # not before: a connection that asks nothing is closed
    cpu_s = brokers.cpu_s()
    await _publish(publisher, PUBLISHES)
    while sum(one.done() for one in waiting) < PUBLISHES:
        await asyncio.sleep(0.01)
    publish_s = (brokers.cpu_s() - cpu_s) / PUBLISHES
    assert sum(one.done() for one in waiting) == PUBLISHES
    return idle, publish_s, memory_bytes


async def _publish(connection: Connection, count: int) -> None:
    for _ in range(count):
        await connection.ask(PUBLISH)


async def _settle(brokers: Brokers) -> None:
    """Until the brokers do nothing any more: all pulls wait."""
    last_s = -1.0
    while (now_s := brokers.cpu_s()) - last_s > 0.05:
        last_s = now_s
        await asyncio.sleep(1)

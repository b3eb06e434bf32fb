"""Requests on a schedule: a rate that does not wait for answers, and how late they were."""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable

from benchmarks.http import Connection, Connections, request

Send = Callable[[Connection, float], Awaitable[None]]


async def on_schedule(connections: Connections, rate: int, seconds: float, send: Send) -> int:
    """`send(connection, due)` at a rate, on whichever connection is free: how many there were. Late ones count from
    when they were due."""
    free: asyncio.Queue[Connection] = asyncio.Queue()
    for connection in connections:
        free.put_nowait(connection)
    running: set[asyncio.Task[None]] = set()
    begun, count = time.perf_counter(), int(rate * seconds)

    async def one(connection: Connection, due: float) -> None:
        await send(connection, due)
        free.put_nowait(connection)

    for number in range(count):
        due = begun + number / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        task = asyncio.create_task(one(await free.get(), due))
        running.add(task)
        task.add_done_callback(running.discard)
    await asyncio.gather(*running)
    return count


async def round_trips(opened: Connections, rate: int, seconds: float) -> list[float]:
    """How long each round trip to an empty app took, from when it was due."""
    prepared = request("/90", b'{"value":1234567890.123456}', "application/json")
    times: list[float] = []

    async def send(connection: Connection, due: float) -> None:
        await connection.ask(prepared)
        times.append(time.perf_counter() - due)

    await on_schedule(opened, rate, seconds, send)
    return times


async def producers_ms(
    port: int, prepared: bytes, producers: int, rate: float, warm_s: float, seconds: float
) -> list[float]:
    """How many milliseconds each of the `prepared` requests took behind the first `warm_s`. Each of the producers has a
    connection and turns of its own; all of them together send at the rate. Late ones count from when they were due."""
    began = time.perf_counter()

    async def produce(number: int) -> list[float]:
        connection, times = await Connection.to(port), []
        for turn in itertools.count():
            due = began + (turn * producers + number) / rate
            if due > began + warm_s + seconds:
                break
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            await connection.ask(prepared)
            if due > began + warm_s:
                times.append((time.perf_counter() - due) * 1000)
        connection.close()
        return times

    return [one for times in await asyncio.gather(*map(produce, range(producers))) for one in times]

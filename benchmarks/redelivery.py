"""Until a message comes again: after a nack, after its deadline, and after its dispatcher was killed or fell silent,
beside empty round trips."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks import server, waiting
from benchmarks.brokers_together import brokers_together
from benchmarks.cluster_processes import LEASE_S, Cluster
from benchmarks.http import Connection, Connections, Failed, request, run
from benchmarks.quantiles import quantile
from benchmarks.result import Result

NACKS, DEADLINES, KILLS, SILENCES = 300, 20, 3, 2
DEADLINE_S = 1.0
PAUSE_S = 0.02  # before a refused request is tried again
JSON = "application/json"


def measure(folder: Path) -> Iterator[Result]:
    """Each figure is what is over its least: nothing, the deadline, nothing."""
    with server.empty_app() as empty:
        trips: list[float] = run(empty.port, 1, _round_trips)
    with server.broker(folder / "alone") as broker:
        nacked: list[float] = run(broker.port, 3, _after_nacks)
        late: list[float] = run(broker.port, 2 * DEADLINES, _after_deadlines)
    limit_is = "p99 of round trips to an empty uvicorn app"
    limit = 1000 * quantile(trips, 0.99)
    note = f"{NACKS} nacks, each while another consumer waits"
    for name, share, target in (("nack to waiting pull, p50", 0.5, None), ("nack to waiting pull, p99", 0.99, 20.0)):
        figure = 1000 * quantile(nacked, share)
        yield Result(
            name=name,
            figure=figure,
            unit="ms",
            limit=limit,
            limit_is=limit_is,
            target=target,
            better="lower",
            note=note,
        )
    yield Result(
        name="deadline to redelivery, worst",
        figure=1000 * max(late),
        unit="ms",
        limit=limit,
        limit_is=limit_is,
        target=100,
        better="lower",
        note=f"{DEADLINES} messages at once, of as many subscriptions, in each of which another consumer waits",
    )
    yield Result(
        name="dispatcher killed to next delivery, worst",
        figure=max(_after_a_kill(folder / f"kill{number}") for number in range(KILLS)),
        unit="s",
        target=4,
        better="lower",
        note=f"{KILLS} kills; two brokers of one parent, which sees the end; a pull waits at the other one",
    )

    yield Result(
        name="dispatcher killed and started again on its folder to next delivery, worst",
        figure=max(_after_a_start(folder / f"lock{number}") for number in range(KILLS)),
        unit="s",
        target=4,
        better="lower",
        note=f"{KILLS} kills of a broker without a parent, whose lock tells the next start that it has ended",
    )
    yield Result(
        name="dispatcher fallen silent to next delivery, worst",
        figure=max(_after_a_silence(folder / f"silent{number}") for number in range(SILENCES)),
        unit="s",
        limit=LEASE_S,
        limit_is="the lease",
        target=LEASE_S + 2,
        better="lower",
        note=f"{SILENCES} brokers, each with another one on etcd and S3, at which a pull waits",
    )


async def _round_trips(opened: Connections) -> list[float]:
    (connection,) = opened
    prepared = request("/90", b'{"value":1}', JSON)
    times = []
    for _ in range(NACKS):
        began = time.perf_counter()
        await connection.ask(prepared)
        times.append(time.perf_counter() - began)
    return times


async def _make(connection: Connection, name: str, **settings: Any) -> None:
    await connection.ask_json("PUT", "/v1/topics/again", {})
    await connection.ask_json("PUT", f"/v1/topics/again/subscriptions/{name}", {"mode": "shared", **settings})


def _pull(name: str, consumer: str, wait_s: int) -> bytes:
    body = b'{"max_messages":1,"wait_s":%d,"consumer":"%b"}' % (wait_s, consumer.encode())
    return request(f"/v1/topics/again/subscriptions/{name}/pull", body, JSON)


async def _after_nacks(opened: Connections) -> list[float]:
    """Two consumers hand one message to and fro."""
    *pullers, maker = opened
    await _make(maker, "nacked", start="latest")
    await maker.ask_json("POST", "/v1/topics/again/messages", {"value": 1})
    nack = request("/v1/topics/again/subscriptions/nacked/nack", b'{"ids":["0-0"],"attempted":false}', JSON)
    await pullers[1].ask(_pull("nacked", "c1", 1))
    times = []
    for number in range(NACKS):
        waits = asyncio.create_task(pullers[number % 2].ask(_pull("nacked", f"c{number % 2}", 10)))
        await asyncio.sleep(0.01)
        began = time.perf_counter()
        _, found = await asyncio.gather(maker.ask(nack), waits)
        times.append(time.perf_counter() - began)
        assert b'"0-0"' in found
    return times


async def _after_deadlines(opened: Connections) -> list[float]:
    names = [f"late{number}" for number in range(DEADLINES)]
    for name in names:
        await _make(opened[0], name, start="latest", ack_deadline_s=DEADLINE_S)
    await opened[0].ask_json("POST", "/v1/topics/again/messages", {"value": 2})

    async def one(name: str, first: Connection, second: Connection) -> float:
        began = time.perf_counter()
        assert b'"0-1"' in await first.ask(_pull(name, "c0", 5))
        assert b'"0-1"' in await second.ask(_pull(name, "c1", 10))
        return time.perf_counter() - began - DEADLINE_S

    return await asyncio.gather(*map(one, names, opened[:DEADLINES], opened[DEADLINES:]))


def _after_a_start(folder: Path) -> float:
    async def begin(opened: Connections) -> None:
        await _make(opened[0], "locked")
        await opened[0].ask_json("POST", "/v1/topics/again/messages", {"value": 1})
        assert b'"0-0"' in await opened[0].ask(_pull("locked", "c", 1))

    async def delivered(opened: Connections) -> None:
        await opened[0].ask_json("POST", "/v1/topics/again/messages", {"value": 2})
        assert b'"id"' in await opened[0].ask(_pull("locked", "c", 5))

    with server.broker(folder) as first:
        run(first.port, 1, begin)
        began = time.perf_counter()
        first.kill()
        with server.broker(folder) as second:
            run(second.port, 1, delivered)
            return time.perf_counter() - began


def _after_a_kill(folder: Path) -> float:
    with brokers_together(folder, 2) as brokers:
        dispatching: int = run(brokers.ports[0], 1, lambda opened: waiting.dispatcher(opened[0], brokers.ports))
        other = next(port for port in brokers.ports if port != dispatching)
        took_s: float = run(
            other,
            2,
            lambda opened: _delivered_after(opened, lambda: os.kill(brokers.pid_of(dispatching), signal.SIGKILL)),
        )
        return took_s


def _after_a_silence(folder: Path) -> float:
    folder.mkdir(parents=True)
    with Cluster(folder, 2) as cluster:
        ports = [broker.port for broker in cluster.brokers]
        dispatching: int = run(ports[0], 1, lambda opened: waiting.dispatcher(opened[0], ports))
        silent = next(broker for broker in cluster.brokers if broker.port == dispatching)
        other = next(port for port in ports if port != dispatching)
        took_s: float = run(other, 2, lambda opened: _delivered_after(opened, silent.silence))
        return took_s


async def _delivered_after(opened: Connections, end: Callable[[], None]) -> float:
    puller, publisher = opened
    waits = asyncio.create_task(puller.ask(waiting.PULL))
    await asyncio.sleep(1)
    began = time.perf_counter()
    end()
    await asyncio.gather(_until_taken(publisher), _until_fed(puller, waits))
    return time.perf_counter() - began


async def _until_taken(publisher: Connection) -> None:
    while True:
        with suppress(Failed):
            await publisher.ask(waiting.PUBLISH)
            return
        await asyncio.sleep(PAUSE_S)


async def _until_fed(puller: Connection, waits: asyncio.Task[bytes]) -> None:
    while True:
        with suppress(Failed):
            if b'"id"' in await waits:
                return
        await asyncio.sleep(PAUSE_S)
        waits = asyncio.create_task(puller.ask(waiting.PULL))

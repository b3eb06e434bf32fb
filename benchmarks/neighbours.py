"""A principal beside another one that sends 10 times its limit, and heeds no answer: its throughput and its slowest
requests, in turns with those that it has alone."""

import asyncio
import itertools
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from benchmarks import server
from benchmarks.http import Connection, Connections, Failed, request, run
from benchmarks.processes import started
from benchmarks.quantiles import quantile
from benchmarks.result import Result

LIMIT, TIMES = 100, 10
TURNS, TURN_S, CONNECTIONS = 8, 4.0, 8
FLOODING = 8  # connections
STEP_S = 0.01
PATH = "/v1/topics/bench/messages"


def measure(folder: Path) -> Iterator[Result]:
    """The other one floods in every second turn."""
    with server.broker(folder / "data", "--auth", "required") as broker:
        admin = (folder / "data" / "admin-token").read_text().strip()
        own, other = _tokens(broker.port, admin)
        _turn(broker.port, own)
        found: dict[bool, list[tuple[float, float, float]]] = {True: [], False: []}
        for turn in range(2 * TURNS):
            beside = bool((turn + turn // 2) % 2)
            with _flood(broker.port, other) if beside else _nobody():
                cpu_s = broker.cpu_s()
                rate, p99_s = _turn(broker.port, own)
                found[beside].append((rate, p99_s, (broker.cpu_s() - cpu_s) / TURN_S))
    (rates, p99s, cpu), (alone, p99s_alone, cpu_alone) = (zip(*found[one], strict=True) for one in (True, False))
    note = (
        f"{CONNECTIONS} connections, singles, medians of {TURNS} turns of {TURN_S:g} s; the other one sends "
        f"{LIMIT * TIMES} a second, of which {LIMIT} are let in; the broker's CPU: {statistics.median(cpu):.0%} of a "
        f"core, {statistics.median(cpu_alone):.0%} alone"
    )
    yield Result(
        name="neighbours, throughput",
        figure=statistics.median(rates),
        unit="requests/s",
        limit=statistics.median(alone),
        limit_is="alone",
        target=0.8,
        target_of="ratio",
        note=note,
    )
    yield Result(
        name="neighbours, p99",
        figure=statistics.median(p99s) * 1e3,
        unit="ms",
        limit=statistics.median(p99s_alone) * 1e3,
        limit_is="alone",
        target=1.5,
        target_of="ratio",
        better="lower",
        note=note,
    )


def _turn(port: int, token: str) -> tuple[float, float]:
    """Requests a second, and the 99th percentile of their times."""
    numbers, times = itertools.count(), list[float]()
    end_s = time.perf_counter() + TURN_S

    async def ask(connection: Connection) -> None:
        while (begun_s := time.perf_counter()) < end_s:
            await connection.ask(_single(next(numbers), token))
            times.append(time.perf_counter() - begun_s)

    async def work(opened: Connections) -> None:
        await asyncio.gather(*map(ask, opened))

    run(port, CONNECTIONS, work)
    return len(times) / TURN_S, quantile(times, 0.99)


def flood(port: int, token: str) -> None:
    """Sends so many requests a second, for ever; an answer is only read."""
    prepared = _single(0, token)

    async def send(connection: Connection, at_s: float) -> None:
        while True:
            await asyncio.sleep(at_s - time.perf_counter())
            at_s = max(at_s + FLOODING / (LIMIT * TIMES), time.perf_counter() - 1)
            try:
                await connection.ask(prepared)
            except Failed as failed:
                if not str(failed).startswith("429"):
                    raise

    async def work(opened: Connections) -> None:
        begun_s = time.perf_counter()
        every_s = 1 / (LIMIT * TIMES)
        await asyncio.gather(*(send(one, begun_s + number * every_s) for number, one in enumerate(opened)))

    print("begun", flush=True)
    run(port, FLOODING, work)


@contextmanager
def _flood(port: int, token: str) -> Iterator[None]:
    """Another process floods."""
    code = f"from benchmarks.neighbours import flood; flood({port}, {token!r})"
    with started([sys.executable, "-c", code]) as process:
        assert process.stdout
        process.stdout.readline()
        time.sleep(1.0)
        yield
        assert process.poll() is None, "the flood has ended"


@contextmanager
def _nobody() -> Iterator[None]:
    time.sleep(1.0)
    yield


def _tokens(port: int, admin: str) -> tuple[str, str]:
    """The tokens of one principal with a limit that it never reaches, and of one that exceeds its own."""
    headers = {"authorization": f"Bearer {admin}"}
    grants: Any = [{"actions": ["publish"], "topics": ["bench"]}]
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers) as http:
        http.put("/v1/topics/bench", json={}).raise_for_status()
        for name, most in (("own", 1e9), ("other", LIMIT)):
            wanted = {"grants": grants, "limits": {"requests": most}}
            http.put(f"/v1/principals/{name}", json=wanted).raise_for_status()
        own, other = (http.post("/v1/tokens", json={"principal": name}).json() for name in ("own", "other"))
        return str(own["token"]), str(other["token"])


def _single(number: int, token: str) -> bytes:
    body = b'{"key":"key-%08d","value":{"n":%d}}' % (number, number)
    return request(PATH, body, "application/json", more=[f"authorization: Bearer {token}"])

"""What Arrow requests of several sizes cost the broker, and how long single messages take beside them."""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from uuid import uuid4

from benchmarks import messages, server
from benchmarks.http import Connection, Connections, ask_all, request, run
from benchmarks.quantiles import quantile
from benchmarks.result import Result
from benchmarks.turns import Tree, in_turns, lowest

ROUNDS, CONNECTIONS, PAUSE_S = 5, 4, 0.01
REQUESTS = {100: 1_000, 1_000: 300, 10_000: 60, 50_000: 12}  # by the rows of each


def measure(folder: Path) -> Iterator[Result]:
    """A broker of each tree in turns."""
    prepared = {rows: _prepared(rows, count) for rows, count in REQUESTS.items()}

    def once(tree: Tree) -> Mapping[str, float]:
        with server.broker(folder / uuid4().hex, tree=tree) as broker:
            found: Mapping[str, float] = run(broker.port, CONNECTIONS + 1, lambda all: _figures(all, broker, prepared))
        return found

    note = (
        f"{CONNECTIONS} connections, user and system time of the broker, last flush included; single messages: p99 on "
        f"another connection, one each {PAUSE_S * 1000:g} ms, beside a second run; best of {ROUNDS} rounds"
    )
    found = in_turns(ROUNDS, once)
    for unit in ("µs/msg", "µs/request", "ms"):
        some = {tree: {name: v for name, v in all.items() if name.endswith(unit)} for tree, all in found.items()}
        yield from lowest("arrow_small", unit, some, note)


def _prepared(rows: int, count: int) -> list[bytes]:
    return [messages.arrow_request(f"rows-{rows}", batch) for batch in messages.arrow_batches(count, rows)]


async def _figures(
    opened: Connections, broker: server.Server, prepared: Mapping[int, Sequence[bytes]]
) -> Mapping[str, float]:
    alone, *others = opened
    await alone.ask_json("PUT", "/v1/topics/alone", {})
    found: dict[str, float] = {}
    for rows, requests in prepared.items():
        topic = f"/v1/topics/rows-{rows}"
        await alone.ask_json("PUT", topic, {"format": "bytes", "initial_segments": 4})
        await ask_all(others, requests[:CONNECTIONS])
        before = broker.cpu_s()
        await ask_all(others, requests)
        await alone.ask_json("POST", f"{topic}/flush")
        cpu_us = (broker.cpu_s() - before) * 1e6 / len(requests)
        found[f"{rows:,} rows, µs/msg"] = cpu_us / rows
        found[f"{rows:,} rows, µs/request"] = cpu_us
        found[f"single beside {rows:,} rows, ms"] = await _single_beside(alone, others, requests)
    return found


async def _single_beside(alone: Connection, others: Connections, requests: Sequence[bytes]) -> float:
    """p99 of a message alone, in milliseconds."""
    load = asyncio.create_task(ask_all(others, requests))
    times: list[float] = []
    while not load.done():
        begun = time.perf_counter()
        await alone.ask(request("/v1/topics/alone/messages", b'{"value":1}', "application/json"))
        times.append(time.perf_counter() - begun)
        await asyncio.sleep(PAUSE_S)
    await load
    return 1000 * quantile(times, 0.99)

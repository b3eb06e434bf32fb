"""What a split gains: one segment at one of two brokers takes what it can; then it is split, and one half is moved to
the other broker. Clients know the segments, and send prepared requests to their owners.

Client and brokers share the machine, so two brokers cannot do twice as much. What it allows is measured in the same
run: the same requests to two brokers that know nothing of one another, beside one of them.
"""

import asyncio
import itertools
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uvloop

from benchmarks import server
from benchmarks.brokers_together import brokers_together
from benchmarks.http import NDJSON, Connection, request
from benchmarks.result import Result
from seaweedq.segments.keyrange import KEY_SPACE, hash_key

ROUNDS, SECONDS, WARM_S, CONNECTIONS, PREPARED = 3, 4.0, 0.5, 64, 512
BATCHES = (1, 50)
TARGET = 1.5
Load = Sequence[tuple[int, list[bytes]]]


def measure(folder: Path) -> Iterator[Result]:
    """All take turns; the best round of each."""
    with (
        brokers_together(folder / "two", 2) as two,
        server.broker(folder / "left") as left,
        server.broker(folder / "right") as right,
    ):
        for rows in BATCHES:
            name = f"rows-{rows}"
            rounds = [
                uvloop.run(_round(f"{name}-{n}", rows, two.ports, (left.port, right.port))) for n in range(ROUNDS)
            ]
            one, split, alone, both = (max(column) for column in zip(*rounds, strict=True))
            yield Result(
                name=f"split throughput, {rows} a request",
                figure=split / one,
                unit="times",
                limit=both / alone,
                limit_is="two brokers that know nothing of one another, by one of them",
                target=TARGET,
                note=f"messages/s at one segment {one:,.0f}, at two {split:,.0f}; at one broker alone {alone:,.0f}, at "
                f"two {both:,.0f}; {CONNECTIONS} connections, {os.cpu_count()} cores, best of {ROUNDS}",
            )


async def _round(topic: str, rows: int, together: Sequence[int], apart: Sequence[int]) -> tuple[float, ...]:
    """Messages/s: at one segment, at its halves, at one broker alone, at two that are alone."""
    low, high = (_prepared(topic, rows, half) for half in (0, 1))
    asking = await Connection.to(together[0])
    for connection in (asking, *[await Connection.to(port) for port in apart]):
        await connection.ask_json("PUT", f"/v1/topics/{topic}")
    (owner,) = (await _owners(asking, topic)).values()
    one = await _per_s([(owner, [*low, *high])]) * rows
    halves = await _split(asking, topic, together)
    split = await _per_s(list(zip(halves, (low, high), strict=True))) * rows
    alone = await _per_s([(apart[0], [*low, *high])]) * rows
    both = await _per_s(list(zip(apart, (low, high), strict=True))) * rows
    asking.close()
    return one, split, alone, both


async def _split(asking: Connection, topic: str, ports: Sequence[int]) -> list[int]:
    """Have the only segment split, its halves at different brokers: their ports."""
    segments = f"/v1/topics/{topic}/segments"
    (number,) = await _owners(asking, topic)
    low, high = (one["id"] for one in (await asking.ask_json("POST", f"{segments}/{number}/split", {}))["successors"])
    brokers = {urlsplit(one["url"]).port: one["id"] for one in (await asking.ask_json("GET", "/v1/cluster"))["brokers"]}
    for half, port in zip((low, high), ports, strict=True):
        await asking.ask_json("POST", f"{segments}/{half}/move", {"to": brokers[port]})
    owners = await _owners(asking, topic)
    return [owners[low], owners[high]]


async def _owners(asking: Connection, topic: str) -> dict[int, int]:
    """The port of each open segment's owner."""
    found: list[Any] = (await asking.ask_json("GET", f"/v1/topics/{topic}/segments"))["segments"]
    return {one["id"]: urlsplit(one["owner_url"]).port or 0 for one in found if one["state"] == "open"}


async def _per_s(load: Load) -> float:
    """Requests answered a second; the connections are shared out evenly."""
    counts = [0] * CONNECTIONS
    opened = [await Connection.to(load[n % len(load)][0]) for n in range(CONNECTIONS)]
    end = time.perf_counter() + WARM_S + SECONDS

    async def produce(number: int) -> None:
        of_all = load[number % len(load)][1]
        for prepared in itertools.cycle(of_all[number // len(load) :] + of_all[: number // len(load)]):
            await opened[number].ask(prepared)
            now = time.perf_counter()
            counts[number] += end - SECONDS <= now < end
            if now >= end:
                break

    await asyncio.gather(*map(produce, range(CONNECTIONS)))
    for connection in opened:
        connection.close()
    return sum(counts) / SECONDS


def _prepared(topic: str, rows: int, half: int) -> list[bytes]:
    """Requests whose keys lie in one half of all."""
    keys = (key for key in map("key-{}".format, itertools.count()) if 2 * hash_key(key) // KEY_SPACE == half)
    noise = os.urandom(32).hex()
    bodies = (
        "\n".join(f'{{"key":"{key}","value":{{"n":{n},"noise":"{noise}"}}}}' for key in itertools.islice(keys, rows))
        for n in range(PREPARED)
    )
    return [request(f"/v1/topics/{topic}/messages", body.encode(), NDJSON) for body in bodies]

"""Arrow batches at full speed into four segments, and what a message costs the broker there, each beside `write_table`
alone."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import messages, server
from benchmarks.http import Connections, ask_all, run
from benchmarks.result import Result

ROUNDS, BATCHES, CONNECTIONS = 3, 400, 6
COUNT = BATCHES * messages.BATCH


def measure(folder: Path) -> Iterator[Result]:
    """Speed with and without the last flush, and CPU; the best round of each."""
    batches = list(messages.arrow_batches(BATCHES))
    with server.broker(folder / "data") as broker:
        rounds = [_round(broker, f"arrow-{number}", batches) for number in range(ROUNDS)]
    table = pa.Table.from_batches(batches)
    limits = [
        written(lambda: pq.write_table(table, folder / "limit.parquet", compression="zstd", compression_level=1))
        for _ in range(3)
    ]
    wall_s, cpu_s = (min(column) for column in zip(*limits, strict=True))
    flushed, published, cpu = (min(column) for column in zip(*rounds, strict=True))
    alone = "write_table of the same rows alone, zstd level 1, best of three"
    yield Result(
        name="arrow",
        figure=COUNT / flushed,
        unit="msg/s",
        limit=COUNT / wall_s,
        limit_is=alone,
        target=1_500_000,
        note=f"the clock stops after a POST flush of everything; best of {ROUNDS} rounds of {COUNT:,}",
    )
    yield Result(name="arrow, last flush not counted", figure=COUNT / published, unit="msg/s", limit=COUNT / wall_s)
    yield Result(
        name="cpu",
        figure=cpu / COUNT * 1e6,
        unit="µs/msg",
        limit=cpu_s / COUNT * 1e6,
        limit_is=f"CPU of {alone}",
        target=2.5,
        target_of="ratio",
        better="lower",
        note="user and system time of the broker, last flush and children included",
    )


def _round(broker: server.Server, topic: str, batches: Sequence[pa.RecordBatch]) -> tuple[float, float, float]:
    """Seconds until all is flushed, until all is published, and the broker's CPU seconds."""
    prepared = [messages.arrow_request(topic, batch) for batch in batches]  # first: idle connections are closed

    async def publish(opened: Connections) -> tuple[float, float, float]:
        await opened[0].ask_json("PUT", f"/v1/topics/{topic}", {"format": "bytes", "initial_segments": 4})
        cpu_s, begun = broker.cpu_s(), time.perf_counter()
        await ask_all(opened, prepared)
        published = time.perf_counter() - begun
        await opened[0].ask_json("POST", f"/v1/topics/{topic}/flush")
        return time.perf_counter() - begun, published, broker.cpu_s() - cpu_s

    found: tuple[float, float, float] = run(broker.port, CONNECTIONS, publish)
    return found


def written(work: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU seconds of this process for some work."""
    before, begun = os.times(), time.perf_counter()
    work()
    wall_s, after = time.perf_counter() - begun, os.times()
    return wall_s, after.user + after.system - before.user - before.system

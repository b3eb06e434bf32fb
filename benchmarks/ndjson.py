"""NDJSON batches into a json topic, beside bare decoding of the same bytes."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from benchmarks import messages, server
from benchmarks.http import Connections, ask_all, run
from benchmarks.result import Result
from seaweedq.rows.envelopes import Envelope

ROUNDS, BATCHES, CONNECTIONS = 3, 150, 6
COUNT = BATCHES * messages.BATCH


def measure(folder: Path) -> Iterator[Result]:
    """The best round, and the best of three for the limit."""
    bodies = list(messages.ndjson_bodies(BATCHES))

    async def rounds(opened: Connections) -> float:
        times = []
        for number in range(ROUNDS):
            topic = f"ndjson-{number}"
            await opened[0].ask_json("PUT", f"/v1/topics/{topic}", {})
            prepared = [messages.ndjson_request(topic, body) for body in bodies]
            begun = time.perf_counter()
            await ask_all(opened, prepared)
            times.append(time.perf_counter() - begun)
        return min(times)

    with server.broker(folder / "data") as broker:
        best_s: float = run(broker.port, CONNECTIONS, rounds)
    decoder, sample = msgspec.json.Decoder(Envelope), bodies[:20]
    limit_s = best_of_three(lambda: [decoder.decode_lines(body) for body in sample])
    yield Result(
        name="ndjson",
        figure=COUNT / best_s,
        unit="msg/s",
        limit=len(sample) * messages.BATCH / limit_s,
        limit_is="msgspec's bare decode_lines of the same bytes, on one core",
        target=600_000,
        note=f"lines of {len(bodies[0]) // messages.BATCH} bytes; best of {ROUNDS} rounds of {COUNT:,}",
    )


def best_of_three(work: Callable[[], object]) -> float:
    """Seconds."""
    times = []
    for _ in range(3):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return min(times)

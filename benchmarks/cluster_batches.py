"""Arrow batches through the Python client into one broker, and into three that share the machine: what a cluster costs
where there is nothing to gain by it. Clients follow the segment map, so that no broker forwards."""

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa

from benchmarks import messages
from benchmarks.brokers_together import brokers_together
from benchmarks.result import Result
from seaweedq import Client

BROKERS, ROUNDS, BATCHES, PRODUCERS, SEGMENTS = 3, 3, 150, 4, 6
COUNT = BATCHES * messages.BATCH
MOST_LOST = 0.15


def measure(folder: Path) -> Iterator[Result]:
    """One broker and three take turns; the best round of each, with and without the last flush."""
    batches = list(messages.arrow_batches(BATCHES))
    with ExitStack() as stack:
        urls = [stack.enter_context(brokers_together(folder / f"of-{n}", n)).urls for n in (1, BROKERS)]
        rounds = [[round_of(each, f"round-{n}", batches) for each in urls] for n in range(ROUNDS)]
    one, several = ([min(column) for column in zip(*each, strict=True)] for each in zip(*rounds, strict=True))
    for name, at in (("", 0), (", last flush not counted", 1)):
        yield Result(
            name=f"cluster batches{name}",
            figure=COUNT / several[at],
            unit="msg/s",
            limit=COUNT / one[at],
            limit_is="one broker, by the same clients",
            target=1 - MOST_LOST,
            target_of="ratio",
            note=f"{BROKERS} brokers on {os.cpu_count()} cores, {PRODUCERS} producers, best of {ROUNDS} of {COUNT:,}",
        )


def round_of(urls: Sequence[str], topic: str, batches: Sequence[pa.RecordBatch]) -> tuple[float, float]:
    """Seconds until all is in files, and until all is acknowledged. Producers know the map before the clock starts."""
    with Client(urls) as client, ThreadPoolExecutor(PRODUCERS) as pool:
        client.create_topic(topic, format="bytes", initial_segments=SEGMENTS)
        producers = [client.producer(topic) for _ in range(PRODUCERS)]
        for producer in producers:
            producer.send_table(batches[0].slice(0, 100))
            producer.flush()
        time.sleep(0.5)
        begun = time.perf_counter()

        def publish(number: int) -> None:
            for batch in batches[number::PRODUCERS]:
                producers[number].send_table(batch)
            producers[number].flush()

        list(pool.map(publish, range(PRODUCERS)))
        published = time.perf_counter() - begun
        client.flush(topic)
        flushed = time.perf_counter() - begun
        client.delete_topic(topic)
    return flushed, published

"""The plan of a read of 10,000 files by the data source: its time and its requests to brokers."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx

from benchmarks import server
from benchmarks.result import Result
from benchmarks.spark_session import missing, session
from seaweedq import Client

FILES, SEGMENTS, ROUNDS = 10_000, 16, 5
TOPIC = "planned"


class Counted(httpx.HTTPTransport):
    """A transport that counts requests."""

    def __init__(self) -> None:
        super().__init__()
        self.requests = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Sends one on."""
        self.requests += 1
        return super().handle_request(request)


def measure(folder: Path) -> Iterator[Result]:
    """A batch by its reader alone, and by Spark, which starts processes of Python for it."""
    if missing("spark_planning"):
        return
    with server.broker(folder / "data") as broker, Client(f"http://127.0.0.1:{broker.port}") as client:
        client.create_topic(TOPIC, initial_segments=SEGMENTS)
        while len(client.files(TOPIC)) < FILES:
            for _ in range(FILES // SEGMENTS // 5):
                client.publish(TOPIC, [{"key": f"k{n}", "value": n} for n in range(16 * SEGMENTS)])
                client.flush(TOPIC)
        url = f"http://127.0.0.1:{broker.port}"
        yield from _by_its_reader(url, len(client.files(TOPIC)))
        yield from _by_spark(folder, url)


def _by_its_reader(url: str, files: int) -> Iterator[Result]:
    from seaweedq.spark import source

    counted, times, tasks = Counted(), [], 0

    def client(url: str) -> Client:
        return Client(url, transport=counted)

    made = source.Source({"url": url, "topic": TOPIC})
    schema = made.schema()
    with patch.object(source, "Client", client):
        for _ in range(ROUNDS):
            counted.requests = 0
            begun = time.perf_counter()
            tasks = len(made.reader(schema).partitions())
            times.append(time.perf_counter() - begun)
    note = f"{files:,} files in {SEGMENTS} segments, {tasks} tasks; worst of {ROUNDS}"
    yield Result(name="spark_planning", figure=max(times), unit="s", target=1, better="lower", note=note)
    yield Result(
        name="spark_planning, requests", figure=counted.requests, unit="requests", target=20, better="lower", note=note
    )


def _by_spark(folder: Path, url: str) -> Iterator[Result]:
    with session(folder) as spark:

        def planned(name: str, **options: Any) -> float:
            begun = time.perf_counter()
            frame = spark.read.format(name).options(**options).load(*paths.get(name, ()))
            frame._jdf.queryExecution().executedPlan()
            frame.rdd.getNumPartitions()
            return time.perf_counter() - begun

        paths = {"parquet": (str(folder / "data/store/topics" / TOPIC),)}
        turns = [(planned("seaweedq", url=url, topic=TOPIC), planned("parquet")) for _ in range(ROUNDS)]
    yield Result(
        name="spark_planning, by Spark",
        figure=min(own for own, _ in turns),
        unit="s",
        limit=min(limit for _, limit in turns),
        limit_is="spark.read.parquet of the same files, planned",
        better="lower",
        note=f"from load() to the tasks; best of {ROUNDS} rounds in turns",
    )

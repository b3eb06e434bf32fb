"""`spark.read.parquet(topic)` beside the same rows in files that Spark wrote itself, one for each of the topic's, in
zstd."""

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks import messages, server
from benchmarks.result import Result
from seaweedq import Client
from seaweedq.cli.demo.demo_tables import missing_for_spark

ROUNDS, BATCHES, SEGMENTS, CARRIERS = 9, 300, 4, 16
COUNT = BATCHES * messages.BATCH
KINDS = {"n": "long", "carrier": "string", "delay": "double", "distance": "int", "at": "timestamptz"}
SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": at + 1, "name": name, "required": False, "type": kind} for at, (name, kind) in enumerate(KINDS.items())
    ],
}
OPTIONS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
}


def measure(folder: Path) -> Iterator[Result]:
    """All columns of a topic of opaque values, and of one of typed columns; and of the latter one column."""
    if missing := missing_for_spark():
        logging.getLogger(__name__).warning("spark_read is left out: %s", missing)
        return
    with server.broker(folder / "data") as broker, Client(f"http://127.0.0.1:{broker.port}") as client:
        client.create_topic("opaque", format="bytes", initial_segments=SEGMENTS)
        client.create_topic("typed", format="typed", schema=SCHEMA, initial_segments=SEGMENTS)
        _fill(client, "opaque", messages.arrow_batches(BATCHES))
        _fill(client, "typed", _typed_batches())
    with _session(folder) as spark:
        for topic in ("opaque", "typed"):
            own, other = folder / "data/store/topics" / topic, folder / f"spark-{topic}"
            _rewrite(spark, own, other)
            yield _compare(f"spark_read, {topic}", spark, own, other, lambda frame: frame)
        yield _compare("spark_read, one column", spark, own, other, lambda frame: frame.select("delay"))


def _fill(client: Client, topic: str, batches: Iterator[pa.RecordBatch]) -> None:
    with client.producer(topic) as producer:
        for batch in batches:
            producer.send_table(batch)
    client.flush(topic)


def _typed_batches() -> Iterator[pa.RecordBatch]:
    random = np.random.default_rng(1)
    for n in range(BATCHES):
        numbers = np.arange(n * messages.BATCH, (n + 1) * messages.BATCH)
        carriers = [f"carrier {at}" for at in random.integers(0, CARRIERS, messages.BATCH)]
        columns = {
            "_key": pa.array(carriers),
            "n": numbers,
            "carrier": pa.array(carriers),
            "delay": random.normal(0, 30, messages.BATCH),
            "distance": random.integers(50, 5000, messages.BATCH, dtype=np.int32),
            "at": pa.array(1_700_000_000_000_000 + numbers * 1000, pa.timestamp("us", tz="UTC")),
        }
        yield pa.RecordBatch.from_pydict(columns)


@contextmanager
def _session(scratch: Path) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    options = {**OPTIONS, "spark.local.dir": str(scratch), "spark.sql.warehouse.dir": str(scratch / "warehouse")}
    spark = SparkSession.builder.master(f"local[{os.cpu_count()}]").config(map=options).getOrCreate()
    try:
        spark.sparkContext.setLogLevel("ERROR")
        yield spark
    finally:
        spark.stop()


def _rewrite(spark: Any, own: Path, other: Path) -> None:
    """Spark's own copy: the same columns, rows and order, a file for a file."""
    for file in _files(own):
        frame = spark.read.parquet(str(file)).coalesce(1)
        frame.write.mode("append").option("compression", "zstd").parquet(str(other / file.parent.name))


def _files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.parquet"))


def _compare(name: str, spark: Any, own: Path, other: Path, chosen: Callable[[Any], Any]) -> Result:
    """Both in turns, the opening of the directory included; the best round of each."""

    def seconds(folder: Path) -> float:
        begun = time.perf_counter()
        chosen(spark.read.parquet(str(folder))).write.format("noop").mode("overwrite").save()
        return time.perf_counter() - begun

    assert spark.read.parquet(str(own)).count() == spark.read.parquet(str(other)).count() == COUNT
    turns = [(seconds(own), seconds(other)) for _ in range(ROUNDS)]
    figure, limit = (COUNT / min(column) for column in zip(*turns, strict=True))
    sizes = [sum(file.stat().st_size for file in _files(folder)) / 2**20 for folder in (own, other)]
    return Result(
        name=name, figure=figure, unit="rows/s", limit=limit, limit_is="the same rows in files that Spark wrote",
        target=0.9, target_of="ratio",
        note=f"{COUNT:,} rows, {sizes[0]:.0f} MiB in {len(_files(own))} files, Spark's {sizes[1]:.0f} MiB in "
        f"{len(_files(other))}; best of {ROUNDS} rounds in turns",
    )  # fmt: skip

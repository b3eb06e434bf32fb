"""A Spark session under measurement, topics of typed columns for it, and the CPU of all processes that take part."""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks import messages
from seaweedq import Client
from seaweedq.cli.demo.demo_tables import missing_for_spark

CARRIERS = 16
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
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cost:
    """The time of a query, and the CPU of this process and of all that descend from it, brokers included."""

    seconds: float
    cpu_s: float


def missing(name: str) -> bool:
    """Tells whether Spark can not run here, and logs that the benchmark is left out."""
    if lack := missing_for_spark():
        logging.getLogger(__name__).warning("%s is left out: %s", name, lack)
    return bool(lack)


@contextmanager
def session(scratch: Path, **options: str) -> Iterator[Any]:
    """A local session on all cores, stopped afterwards."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable  # else its workers are python3 of the PATH
    chosen = {**OPTIONS, "spark.local.dir": str(scratch), "spark.sql.warehouse.dir": str(scratch / "warehouse")}
    builder = SparkSession.builder.master(f"local[{os.cpu_count()}]").config(map=chosen | options)
    spark = builder.getOrCreate()
    try:
        spark.sparkContext.setLogLevel("ERROR")
        yield spark
    finally:
        spark.stop()


def cost(query: Callable[[], Any]) -> Cost:
    """Runs a query."""
    begun, before = time.perf_counter(), tree_cpu_s()
    query()
    return Cost(time.perf_counter() - begun, tree_cpu_s() - before)


def consume(frame: Any) -> None:
    """Has Spark compute all columns of all rows, and keep none."""
    frame.write.format("noop").mode("overwrite").save()


def tree_cpu_s() -> float:
    """Returns user and system seconds so far of this process and of all that descend from it, those that have ended
    included."""
    parents: dict[int, int] = {}
    seconds: dict[int, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        parents[int(stat.parent.name)] = int(fields[1])
        seconds[int(stat.parent.name)] = sum(map(int, fields[11:15])) / _TICKS
    return sum(spent for pid, spent in seconds.items() if _descends(pid, parents))


def _descends(pid: int, parents: dict[int, int]) -> bool:
    while pid in parents:
        if pid == os.getpid():
            return True
        pid = parents[pid]
    return False


def fill(client: Client, topic: str, batches: Iterator[pa.RecordBatch]) -> None:
    """Publishes batches, and has them written to files."""
    with client.producer(topic) as producer:
        for batch in batches:
            producer.send_table(batch)
    client.flush(topic)


def typed_batches(count: int, first: int = 0) -> Iterator[pa.RecordBatch]:
    """Batches of SCHEMA's columns, with keys."""
    random = np.random.default_rng(first)
    for n in range(first, first + count):
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

"""A Spark session under measurement, topics of typed columns for it, and the CPU of all processes that take part."""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks import messages
from benchmarks.result import Result
from seaweedq import Client
from seaweedq.spark.jobs.session import missing_for_spark

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
        with _spent.watched():
            yield spark
    finally:
        spark.stop()


def cost(query: Callable[[], Any]) -> Cost:
    """Runs a query."""
    begun, before = time.perf_counter(), tree_cpu_s()
    query()
    return Cost(time.perf_counter() - begun, tree_cpu_s() - before)


def in_turns(own: Callable[[], Any], other: Callable[[], Any], rounds: int) -> tuple[list[Cost], list[Cost]]:
    """Runs two queries in turns, and returns the costs of each."""
    turns = [(cost(own), cost(other)) for _ in range(rounds)]
    return [one for one, _ in turns], [one for _, one in turns]


def rates(
    name: str, count: int, turns: tuple[Sequence[Cost], Sequence[Cost]], limit_is: str, note: str,
    targets: tuple[float | None, float | None],
) -> Iterator[Result]:  # fmt: skip
    """Yields rows a second of the best round, by time and by CPU, beside those of a limit; the targets are ratios."""
    for what, target, unit in (("seconds", targets[0], "rows/s"), ("cpu_s", targets[1], "rows/s of CPU")):
        figure, limit = (count / min(getattr(one, what) for one in column) for column in turns)
        yield Result(
            name=name if what == "seconds" else f"{name}, CPU", figure=figure, unit=unit, limit=limit,
            limit_is=limit_is, target=target, target_of="ratio", note=note,
        )  # fmt: skip


def consume(frame: Any) -> None:
    """Has Spark compute all columns of all rows, and keep none."""
    frame.write.format("noop").mode("overwrite").save()


def tree_cpu_s() -> float:
    """Returns user and system seconds so far of this process and of all that descend from it, those that have ended
    included."""
    return _spent.seconds()


@dataclass(frozen=True)
class _Process:
    parent: int
    started: int
    seconds: float  # with those of its children that it has waited for
    is_waited_for: bool


class _Spent:
    """The CPU of the tree of processes.

    The daemon of Spark's Python workers ignores SIGCHLD, so a worker that ends, as an idle one does after a minute, is
    in nobody's time of children. What it had spent when it was last looked at is kept: look once a second.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unwaited: dict[tuple[int, int], float] = {}

    def seconds(self) -> float:
        with self._lock:
            there = _processes()
            alive = {(pid, one.started): one for pid, one in there.items() if _descends(pid, there)}
            self._unwaited |= {key: one.seconds for key, one in alive.items() if not one.is_waited_for}
            ended = [seconds for key, seconds in self._unwaited.items() if key not in alive]
            return sum(one.seconds for one in alive.values()) + sum(ended)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Looks once a second meanwhile."""
        over = threading.Event()

        def look() -> None:
            while not over.wait(1):
                self.seconds()

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


_spent = _Spent()


def _processes() -> dict[int, _Process]:
    found: dict[int, _Process] = {}
    deaf: set[int] = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            status = stat.with_name("status").read_text()
        except OSError:
            continue  # it has ended meanwhile
        pid = int(stat.parent.name)
        found[pid] = _Process(int(fields[1]), int(fields[19]), sum(map(int, fields[11:15])) / _TICKS, True)
        if int(status.partition("SigIgn:")[2].split()[0], 16) >> (signal.SIGCHLD - 1) & 1:
            deaf.add(pid)
    return {pid: replace(one, is_waited_for=one.parent not in deaf) for pid, one in found.items()}


def _descends(pid: int, there: Mapping[int, _Process]) -> bool:
    while pid in there:
        if pid == os.getpid():
            return True
        pid = there[pid].parent
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

"""A Spark application in a process of its own: reads a topic in several ways, and prints what it has got as JSON.

Run from the root of the repository: python -m tests.support.spark.application '{"topic": …}' with the fields of
`Application`. `run` does so.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT

WITHIN_S = 240
ALWAYS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
}


@dataclass(frozen=True)
class Application:
    """The session's `config`, the topic, the `ways` to read it, the source's `options`, and where it may write."""

    topic: str
    url: str
    scratch: str
    master: str = "local[2]"
    ways: tuple[str, ...] = ("read_topic", "source", "stream")
    config: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    driver_bytes: int | None = None  # what of a tail goes through the driver


class ApplicationFailed(Exception):
    """The application ended with an error; the text is all that it has printed."""


def run(application: Application, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Runs an application: by way, the sorted numbers that its rows have; under `executors`, how many there were."""
    outer = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "SEAWEEDQ_"))}
    given = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.support.spark.application", json.dumps(asdict(application))]
    done = subprocess.run(
        command, cwd=ROOT, env={**outer, **given, **(environment or {})}, capture_output=True, text=True,
        timeout=WITHIN_S,
    )  # fmt: skip
    if done.returncode:
        raise ApplicationFailed(f"{done.stdout}\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(asked: Application) -> None:
    """Runs in the application's own process."""
    from pyspark.sql import SparkSession

    from seaweedq.spark import topic_table

    if asked.driver_bytes is not None:
        topic_table.DRIVER_BYTES = asked.driver_bytes
    own = {"spark.local.dir": asked.scratch, "spark.sql.warehouse.dir": f"{asked.scratch}/warehouse"}
    spark = SparkSession.builder.master(asked.master).config(map={**ALWAYS, **own, **asked.config}).getOrCreate()
    try:
        read: dict[str, Callable[[Any, Application], list[int]]] = {
            "read_topic": lambda spark, asked: _numbers(topic_table.read_topic(spark, asked.topic, asked.url)),
            "source": lambda spark, asked: _numbers(_source(spark.read, asked)),
            "stream": _stream,
        }
        found: dict[str, Any] = {way: sorted(read[way](spark, asked)) for way in asked.ways}
        tracker = spark.sparkContext._jsc.sc().statusTracker()
        print(json.dumps({**found, "executors": len(tracker.getExecutorInfos()) - 1}), flush=True)
    finally:
        spark.stop()


def _source(reader: Any, asked: Application, **more: str) -> Any:
    return reader.format("seaweedq").options(url=asked.url, topic=asked.topic, **asked.options, **more).load()


def _stream(spark: Any, asked: Application) -> list[int]:
    batches: dict[int, list[int]] = {}

    def sink(frame: Any, batch: int) -> None:
        batches[batch] = _numbers(frame)

    writer = _source(spark.readStream, asked, startingOffsets="earliest", maxOffsetsPerTrigger="100").writeStream
    place = str(Path(asked.scratch) / "checkpoint")
    query = writer.foreachBatch(sink).option("checkpointLocation", place).trigger(availableNow=True).start()
    query.awaitTermination()
    return [number for numbers in batches.values() for number in numbers]


def _numbers(frame: Any) -> list[int]:
    return [int(row.value) for row in frame.select("value").collect()]


if __name__ == "__main__":
    main(Application(**json.loads(sys.argv[1])))

"""`seaweedq.spark.jobs.compact` beside Spark's own `max_by` over the same files, which writes its rows to Parquet, too:
ten rows a key, in turns, each to a folder of its own."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks import messages, server
from benchmarks.result import Result
from benchmarks.spark_session import SCHEMA, cost, fill, missing, session, typed_batches
from seaweedq import Client
from seaweedq.spark.jobs.compact import Rules, compact
from seaweedq.spark.jobs.generation_job import Target

ROUNDS, SEGMENTS, ROWS_A_KEY = 3, 4, 10
BATCHES = max(1, int(os.environ.get("SEAWEEDQ_BENCH_COMPACT_ROWS", "10000000")) // messages.BATCH)
COUNT = BATCHES * messages.BATCH
TOPIC = "compacted"


def measure(folder: Path) -> Iterator[Result]:
    """Both in turns, the plan and the record included; the best round of each."""
    if missing("spark_compact"):
        return
    with server.broker(folder / "data") as broker, Client(f"http://127.0.0.1:{broker.port}") as client:
        client.create_topic(TOPIC, format="typed", schema=SCHEMA, initial_segments=SEGMENTS)
        fill(client, TOPIC, _keyed())
        path, url = str(folder / "data/store/topics" / TOPIC), f"http://127.0.0.1:{broker.port}"
        with session(folder) as spark:
            turns = []
            for _ in range(ROUNDS):
                for made in ("own", "other"):
                    shutil.rmtree(folder / made, ignore_errors=True)
                own = cost(lambda: compact(spark, TOPIC, url, Target(str(folder / "own")), Rules()))
                other = cost(lambda: _max_by(spark, path, str(folder / "other")))
                turns.append((own, other))
            keys = spark.read.parquet(str(folder / "other")).count()
            assert keys == spark.read.parquet(str(next((folder / "own").glob("gen=1-*")))).count()
    note = f"{COUNT:,} rows of {keys:,} keys in files; best of {ROUNDS} rounds in turns"
    limit_is = "Spark's max_by over the files by spark.read.parquet, written to Parquet"
    for what, unit, name in (("seconds", "s", "spark_compact"), ("cpu_s", "s of CPU", "spark_compact, CPU")):
        figure, limit = (min(getattr(one, what) for one in column) for column in zip(*turns, strict=True))
        yield Result(
            name=name, figure=figure, unit=unit, limit=limit, limit_is=limit_is, target=1.3, target_of="ratio",
            better="lower", note=note,
        )  # fmt: skip


def _keyed() -> Iterator[pa.RecordBatch]:
    random = np.random.default_rng(0)
    keys = max(1, COUNT // ROWS_A_KEY)
    for batch in typed_batches(BATCHES):
        drawn = pa.array([f"key-{at}" for at in random.integers(0, keys, batch.num_rows)])
        yield batch.set_column(batch.schema.get_field_index("_key"), "_key", drawn)


def _max_by(spark: Any, path: str, to: str) -> None:
    from pyspark.sql import functions as F

    rows = spark.read.parquet(path)
    newest = F.max_by(F.struct(*rows.columns), F.struct("segment", "_offset")).alias("row")
    kept = rows.groupBy("_key").agg(newest).select("row.*")
    kept.write.option("compression", "zstd").parquet(to)

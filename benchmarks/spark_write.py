"""A DataFrame written into a topic until its write is done, beside its parts; and a trigger of many small tasks beside
Spark's own sinks. Spark and the broker share the cores."""

import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import server
from benchmarks.result import Result
from benchmarks.spark_session import CARRIERS, KINDS, SCHEMA, Cost, cost, missing, session, tree_cpu_s
from seaweedq import Client

COUNT, TASKS, SEGMENTS, ROUNDS = 8_000_000, 4, 4, 3
SMALL_TASKS, SMALL_ROWS, TRIGGERS, WARM = 200, 100, 6, 2


def measure(folder: Path) -> Iterator[Result]:
    """First many rows, then a stream of small tasks."""
    if missing("spark_write"):
        return
    with server.broker(folder / "data") as broker, Client(f"http://127.0.0.1:{broker.port}") as client:
        url = f"http://127.0.0.1:{broker.port}"
        with session(folder, **{"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}) as spark:
            yield from _many_rows(spark, folder, client, url)
            yield from _small_tasks(spark, folder, client, url)


def _many_rows(spark: Any, folder: Path, client: Client, url: str) -> Iterator[Result]:
    frame = _rows(spark)
    rounds = [_round(frame, folder / f"parquet-{at}", client, url, f"rows-{at}") for at in range(ROUNDS + 1)][1:]
    own, parquet, imported = (min(column, key=lambda one: one.seconds) for column in zip(*rounds, strict=True))
    parts = parquet.seconds + imported.seconds
    yield Result(
        name="spark_write", figure=COUNT / own.seconds, unit="rows/s", limit=COUNT / parts,
        limit_is=f"its parts one after the other: Spark writing the same rows as Parquet ({parquet.seconds:.1f} s), "
        f"and the write of these files alone ({imported.seconds:.1f} s)",
        target=400_000,
        note=f"save() of {COUNT:,} rows, {TASKS} tasks, {len(KINDS) + 1} columns, {SEGMENTS} segments; best of "
        f"{ROUNDS} rounds: {own.seconds:.1f} s, {own.cpu_s:.1f} s of CPU of Spark and broker",
    )  # fmt: skip


def _rows(spark: Any) -> Any:
    """The columns of SCHEMA and keys, as Spark computes them."""
    carrier = f"concat('carrier ', pmod(xxhash64(id), {CARRIERS}))"
    columns = {
        "_key": carrier,
        "n": "id",
        "carrier": carrier,
        "delay": "pmod(xxhash64(id, 1), 100000) / 1000D - 30D",
        "distance": "cast(50 + pmod(xxhash64(id, 2), 4950) as int)",
        "at": "timestamp_micros(1700000000000000 + id * 1000)",
    }
    return spark.range(0, COUNT, 1, TASKS).selectExpr(*(f"{made} as {name}" for name, made in columns.items()))


def _round(frame: Any, files: Path, client: Client, url: str, topic: str) -> tuple[Cost, Cost, Cost]:
    """The whole, Spark writing Parquet, and the write of these files; each with the CPU of all processes."""
    for name in (topic, f"{topic}-alone"):
        client.create_topic(name, format="typed", schema=SCHEMA, initial_segments=SEGMENTS)
    writer = frame.write.format("seaweedq").options(url=url, topic=topic).mode("append")
    own = cost(writer.save)
    parquet = cost(lambda: frame.write.option("compression", "zstd").parquet(str(files)))
    uploads = [
        client.upload(f"{topic}-alone", file, "application/vnd.apache.parquet", write="alone/0")
        for file in sorted(files.glob("*.parquet"))
    ]
    imported = cost(lambda: client.write(f"{topic}-alone", "alone", 0, uploads))
    return own, parquet, imported


def _small_tasks(spark: Any, folder: Path, client: Client, url: str) -> Iterator[Result]:
    client.create_topic("triggers")
    spark.sparkContext.setLogLevel("OFF")  # a query that is stopped amid a batch has much to say
    spark.dataSource.register(_empty_sink())
    own = {"url": url, "topic": "triggers"}
    options: dict[str, dict[str, str]] = {"noop": {}, "parquet": {"path": str(folder / "sunk")}, "empty": {}}
    took = {
        sink: _trigger(spark, folder / f"at-{sink}", sink, given)
        for sink, given in {**options, "seaweedq": own}.items()
    }
    told = ", ".join(f"{sink} {one.seconds:.2f} s, {one.cpu_s:.1f} s of CPU" for sink, one in took.items())
    note = f"{SMALL_TASKS} tasks of {SMALL_ROWS} rows; median of {TRIGGERS} triggers, CPU in the mean: {told}"
    yield Result(
        name="spark_write, a trigger, added", figure=took["seaweedq"].seconds - took["parquet"].seconds, unit="s",
        target=1.5, better="lower", note=f"to Spark's own sink of Parquet; {note}",
    )  # fmt: skip
    yield Result(
        name="spark_write, a trigger, CPU", figure=took["seaweedq"].cpu_s, unit="s", limit=took["empty"].cpu_s,
        limit_is="a sink in Python that does nothing", better="lower", note=note,
    )  # fmt: skip


def _empty_sink() -> Any:
    """The class of a sink in Python that drops its rows: defined here, so that Spark's workers need no module for
    it."""
    from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

    class Writer(DataSourceStreamArrowWriter):
        def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
            for _ in iterator:
                pass
            return WriterCommitMessage()

    class Empty(DataSource):
        @classmethod
        def name(cls) -> str:
            return "empty"

        def streamWriter(self, schema: Any, overwrite: bool) -> Writer:
            return Writer()

    return Empty


def _trigger(spark: Any, checkpoint: Path, sink: str, options: dict[str, str]) -> Cost:
    """The cost of a trigger, behind WARM others: the median of the seconds, and the mean of the CPU."""
    source = spark.readStream.format("rate-micro-batch").option("numPartitions", SMALL_TASKS)
    rows = source.option("rowsPerBatch", SMALL_TASKS * SMALL_ROWS).load()
    writer = rows.selectExpr("cast(value % 23 as string) _key", "to_json(struct(value n)) value").writeStream
    query = writer.format(sink).options(**options, checkpointLocation=str(checkpoint)).start()
    try:
        _await_triggers(query, WARM)
        before, cpu_s = len(query.recentProgress), tree_cpu_s()
        _await_triggers(query, before + TRIGGERS)
        found = [one["durationMs"]["triggerExecution"] / 1000 for one in query.recentProgress[before:]]
        spent_s = tree_cpu_s() - cpu_s
    finally:
        query.stop()
    return Cost(statistics.median(found), spent_s / len(found))


def _await_triggers(query: Any, count: int) -> None:
    while len(query.recentProgress) < count:
        assert query.isActive, query.exception()
        time.sleep(0.05)

"""`spark.read.parquet(topic)` beside the same rows in files that Spark wrote itself, one for each of the topic's, in
zstd."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import messages, server
from benchmarks.result import Result
from benchmarks.spark_session import SCHEMA, consume, fill, in_turns, missing, rates, session, typed_batches
from seaweedq import Client

ROUNDS, BATCHES, SEGMENTS = 7, 1_200, 4
COUNT = BATCHES * messages.BATCH


def measure(folder: Path) -> Iterator[Result]:
    """All columns of a topic of opaque values, and of one of typed columns; and of the latter one column."""
    if missing("spark_read"):
        return
    with server.broker(folder / "data") as broker, Client(f"http://127.0.0.1:{broker.port}") as client:
        client.create_topic("opaque", format="bytes", initial_segments=SEGMENTS)
        client.create_topic("typed", format="typed", schema=SCHEMA, initial_segments=SEGMENTS)
        fill(client, "opaque", messages.arrow_batches(BATCHES))
        fill(client, "typed", typed_batches(BATCHES))
    with session(folder) as spark:
        for topic in ("opaque", "typed"):
            own, other = folder / "data/store/topics" / topic, folder / f"spark-{topic}"
            _rewrite(spark, own, other)
            yield from _compare(f"spark_read, {topic}", spark, own, other, lambda frame: frame)
        yield from _compare("spark_read, one column", spark, own, other, lambda frame: frame.select("delay"))


def _rewrite(spark: Any, own: Path, other: Path) -> None:
    """Spark's own copy: the same columns, rows and order, a file for a file."""
    for file in _files(own):
        frame = spark.read.parquet(str(file)).coalesce(1)
        frame.write.mode("append").option("compression", "zstd").parquet(str(other / file.parent.name))


def _files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.parquet"))


def _compare(name: str, spark: Any, own: Path, other: Path, chosen: Callable[[Any], Any]) -> Iterator[Result]:
    """Both in turns, the opening of the directory included; the best round of each."""
    assert spark.read.parquet(str(own)).count() == spark.read.parquet(str(other)).count() == COUNT

    def read(place: Path) -> Callable[[], None]:
        return lambda: consume(chosen(spark.read.parquet(str(place))))

    turns = in_turns(read(own), read(other), ROUNDS)
    sizes = [sum(file.stat().st_size for file in _files(folder)) / 2**20 for folder in (own, other)]
    note = (
        f"{COUNT:,} rows, {sizes[0]:.0f} MiB in {len(_files(own))} files, Spark's {sizes[1]:.0f} MiB in "
        f"{len(_files(other))}; best of {ROUNDS} rounds in turns"
    )
    yield from rates(name, COUNT, turns, "the same rows in files that Spark wrote", note, (0.9, None))

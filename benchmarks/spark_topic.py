"""`read_topic` and the data source beside `spark.read.parquet` of the same topic: time, and CPU of all processes."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import messages, server
from benchmarks.result import Result
from benchmarks.spark_session import SCHEMA, consume, fill, in_turns, missing, rates, session, typed_batches
from seaweedq import Client
from seaweedq.spark import read_topic

ROUNDS, BATCHES, TAIL_BATCHES, SEGMENTS = 5, 1_200, 10, 4
COUNT = BATCHES * messages.BATCH
TAIL = TAIL_BATCHES * messages.BATCH
LIMIT_IS = "spark.read.parquet of the files"
TWO = ("carrier", "delay")
HASHES = 2  # of each row, so that the scan takes ten seconds
Query = Callable[[], Any]


def measure(folder: Path) -> Iterator[Result]:
    """A scan of ten seconds with a tail, and the data source over files: all columns, two of them, and counting."""
    if missing("spark_topic"):
        return
    # No tail becomes a file by itself.
    options = ("--flush-max-age-s", "86400", "--journal-max-unreleased-bytes", "1073741824")
    with server.broker(folder / "data", *options) as broker, Client(f"http://127.0.0.1:{broker.port}") as client:
        client.create_topic("typed", format="typed", schema=SCHEMA, initial_segments=SEGMENTS)
        fill(client, "typed", typed_batches(BATCHES))
        path = str(folder / "data/store/topics/typed")
        url = f"http://127.0.0.1:{broker.port}"
        with session(folder) as spark:
            yield from _source(spark, path, url)
            with client.producer("typed") as producer:
                for batch in typed_batches(TAIL_BATCHES, BATCHES):
                    producer.send_table(batch)
            yield from _topic(spark, path, url)


def _topic(spark: Any, path: str, url: str) -> Iterator[Result]:
    whole = read_topic(spark, "typed", url)
    assert whole.count() == COUNT + TAIL, "the tail is in no file"
    turns = in_turns(lambda: _scan(read_topic(spark, "typed", url)), lambda: _scan(spark.read.parquet(path)), ROUNDS)
    note = f"a scan of {COUNT:,} rows, {TAIL:,} more in the tail; best of {ROUNDS} rounds in turns"
    yield from rates("spark_topic, read_topic", COUNT, turns, LIMIT_IS, note, (0.9, None))


def _source(spark: Any, path: str, url: str) -> Iterator[Result]:
    def source(**options: str) -> Any:
        return spark.read.format("seaweedq").options(url=url, topic="typed", **options).load()

    def parquet() -> Any:
        return spark.read.parquet(path)

    assert source().count() == COUNT
    note = f"{COUNT:,} rows in files; best of {ROUNDS} rounds in turns"
    pairs: tuple[tuple[str, tuple[float | None, float | None], Query, Query], ...] = (
        ("all columns", (0.6, 0.4), lambda: consume(source()), lambda: consume(parquet())),
        (
            "two columns",
            (0.4, None),
            lambda: consume(source(columns=",".join(TWO))),
            lambda: consume(parquet().select(*TWO)),
        ),
        ("counting", (None, None), lambda: source(columns="").count(), lambda: parquet().count()),
    )
    for name, targets, own, other in pairs:
        turns = in_turns(own, other, ROUNDS)
        yield from rates(f"spark_topic, source, {name}", COUNT, turns, LIMIT_IS, note, targets)


def _scan(frame: Any) -> None:
    text = "concat(carrier, delay)"
    for _ in range(HASHES):
        text = f"sha2({text}, 512)"
    frame.selectExpr(f"max({text})", "sum(distance)", "max(at)").collect()

"""`seaweedq spark audit` of a topic's files, beside Spark's plain scan of the same files."""

from collections.abc import Iterator
from pathlib import Path

from benchmarks import messages, server
from benchmarks.result import Result
from benchmarks.spark_session import SCHEMA, consume, fill, in_turns, missing, rates, session, typed_batches
from seaweedq import Client

ROUNDS, BATCHES, SEGMENTS = 5, 400, 4
COUNT = BATCHES * messages.BATCH
KINDS = {"typed": {"format": "typed", "schema": SCHEMA}, "opaque": {"format": "bytes"}}


def measure(folder: Path) -> Iterator[Result]:
    """Topics of typed columns, and of opaque values."""
    if missing("spark_audit"):
        return
    from seaweedq.spark.jobs.audit import audit

    with server.broker(folder / "data") as broker, Client(f"http://127.0.0.1:{broker.port}") as client:
        for topic, config in KINDS.items():
            client.create_topic(topic, initial_segments=SEGMENTS, **config)
        fill(client, "typed", typed_batches(BATCHES))
        fill(client, "opaque", messages.arrow_batches(BATCHES))
    store = folder / "data/store"
    with session(folder) as spark:
        for topic in KINDS:

            def audited(topic: str = topic) -> None:
                done = audit(spark, topic, None, f"file://{store}")
                assert not done.findings
                assert sum(one.rows for one in done.segments) == COUNT

            def scanned(topic: str = topic) -> None:
                consume(spark.read.parquet(str(store / "topics" / topic)))

            yield from rates(
                f"spark_audit, {topic}", COUNT, in_turns(audited, scanned, ROUNDS),
                "Spark's scan of all columns of the same files", f"{COUNT:,} rows; best of {ROUNDS} rounds in turns",
                (0.7, None),
            )  # fmt: skip

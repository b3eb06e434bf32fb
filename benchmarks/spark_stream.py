"""A stream of Spark beside its broker and its producer, on the same cores: an empty trigger, and how far it lags behind
100,000 messages/s."""

import multiprocessing
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import messages, server
from benchmarks.result import Result
from benchmarks.spark_session import SCHEMA, missing, session, tree_cpu_s, typed_batches
from seaweedq import Client

RATE, SEGMENTS, IDLE_S, LOOK_S, WARM_S = 100_000, 4, 15.0, 1.0, 20.0
SECONDS = float(os.environ.get("SEAWEEDQ_BENCH_STREAM_S", "600"))
LAG_S = 15.0  # a lag of more than the 10 s of a trigger and half of one is one that grows


def measure(folder: Path) -> Iterator[Result]:
    """First a query over a topic to which nobody publishes, then one under load."""
    if missing("spark_stream"):
        return
    with server.broker(folder / "data") as broker:
        url = f"http://127.0.0.1:{broker.port}"
        with Client(url) as client:
            client.create_topic("idle", format="typed", schema=SCHEMA, initial_segments=SEGMENTS)
            client.create_topic("busy", format="typed", schema=SCHEMA, initial_segments=SEGMENTS)
            client.publish("idle", [{"key": f"k{n}", "value": {"n": n}} for n in range(100)])
        with session(folder, **{"spark.sql.streaming.noDataProgressEventInterval": "0"}) as spark:
            yield _empty_trigger(spark, folder, url)
            yield from _under_load(spark, folder, url, broker)


def _query(spark: Any, folder: Path, url: str, topic: str) -> Any:
    frame = spark.readStream.format("seaweedq").options(url=url, topic=topic, startingOffsets="earliest").load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(folder / f"checkpoint-{topic}"))
    return writer.trigger(processingTime="0 seconds").start()


def _empty_trigger(spark: Any, folder: Path, url: str) -> Result:
    query = _query(spark, folder, url, "idle")
    try:
        while not query.recentProgress or query.recentProgress[-1]["numInputRows"]:
            time.sleep(0.1)
        time.sleep(IDLE_S)
        found = [one["durationMs"]["triggerExecution"] for one in query.recentProgress if not one["numInputRows"]]
    finally:
        query.stop()
    return Result(
        name="spark_stream, empty trigger", figure=statistics.median(found), unit="ms", target=150, better="lower",
        note=f"median of {len(found)}, {min(found)} to {max(found)} ms; {SEGMENTS} segments",
    )  # fmt: skip


def _under_load(spark: Any, folder: Path, url: str, broker: server.Server) -> Iterator[Result]:
    sent = multiprocessing.get_context("spawn").Value("q", 0)
    producer = multiprocessing.get_context("spawn").Process(target=_produce, args=(url, sent), daemon=True)
    query = _query(spark, folder, url, "busy")
    lags: list[float] = []
    read, seen = 0, -1
    producer.start()
    try:
        while not sent.value:
            assert producer.is_alive(), "the producer has ended"
            time.sleep(LOOK_S / 10)
        begun, cpu_s, broker_s = time.perf_counter(), tree_cpu_s(), broker.cpu_s()
        while time.perf_counter() - begun < SECONDS:
            time.sleep(LOOK_S)
            for progress in query.recentProgress:
                if progress["batchId"] > seen and progress["numInputRows"]:
                    seen, read = progress["batchId"], read + progress["numInputRows"]
            lags.append((sent.value - read) / RATE)
        took_s, cpu_s, broker_s = time.perf_counter() - begun, tree_cpu_s() - cpu_s, broker.cpu_s() - broker_s
        rate = sent.value / took_s
    finally:
        producer.kill()
        producer.join()
        query.stop()
    settled = lags[int(WARM_S / LOOK_S) :]
    quarter = len(settled) // 4
    early, late = (statistics.mean(part) for part in (settled[:quarter], settled[-quarter:]))
    note = (
        f"{took_s:.0f} s at {rate:,.0f} messages/s, {seen + 1} batches, {read:,} rows read; of both cores "
        f"{50 * cpu_s / took_s:.0f}%, the broker {50 * broker_s / took_s:.0f}%; mean of the first quarter {early:.1f} "
        f"s, of the last {late:.1f} s"
    )
    yield Result(name="spark_stream, rate", figure=rate, unit="messages/s", target=0.98 * RATE, note=note)
    yield Result(
        name="spark_stream, worst lag", figure=max(settled), unit="s", target=LAG_S, better="lower", note=note
    )  # fmt: skip


def _produce(url: str, sent: Any) -> None:
    """Publishes RATE messages a second on a schedule, for ever."""
    made = list(typed_batches(20))
    with Client(url) as client, client.producer("busy") as producer:
        begun, number = time.perf_counter(), 0
        while True:
            time.sleep(max(0.0, begun + number * messages.BATCH / RATE - time.perf_counter()))
            producer.send_table(made[number % len(made)])
            number += 1
            sent.value = producer.acknowledged

"""The programs that `kafka` measures, each a process of its own: it says that it is ready, waits for a line, does its
work, and prints what it took. Run as `python -m benchmarks.kafka_programs NAME ADDRESS TOPIC COUNT [FILE]`."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from seaweedq import Client
from seaweedq.journal.pacing import BURST

KEYS, VALUE_BYTES, PARTITIONS, ALONE = 5_000, 100, 4, 200
READY_S = 30.0
PACED, PACED_S = 40, 0.1  # publishes, and what one that waits for its turn takes at least
FILE_ROWS = 100_000  # of a row group, and of a table that is sent


class Took(msgspec.Struct):
    """When the work ended, by the machine's monotonic clock; seconds that it took, and of CPU; those of each alone."""

    ended_s: float
    took_s: float
    cpu_s: float
    each_s: list[float] = []


@contextmanager
def measured(each_s: list[float] | None = None) -> Iterator[None]:
    """Says that it is ready, waits for the line that begins the work, and prints what that took."""
    print("ready", flush=True)
    sys.stdin.readline()
    begun_s, cpu_s = time.monotonic(), time.process_time()
    yield
    ended_s = time.monotonic()
    took = Took(ended_s, ended_s - begun_s, time.process_time() - cpu_s, each_s or [])
    print(msgspec.json.encode(took).decode(), flush=True)


def _messages(count: int) -> tuple[list[str], bytes]:
    return [f"key-{n % KEYS}" for n in range(count)], os.urandom(VALUE_BYTES)


def kafka_produce(address: str, topic: str, count: int) -> None:
    """librdkafka with the linger of `send`; a failed message ends it."""
    keys, value = _messages(count)
    producer = _producer(address, linger_ms=5)
    producer.list_topics(topic, READY_S)  # else it would wait for ever for a node that is gone
    with measured():
        for key in keys:
            while True:
                try:
                    producer.produce(topic, value, key)
                    break
                except BufferError:
                    producer.poll(0.05)
        assert producer.flush() == 0


def kafka_alone(address: str, topic: str, count: int) -> None:
    """One message after another, each acknowledged before the next."""
    producer = _producer(address, linger_ms=0)
    each_s: list[float] = []
    with measured(each_s):
        _one_by_one(each_s, lambda: (producer.produce(topic, b"x" * VALUE_BYTES, "k"), producer.flush()))


def _producer(address: str, linger_ms: int) -> Any:
    def reported(error: Any, message: Any) -> None:
        raise SystemExit(f"Kafka: {error}")

    given = {"bootstrap.servers": address, "linger.ms": linger_ms, "acks": "all"}
    buffer = {"queue.buffering.max.messages": 1_000_000, "queue.buffering.max.kbytes": 1_048_576}
    errors = {"delivery.report.only.error": True, "on_delivery": reported}
    return import_module("confluent_kafka").Producer(given | buffer | errors)


def kafka_parquet(address: str, topic: str, count: int, file: str) -> None:
    """One consumer of all partitions that writes what it gets as Parquet, until it has all."""
    kafka = import_module("confluent_kafka")
    consumer = kafka.Consumer({"bootstrap.servers": address, "group.id": topic, "enable.auto.commit": False})
    consumer.assign([kafka.TopicPartition(topic, n, 0) for n in range(PARTITIONS)])
    schema = pa.schema([("_key", pa.string()), ("value", pa.binary()), ("_timestamp", pa.timestamp("ms", "UTC"))])
    schema = schema.append(pa.field("partition", pa.int32())).append(pa.field("_offset", pa.int64()))
    with measured(), pq.ParquetWriter(file, schema, compression="zstd") as writer:
        left, rows = count, []
        while left:
            rows += consumer.consume(min(10_000, left), 0.2)
            if len(rows) >= min(FILE_ROWS, left):
                _write(writer, schema, rows)
                left -= len(rows)
                rows = []


def _write(writer: pq.ParquetWriter, schema: pa.Schema, rows: list[Any]) -> None:
    columns = (
        [row.key().decode() for row in rows],
        [row.value() for row in rows],
        [row.timestamp()[1] for row in rows],
        [row.partition() for row in rows],
        [row.offset() for row in rows],
    )
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def seaweedq_send(address: str, topic: str, count: int) -> None:
    """`send` of each message."""
    keys, value = _messages(count)
    with Client(address) as client, measured(), client.producer(topic) as producer:
        for key in keys:
            producer.send(value, key=key)


def seaweedq_send_table(address: str, topic: str, count: int) -> None:
    """`send_table` of tables that are there."""
    keys, value = _messages(count)
    table = pa.table({"_key": keys, "value": pa.array([value] * count, pa.binary())})
    tables = [table.slice(at, FILE_ROWS) for at in range(0, count, FILE_ROWS)]
    with Client(address) as client, measured(), client.producer(topic) as producer:
        for each in tables:
            producer.send_table(each)


def seaweedq_alone(address: str, topic: str, count: int) -> None:
    """One message after another, each acknowledged before the next."""
    each_s: list[float] = []
    with Client(address) as client, measured(each_s):
        _one_by_one(each_s, lambda: client.publish(topic, {"value": "x" * VALUE_BYTES, "key": "k"}))


def seaweedq_beyond_the_burst(address: str, topic: str, count: int) -> None:
    """As `seaweedq_alone`, once the burst of the puts is used up, and fewer of them: each waits for the pace."""
    each_s: list[float] = []
    with Client(address) as client:

        def publish() -> object:
            return client.publish(topic, {"value": "x" * VALUE_BYTES, "key": "k"})

        for _ in range(BURST):
            publish()
        while True:  # what came back meanwhile
            begun_s = time.perf_counter()
            publish()
            if time.perf_counter() - begun_s > PACED_S:
                break
        with measured(each_s):
            _one_by_one(each_s, publish, PACED)


def _one_by_one(each_s: list[float], publish: Callable[[], object], count: int = ALONE) -> None:
    for _ in range(count):
        begun_s = time.perf_counter()
        publish()
        each_s.append(time.perf_counter() - begun_s)


if __name__ == "__main__":
    name, address, topic, count, *more = sys.argv[1:]
    globals()[name](address, topic, int(count), *more)

"""read_topic: all acknowledged rows of a topic, none twice, with the types of its files."""

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from seaweedq import Client
from seaweedq.errors import ClientError, TopicNotFound
from seaweedq.spark import read_topic, topic_table
from seaweedq.spark.compat import check_version
from tests.support.processes.broker_process import BrokerProcess
from tests.support.rows.body_samples import TYPES, iceberg
from tests.support.tiers import later

pytestmark = [
    pytest.mark.process,
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]
SEGMENTS = 4
FULL = {
    "flag": True,
    "small": -5,
    "big": 1 << 40,
    "single": 0.5,
    "wide": float("-0.1"),
    "price": "-12.50",
    "day": "1582-10-10",
    "clock": "12:30:00",
    "local": "1900-01-01T00:00:00.000001",
    "moment": "1883-11-18T13:00:00+01:00",
    "name": "\u00e9 \u2028",
    "token": "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
    "code": "AAEC",
    "blob": "AAEC/w==",
}


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[Client]:
    with Client(broker.url) as client:
        yield client


def publish(client: Client, topic: str, start: int, end: int) -> None:
    client.publish(topic, [{"key": f"k{n}", "value": n} for n in range(start, end)])


def values(frame: Any) -> list[int]:
    return sorted(int(row.value) for row in frame.select("value").collect())


@pytest.fixture
def numbers(client: Client, request: pytest.FixtureRequest) -> str:
    """A topic with 0 to 199 in files, and 200 to 299 in no file."""
    name = f"numbers-{abs(hash(request.node.name)) % 10**8}"
    client.create_topic(name, initial_segments=SEGMENTS)
    publish(client, name, 0, 200)
    client.flush(name)
    publish(client, name, 200, 300)
    return name


@pytest.mark.parametrize("held", [later(topic_table.DRIVER_BYTES), 1, later(0)], ids=["driver", "both", "executors"])
def test_files_and_tail(
    spark: Any, broker: BrokerProcess, numbers: str, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_table, "DRIVER_BYTES", held)
    monkeypatch.setattr(topic_table, "TASK_ROWS", 10)
    frame = read_topic(spark, numbers, broker.url)
    assert values(frame) == list(range(300))
    rows = {(row.segment, row["_offset"]): int(row.value) for row in frame.collect()}
    assert len(rows) == 300
    assert {segment for segment, _ in rows} == set(range(SEGMENTS))


def test_the_tail_is_skipped_or_flushed(spark: Any, broker: BrokerProcess, numbers: str) -> None:
    skipped = read_topic(spark, numbers, broker.url, tail="skip")
    assert values(skipped) == list(range(200))
    flushed = read_topic(spark, numbers, broker.url, tail="flush")
    assert values(skipped) == list(range(200)), "what is flushed later is behind its pins"
    assert values(flushed) == list(range(300))


def test_ranges_and_segments(spark: Any, broker: BrokerProcess, client: Client, numbers: str) -> None:
    map_ = {each["id"]: each for each in client.segments(numbers)}
    end = {number: each["end_offset"] for number, each in map_.items()}
    frame = read_topic(spark, numbers, broker.url, starting={0: 5}, ending={0: end[0] - 2, 1: 3}, segments=[0, 1])
    found = sorted((row.segment, row["_offset"]) for row in frame.collect())
    assert found == [(0, offset) for offset in range(5, end[0] - 2)] + [(1, offset) for offset in range(3)]


@pytest.mark.long
def test_times(spark: Any, broker: BrokerProcess, client: Client) -> None:
    for day in (1, 2, 3):
        client.publish("days", [{"value": day, "timestamp": f"2026-01-0{day}T00:00:00Z"}])
    second = datetime(2026, 1, 2, tzinfo=UTC)
    assert values(read_topic(spark, "days", broker.url, starting=second)) == [2, 3]
    assert values(read_topic(spark, "days", broker.url, ending=second)) == [1]


def test_a_pinned_table_stays_as_it_was(spark: Any, broker: BrokerProcess, client: Client, numbers: str) -> None:
    frame = read_topic(spark, numbers, broker.url)
    publish(client, numbers, 300, 400)
    client.flush(numbers)
    assert values(frame) == list(range(300))
    assert values(read_topic(spark, numbers, broker.url)) == list(range(400))


def test_nothing_is_missing_or_doubled_while_the_topic_changes(
    spark: Any, broker: BrokerProcess, http: httpx.Client, numbers: str
) -> None:
    acknowledged, over = [300], threading.Event()

    def write() -> None:
        with Client(broker.url) as other:
            while not over.is_set():
                publish(other, numbers, acknowledged[0], acknowledged[0] + 20)
                acknowledged[0] += 20
                if acknowledged[0] % 100 == 0:
                    other.flush(numbers)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for segment in (0, 1):
            before = acknowledged[0]
            frame = read_topic(spark, numbers, broker.url)
            assert http.post(f"/v1/topics/{numbers}/segments/{segment}/split").status_code == 200
            found = values(frame)
            assert found[:before] == list(range(before))
            assert len(found) == len({*found})
    finally:
        over.set()
        writer.join()


def test_every_type_is_that_of_the_files(spark: Any, broker: BrokerProcess, client: Client) -> None:
    client.create_topic("types", format="typed", schema=iceberg(TYPES))
    client.publish("types", [{"value": FULL}, {"value": {"small": 1}}])
    client.flush("types")
    files = spark.read.parquet(str(broker.store / "topics" / "types"))
    client.publish("types", [{"value": FULL}, {"value": {"small": 1}}])
    frame = read_topic(spark, "types", broker.url)
    assert frame.schema == files.schema
    flushed, held = (frame.where(f"_offset {which} 2").drop("_offset", "_timestamp") for which in ("<", ">="))
    assert flushed.orderBy("big").collect() == held.orderBy("big").collect()


@pytest.mark.long
def test_files_alone_while_all_brokers_are_stopped(
    spark: Any, broker_process: Callable[..., BrokerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = broker_process()
    with Client(broker.url) as client:
        client.create_topic("alone", initial_segments=SEGMENTS)
        publish(client, "alone", 0, 200)
        client.flush("alone")
        publish(client, "alone", 200, 300)
    broker.kill()
    monkeypatch.delenv("SEAWEEDQ_URL", raising=False)
    frame = read_topic(spark, "alone", tail="skip", store=broker.store.as_uri())
    assert values(frame) == list(range(200))
    assert frame.schema == spark.read.parquet(str(broker.store / "topics" / "alone")).schema
    broker.start()
    with Client(broker.url) as client:
        client.flush("alone")
    assert values(frame) == list(range(200)), "what is flushed later is behind its pins"
    for file in [*(broker.store / "topics" / "alone").rglob("*.parquet")]:
        file.with_name(f"copy-of-{file.name}").write_bytes(file.read_bytes())  # which Spark would read by itself
    assert values(read_topic(spark, "alone", tail="skip", store=str(broker.store))) == list(range(300))


def test_wrong_input(spark: Any, broker: BrokerProcess, numbers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="tail must be one of 'read', 'flush', 'skip', not 'all'"):
        read_topic(spark, numbers, broker.url, tail="all")  # type: ignore[arg-type]
    with pytest.raises(TopicNotFound):
        read_topic(spark, "nothing", broker.url)
    with pytest.raises(ValueError, match="with a store, tail must be 'skip'"):
        read_topic(spark, numbers, store="s3://bucket")
    with pytest.raises(ValueError, match="the arguments `starting` and `ending` must be offsets"):
        read_topic(spark, numbers, tail="skip", store="s3://bucket", starting=datetime(2026, 1, 1, tzinfo=UTC))
    monkeypatch.delenv("SEAWEEDQ_URL", raising=False)
    with pytest.raises(ValueError, match="SEAWEEDQ_URL is not set"):
        read_topic(spark, numbers)
    with pytest.raises(ClientError, match=r"Spark 3\.5\.1 is too old: .* with Spark 4\.0 or newer"):
        check_version("3.5.1")

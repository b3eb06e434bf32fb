"""`spark.read.format("seaweedq")`: what it reads, from where, and what its options are."""

from collections.abc import Iterator
from typing import Any

import pytest

from seaweedq import Client
from seaweedq.spark import read_topic
from tests.spark.test_topic_table import FULL, TYPES, iceberg, publish, values
from tests.support.processes.broker_process import BrokerProcess
from tests.support.readers.expiring import publish_expiring

pytestmark = [
    pytest.mark.process,
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[Client]:
    with Client(broker.url) as client:
        yield client


@pytest.fixture(scope="module")
def numbers(broker: BrokerProcess) -> str:
    """A topic with 0 to 199 in files, and 200 to 299 in no file."""
    with Client(broker.url) as client:
        client.create_topic("numbers", initial_segments=3)
        for start in (0, 100):
            publish(client, "numbers", start, start + 100)
            client.flush("numbers")
        publish(client, "numbers", 200, 300)
    return "numbers"


@pytest.fixture
def source(spark: Any, broker: BrokerProcess) -> Any:
    """The format with its brokers."""
    return lambda topic, **options: spark.read.format("seaweedq").options(url=broker.url, topic=topic, **options)


def test_files_and_tail(source: Any, numbers: str) -> None:
    frame = source(numbers).load()
    assert values(frame) == list(range(300))
    assert frame.columns[-1] == "segment"
    assert values(source(numbers, includeTail=False).load()) == list(range(200))


def test_what_has_expired_is_left_out_wherever_it_is(
    spark: Any, broker: BrokerProcess, client: Client, source: Any
) -> None:
    """It was there once it was in files. Three ways to read, two ways to count."""
    client.create_topic("expiring")
    publish_expiring(client, "expiring", 0, 20)
    client.flush("expiring")
    publish_expiring(client, "expiring", 20, 40)
    for expired, step in (("skip", 2), ("keep", 1)):
        wanted = list(range(0, 40, step))
        assert values(read_topic(spark, "expiring", broker.url, expired=expired)) == wanted
        assert values(source("expiring", expired=expired).load()) == wanted
        assert values(source("expiring", expired=expired, columns="value").load()) == wanted
        assert source("expiring", expired=expired, columns="").load().count() == len(wanted)
        of_store = read_topic(spark, "expiring", tail="skip", store=broker.store.as_uri(), expired=expired)
        assert values(of_store) == list(range(0, 20, step))


def test_a_frame_says_that_its_topic_was_made_anew(client: Client, source: Any) -> None:
    """It had the rows of the new topic, with the columns of the old one; or rows that retention was said to take."""
    client.create_topic("anew")
    publish(client, "anew", 0, 10)
    seen, unseen = source("anew", columns="value").load(), source("anew").load()
    assert values(seen) == list(range(10))
    client.delete_topic("anew")
    client.create_topic("anew")
    publish(client, "anew", 0, 3)
    for frame in (seen, unseen):
        with pytest.raises(Exception, match=r"the topic at .* was deleted and created again"):
            frame.count()
    assert values(source("anew").load()) == list(range(3))


@pytest.mark.long
def test_columns_by_an_option_or_a_schema(source: Any, numbers: str) -> None:
    frame = source(numbers, columns="segment, _offset").load()
    assert frame.columns == ["segment", "_offset"]
    assert frame.count() == 300
    named = source(numbers).schema("value string, segment bigint").load()
    assert (named.schema["segment"].dataType.simpleString(), named.count()) == ("bigint", 300)


@pytest.mark.long
def test_offsets_and_partitions(source: Any, client: Client, numbers: str) -> None:
    ends = {each["id"]: each["end_offset"] for each in client.segments(numbers)}
    some = source(numbers, startingOffsets='{"1": 5}', endingOffsets=f'{{"0": 0, "1": 9, "2": {ends[2]}}}').load()
    found = sorted((row.segment, row["_offset"]) for row in some.collect())
    assert found == [(1, n) for n in range(5, 9)] + [(2, n) for n in range(ends[2])]
    assert source(numbers, includeTail=False).load().rdd.getNumPartitions() == 1
    assert source(numbers, includeTail=False, maxBytesPerPartition=1).load().rdd.getNumPartitions() == 6


@pytest.mark.long
def test_times(source: Any, client: Client) -> None:
    for day in (1, 2, 3):
        client.publish("days", [{"value": day, "timestamp": f"2026-01-0{day}T00:00:00Z"}])
    assert values(source("days", startingTimestamp="2026-01-02T00:00:00+00:00").load()) == [2, 3]
    assert values(source("days", endingTimestamp="1767312000000").load()) == [1]


@pytest.mark.long
def test_nothing_at_all(source: Any, client: Client) -> None:
    client.create_topic("empty")
    assert source("empty").load().count() == 0


def test_every_type(spark: Any, broker: BrokerProcess, source: Any, client: Client) -> None:
    client.create_topic("typed", format="typed", schema=iceberg(TYPES))
    message = {"key": "k", "headers": {"a": "1"}, "expires_in_s": 86_400}
    client.publish("typed", [{"value": FULL, **message}, {"value": {"small": 1}}])
    client.flush("typed")
    files = spark.read.parquet(str(broker.store / "topics" / "typed"))
    frame = source("typed").load()
    assert frame.schema == files.schema
    assert frame.orderBy("_offset").collect() == files.orderBy("_offset").collect()


def test_an_error_of_the_source_comes_through_spark(source: Any, numbers: str) -> None:
    with pytest.raises(Exception, match="there is no option 'topik'; the nearest is 'topic'"):
        source(numbers, topik="x").load()

"""All types of files.md out of read_topic and of the data source, from files and from a tail: at their bounds, null,
NaN, empty, before 1970 and before Gregory, in a session of another zone than UTC; and one row more than a row group."""

import math
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from seaweedq import Client
from seaweedq.segments.entry import ROW_GROUP_ROWS
from seaweedq.spark import read_topic
from tests.readers.test_reader_types import HIGHEST, LOWEST, NULLS, ORDINARY_READ, schema_of, table_of
from tests.support.processes.broker_process import BrokerProcess
from tests.support.readers.reader_types import FIELD_TYPES

pytestmark = [
    pytest.mark.process,
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
    pytest.mark.long,
]
NAN = {**HIGHEST, "float": math.nan, "double": math.nan}


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[Client]:
    with Client(broker.url) as client:
        yield client


def send(client: Client, topic: str, table: pa.Table) -> None:
    with client.producer(topic) as producer:
        producer.send_table(table)


def test_every_type_from_files_and_from_the_tail(spark: Any, broker: BrokerProcess, client: Client) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") != "UTC"
    client.create_topic("out", format="typed", schema=schema_of({name: name for name in FIELD_TYPES}))
    expected = table_of(LOWEST, HIGHEST, ORDINARY_READ, NULLS, NAN)
    send(client, "out", expected)
    client.flush("out")
    send(client, "out", expected)
    files = spark.read.parquet(str(broker.store / "topics" / "out"))
    source = spark.read.format("seaweedq").options(url=broker.url, topic="out").load()
    for frame in (read_topic(spark, "out", broker.url), source):
        assert frame.schema == files.schema
        found = frame.orderBy("_offset").toArrow()
        assert found["_offset"].to_pylist() == list(range(10))
        for name in expected.column_names:
            column = found[name].cast(expected.schema.field(name).type).to_pylist()
            assert repr(column) == repr(expected[name].to_pylist() * 2), name  # by their text NaN is NaN


def test_a_row_more_than_a_row_group_has(spark: Any, broker: BrokerProcess, client: Client) -> None:
    count = ROW_GROUP_ROWS + 1
    client.create_topic("more", format="typed", schema=schema_of({"n": "long"}))
    send(client, "more", pa.table({"n": range(count)}))
    client.flush("more")
    send(client, "more", pa.table({"n": range(count, 2 * count)}))
    source = spark.read.format("seaweedq").options(url=broker.url, topic="more", maxBytesPerPartition="1").load()
    assert source.rdd.getNumPartitions() > 2
    for frame in (read_topic(spark, "more", broker.url), source):
        assert sorted(frame.select("n").toArrow()["n"].to_pylist()) == list(range(2 * count))

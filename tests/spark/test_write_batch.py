"""`df.write.format("seaweedq")`: what is in the topic afterwards, and what is refused."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from seaweedq import Client
from seaweedq.spark import read_topic
from seaweedq.spark.compat import spark_schema_of
from tests.readers.test_reader_types import HIGHEST, LOWEST, NULLS, ORDINARY_READ, schema_of, table_of
from tests.support.processes.broker_process import BrokerProcess
from tests.support.readers.reader_types import FIELD_TYPES

pytestmark = [
    pytest.mark.process,
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]
ROWS, KEYS = 2000, 23


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[Client]:
    with Client(broker.url) as client:
        yield client


@pytest.fixture
def save(broker: BrokerProcess) -> Callable[..., None]:
    """Writes a frame into a topic."""

    def run(frame: Any, topic: str, mode: str = "append", **options: Any) -> None:
        frame.write.format("seaweedq").options(url=broker.url, topic=topic, **options).mode(mode).save()

    return run


def test_a_topic_has_the_rows_each_key_in_its_order(
    spark: Any, broker: BrokerProcess, client: Client, save: Callable[..., None]
) -> None:
    client.create_topic("rows", initial_segments=2)
    keyed = spark.range(ROWS).selectExpr("cast(id % 23 as string) _key", "id").repartition(3, "_key")
    columns = ["_key", "map('of', 'spark') _headers", "to_json(struct(id n)) value"]
    frame = keyed.sortWithinPartitions("id").selectExpr(*columns)
    save(frame, "rows")
    found = read_topic(spark, "rows", broker.url).orderBy("segment", "_offset").collect()
    wanted = [(row["_key"], row["_headers"], row.value) for row in frame.collect()]
    assert Counter((key, *headers.items(), value) for key, headers, value in wanted) == Counter(
        (row["_key"], *row["_headers"].items(), row.value) for row in found
    )
    for key in range(KEYS):
        numbers = [json.loads(row.value)["n"] for row in found if row["_key"] == str(key)]
        assert numbers == list(range(key, ROWS, KEYS))


@pytest.mark.long
def test_what_was_read_is_written_without_its_places(
    spark: Any, broker: BrokerProcess, client: Client, save: Callable[..., None]
) -> None:
    client.publish("from", [{"key": "k", "value": n, "headers": {"a": "1"}, "expires_in_s": 3600} for n in range(5)])
    client.create_topic("to")
    read = spark.read.format("seaweedq").options(url=broker.url, topic="from").load()
    with pytest.raises(Exception, match=r"remove them with df\.drop\('_offset', 'segment', '_reference'\)"):
        save(read, "to")
    save(read.drop("_offset", "segment", "_reference"), "to")
    columns = ["_key", "_timestamp", "_headers", "_expires", "value"]
    assert client.read_table("to", columns=columns, live=True) == client.read_table("from", columns=columns, live=True)
    save(read.drop("_offset", "segment", "_reference").where("false"), "to")
    assert client.read_table("to", live=True).num_rows == 5


def test_every_type(spark: Any, client: Client, save: Callable[..., None]) -> None:
    """At the bounds, null, NaN, before 1970 and before Gregory, in a session of another zone than UTC."""
    assert spark.conf.get("spark.sql.session.timeZone") != "UTC"
    client.create_topic("in", format="typed", schema=schema_of({name: name for name in FIELD_TYPES}))
    nan = {**HIGHEST, "float": math.nan, "double": math.nan}
    expected = table_of(LOWEST, HIGHEST, ORDINARY_READ, NULLS, nan)
    plain = expected.set_column(
        at := expected.column_names.index("fixed[4]"), "fixed[4]", expected[at].cast(pa.binary())
    )
    frame = spark.createDataFrame(plain, spark_schema_of(plain.schema))
    frame = frame.selectExpr("*", "timestamp'1969-07-20 20:17:40.123456' _timestamp")  # in New York
    save(frame.coalesce(1), "in")
    found = client.read_table("in", live=True)
    assert set(found["_timestamp"].to_pylist()) == {datetime(1969, 7, 21, 0, 17, 40, 123456, UTC)}
    for name in expected.column_names:
        column = found[name].cast(expected.schema.field(name).type).to_pylist()
        assert repr(column) == repr(expected[name].to_pylist()), name  # by their text NaN is NaN


@pytest.mark.long
def test_an_invalid_row_fails_the_write_or_goes_to_another_topic(
    spark: Any, client: Client, save: Callable[..., None]
) -> None:
    client.create_topic("strict")
    client.create_topic("astray")
    values = [str(n) if n != 7 else "{" for n in range(10)]
    frame = spark.createDataFrame([(f"k{value}", value) for value in values], "_key string, value string").coalesce(1)
    with pytest.raises(Exception, match="'strict' does not take row 7 of partition 0, its column 'value': "):
        save(frame, "strict")
    assert client.read_table("strict", live=True).num_rows == 0
    save(frame, "strict", invalidRows="astray")
    assert client.read_table("strict", live=True)["value"].to_pylist() == [v for v in values if v != "{"]
    (told,) = client.read_table("astray", live=True).to_pylist()
    said = json.loads(told["value"])
    assert (told["_key"], said["topic"], said["row"]) == ("k{", "strict", {"_key": "k{", "value": "{"})


@pytest.mark.long
def test_what_is_refused_before_a_task_begins(spark: Any, client: Client, save: Callable[..., None]) -> None:
    client.create_topic("refusing", format="bytes")
    frame = spark.range(3).selectExpr("cast(id as string) value")
    for options, says in (
        ({"mode": "overwrite"}, "a write cannot replace a topic's messages"),
        ({"writeId": "a"}, "the option writeId is set, but writeNumber is not"),
        ({"invalidRows": "refusing-too"}, "topic 'refusing-too'"),
        ({"invalidRows": "octets"}, "invalidRows must be a json topic, but 'octets' is a bytes topic"),
        ({"topic": "nowhere"}, "topic 'nowhere'"),
    ):
        if options.get("invalidRows") == "octets":
            client.create_topic("octets", format="bytes")
        with pytest.raises(Exception, match=says):
            save(frame, **{"topic": "refusing", **options})

"""compact beside a plain reference in Python: over drawn histories of many keys, and over a topic that was split."""

import random
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from seaweedq import Client
from seaweedq.client.core.table import SEGMENT
from seaweedq.errors import TopicNotFound
from seaweedq.segments.layout import Format, Layout
from seaweedq.spark import read_generation
from seaweedq.spark.compat import spark_schema_of
from seaweedq.spark.jobs.compact import Rules, compact, compacted
from seaweedq.spark.jobs.generation_job import Snapshot, Target
from tests.support.processes.broker_process import BrokerProcess

pytestmark = [
    pytest.mark.process,
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]
NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
REFERENCE = {"uri": "file:///p", "size": 1, "content_type": None, "sha256": "0" * 64}
Row = Mapping[str, Any]


def reference(
    rows: Iterable[Row], now: datetime, key: Sequence[str] = ("_key",), order_by: Sequence[str] = ()
) -> dict[tuple[int, int], Any]:
    """The newest row of each key, by its position: the value."""
    newest: dict[tuple[Any, ...], tuple[Any, Row]] = {}
    for row in rows:
        of = tuple(row[name] for name in key)
        place = (*((row[name] is not None, row[name]) for name in order_by), row["segment"], row["_offset"])
        if None not in of and (of not in newest or newest[of][0] < place):
            newest[of] = (place, row)
    return {
        (row["segment"], row["_offset"]): row["value"]
        for _, row in newest.values()
        if not (row["_expires"] and row["_expires"] <= now)
        and (row["_reference"] is not None or row["value"] not in (None, "null"))
    }


def found(frame: Any) -> dict[tuple[int, int], Any]:
    rows = frame.collect()
    positions = {(row.segment, row["_offset"]): row.value for row in rows}
    assert len(positions) == len(rows)
    return positions


def drawn(count: int, keys: int, seed: int) -> list[dict[str, Any]]:
    """Rows of six segments, in any order: a key may be in several, as after splits."""
    draw = random.Random(seed)
    return [
        {
            "_offset": at * 3,
            "_timestamp": NOW - timedelta(seconds=draw.randrange(5)),
            "_key": draw.choice([f"k{draw.randrange(keys)}", f"k{draw.randrange(keys)}", "", None]),
            "_headers": draw.choice([None, {"a": str(at)}]),
            "_expires": draw.choice([None, None, NOW, NOW + timedelta(microseconds=1), NOW - timedelta(days=1)]),
            "_reference": draw.choice([None, None, REFERENCE]),
            "value": draw.choice(["null", None, '"null"', f"{at}"]),
            "segment": draw.randrange(6),
        }
        for at in draw.sample(range(count), count)
    ]


def frame_of(spark: Any, rows: list[dict[str, Any]]) -> Any:
    schema = spark_schema_of(Layout.from_format(Format.JSON).table.append(SEGMENT))
    return spark.createDataFrame([tuple(row[name] for name in schema.names) for row in rows], schema)


HERE = Snapshot({"format": "json"}, (), {}, {}, (), NOW)


@pytest.mark.parametrize(
    ("key", "order_by"), [(("_key",), ()), (("_key",), ("_timestamp",)), (("value", "segment"), ("_expires", "_key"))]
)
@pytest.mark.long
def test_the_newest_of_many_drawn_histories(spark: Any, key: tuple[str, ...], order_by: tuple[str, ...]) -> None:
    seed = random.randrange(10**6)
    rows = drawn(4000, 700, seed)
    kept = found(compacted(frame_of(spark, rows), HERE, Rules(key, order_by)))
    assert kept == reference(rows, NOW, key, order_by), f"seed {seed}"
    assert len(kept) > 100


def test_a_topic_that_was_split_and_merged(spark: Any, broker: BrokerProcess, tmp_path: Path) -> None:
    """Tombstones, messages that expire, and messages without a key, in files and in no file yet."""
    with Client(broker.url) as client:
        client.create_topic("c", initial_segments=1)
        for part in range(3):
            client.publish("c", [{"key": f"k{n % 9}", "value": {"n": n + 9 * part}} for n in range(9)])
            client.publish("c", [{"key": f"k{part}", "value": None}, {"value": "without"}])
            if part < 2:
                client.flush("c")
                path = f"{broker.url}/v1/topics/c/segments/"
                if part == 0:
                    assert httpx.post(f"{path}0/split", timeout=30, trust_env=False).status_code == 200
        client.publish("c", {"key": "k8", "value": "gone soon", "expires_in_s": 0.001})
        rows = client.read_table("c", live=True, expired="keep").to_pylist()
    added = compact(spark, "c", broker.url, Target(str(tmp_path)), Rules())
    kept = found(read_generation(spark, str(tmp_path)))
    assert kept == reference(rows, datetime.now(UTC) + timedelta(days=1))
    keys = {(row["segment"], row["_offset"]): row["_key"] for row in rows}
    assert {keys[position] for position in kept} == {f"k{n}" for n in range(9)} - {"k2", "k8"}
    assert (added.generation, added.read, added.rows, added.without_key) == (1, len(rows), 7, 3)


@pytest.mark.long
def test_messages_without_a_key_are_counted_if_no_row_is_left(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    """Spark plans such a query anew, without its rows and what observes them."""
    with Client(broker.url) as client:
        client.publish("keyless", [{"value": n} for n in range(20)])
        client.flush("keyless")
    sorted_parts = Target(str(tmp_path / "parts"), ("segment",), ("value",))
    for to, rules in ((sorted_parts, Rules()), (Target(str(tmp_path / "all")), Rules(deleted_where="true"))):
        added = compact(spark, "keyless", broker.url, to, rules)
        assert (added.generation, added.read, added.rows, added.without_key) == (1, 20, 0, 20)
        assert read_generation(spark, to.to).count() == 0


@pytest.mark.long
def test_what_is_no_rule(spark: Any, broker: BrokerProcess, tmp_path: Path) -> None:
    with Client(broker.url) as client:
        client.create_topic("rules")
        client.publish("rules", [{"key": "a", "value": {"state": "closed"}}, {"key": "b", "value": {"state": "open"}}])
    to = Target(str(tmp_path / "out"))

    def run(rules: Rules, topic: str = "rules") -> Any:
        return compact(spark, topic, broker.url, to, rules)

    with pytest.raises(TopicNotFound):
        run(Rules(), "nobodys")
    with pytest.raises(
        ValueError,
        match=r"--key names columns that .* not have: nope; the topic's columns are _offset, .*, value, segment",
    ):
        run(Rules(("nope",)))
    with pytest.raises(
        ValueError,
        match="--key value needs --order-by, because only rows with the same `_key` have an order without it",
    ):
        run(Rules(("value",)))
    with pytest.raises(ValueError, match="--order-by names a column twice"):
        run(Rules(order_by=("_timestamp", "_timestamp")))
    for sql, why in {
        "nope = 1": "nope",
        "value": "must be a condition, not 'value', which has the type string",
        "true) or (true": "PARSE_SYNTAX_ERROR|Syntax error",
        "sum(segment) > 1": "aggregate|GROUP|sum",
    }.items():
        with pytest.raises(ValueError, match=f"(?s)--deleted-where .*({why})"):
            run(Rules(deleted_where=sql))
    assert not (tmp_path / "out").exists()
    closed = "get_json_object(value, '$.state') = 'closed'"
    assert run(Rules(deleted_where=closed)).rows == 1
    assert [row["_key"] for row in read_generation(spark, to.to).collect()] == ["b"]
    by_value = Rules(("value",), ("_timestamp",), "value is null")
    assert run(by_value).rows == 2

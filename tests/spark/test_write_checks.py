"""What the driver says of a frame's columns, what tasks find in rows, and the messages that invalid rows become."""

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from seaweedq.rows.checking import topic_intake
from seaweedq.spark.row_checks import check_frame, invalid_as_json, judge

pytest.importorskip("pyspark")
NOW_US = 1_800_000_000_000_000
BOUNDS = {"max_message_bytes": 1000, "max_payload_bytes": 10**9, "max_write_uploads": 100}
FIELDS = {"carrier": "string", "delay": "int", "code": "fixed[2]", "price": "decimal(9,2)", "at": "timestamp"}


def topic(format: str = "json", key_field: str | None = None, **fields: str) -> dict[str, Any]:
    """A topic as a broker shows it."""
    schema = None
    if fields:
        stated = [
            {"id": at, "name": name, "required": at == 1, "type": kind}
            for at, (name, kind) in enumerate(fields.items(), 1)
        ]
        schema = {"type": "struct", "schema-id": 0, "fields": stated}
    return {"format": format, "schema": schema, "key_field": key_field, "bounds": BOUNDS}


TYPED = topic("typed", **FIELDS)


def map_of(kind: str) -> dict[str, Any]:
    return {"type": "map", "keyType": "string", "valueType": kind, "valueContainsNull": True}


NESTED = {
    "struct": {"type": "struct", "fields": [{"name": "n", "type": "integer", "nullable": True, "metadata": {}}]},
    "texts": map_of("string"),
    "counts": map_of("integer"),
}


def check(columns: str, facts: dict[str, Any]) -> None:
    """Checks a frame, whose columns are told as `name:type`, by Spark's names of types in JSON, and NESTED."""
    from pyspark.sql.types import StructType

    pairs = [column.split(":") for column in columns.split("; ")]
    fields = [{"name": name, "type": NESTED.get(kind, kind), "nullable": True, "metadata": {}} for name, kind in pairs]
    check_frame(StructType.fromJson({"type": "struct", "fields": fields}), facts, NOW_US)


@pytest.mark.parametrize(
    ("columns", "facts"),
    [
        ("value:string", topic()),
        ("value:string; _key:string; _timestamp:timestamp; _expires:timestamp", topic()),
        ("value:binary; _headers:texts", topic("bytes")),
        ("value:string", topic("bytes")),
        ("carrier:string", TYPED),
        ("delay:short; carrier:string; code:binary; price:decimal(9,2); at:timestamp_ntz", TYPED),
    ],
)
def test_a_frame_that_is_taken(columns: str, facts: dict[str, Any]) -> None:
    check(columns, facts)


@pytest.mark.parametrize(
    ("columns", "facts", "says"),
    [
        (
            "_offset:long; value:string; segment:integer",
            topic(),
            "the topic sets the columns '_offset', 'segment' itself; remove them with df.drop('_offset', 'segment')",
        ),
        ("value:string; _reference:struct", topic(), "remove them with df.drop('_reference')"),
        (
            "key:string; value:string",
            topic(),
            "'key' is called '_key' in the topic: write df.withColumnRenamed('key', '_key')",
        ),
        ("timestamp:timestamp; value:string", topic(), "withColumnRenamed('timestamp', '_timestamp')"),
        (
            "Carrier:string",
            TYPED,
            "'Carrier' is called 'carrier' in the topic: write df.withColumnRenamed('Carrier', 'carrier')",
        ),
        (
            "carrier:string; x:integer; y:integer",
            TYPED,
            "no column 'x'; it takes _timestamp, _key, _headers, _expires, carrier",
        ),
        ("carrier:string; x:integer; y:integer", TYPED, ": write df.drop('x', 'y')"),
        ("value:string; x:integer", topic(), ": write df.drop('x')"),
        ("n:integer; m:integer", topic(), "such as df.selectExpr('to_json(struct(*)) AS value')"),
        ("value:string; value:string", topic(), "the column 'value' appears 2 times"),
        ("_key:string", topic(), "the column 'value' is missing; the columns are _key: a json topic needs each row as"),
        ("delay:integer", TYPED, "the column 'carrier' is missing; the columns are delay"),
        (
            "value:integer",
            topic(),
            "is int32, which cannot be converted to string: write df.withColumn('value', df['value']",
        ),
        ("value:struct", topic(), "write df.withColumn('value', to_json(df['value']))"),
        ("carrier:string; delay:long", TYPED, "write df.withColumn('delay', df['delay'].cast('int'))"),
        ("carrier:string; price:decimal(10,2)", TYPED, "df['price'].cast('decimal(9,2)')"),
        ("carrier:string; at:timestamp", TYPED, "df['at'].cast('timestamp_ntz')"),
        ("carrier:string; code:integer", TYPED, "df['code'].cast('binary')"),
        ("value:string; _headers:counts", topic(), "df['_headers'].cast('map<string,string>')"),
        ("value:interval year to month", topic(), "is interval year to month, which cannot be converted to string"),
    ],
)
def test_a_frame_that_is_refused_is_told_what_helps(columns: str, facts: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError) as raised:
        check(columns, facts)
    assert says in str(raised.value)


def rows(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def test_invalid_rows_are_told_apart_with_column_and_reason() -> None:
    batch = rows(value=['{"a": 1}', "{", None, '"' + "x" * 1000 + '"', "4"])
    taken, wrong = judge(batch, topic_intake(topic(), NOW_US))
    assert taken.to_pydict() == {"value": ['{"a": 1}', "4"]}
    assert [(each.row, each.column) for each in wrong] == [(1, "value"), (2, "value"), (3, "value")]
    assert "null" in wrong[1].reason
    assert "1000" in wrong[2].reason
    same, none = judge(taken, topic_intake(topic(), NOW_US))
    assert (same, none) == (taken, [])


def test_binary_of_a_fixed_size() -> None:
    batch = rows(carrier=["a", "b", "c", "d"], code=pa.array([b"ab", b"abc", None, b"xy"], pa.binary()))
    taken, wrong = judge(batch, topic_intake(TYPED, NOW_US))
    assert taken.column("code") == pa.array([b"ab", None, b"xy"], pa.binary(2))
    assert [(each.row, each.column, each.reason) for each in wrong] == [(1, "code", "code has 3 bytes, but needs 2")]


def test_a_row_that_cannot_be_decoded_is_found() -> None:
    """Spark has text that is not UTF-8, and Arrow names no row then."""
    text = pa.array([b"1", b"2", b"\xff", b"3", b'"\xff"'], pa.binary()).view(pa.string())
    batch = pa.RecordBatch.from_arrays([text], names=["value"])
    taken, wrong = judge(batch, topic_intake(topic(), NOW_US))
    assert taken.column("value").to_pylist() == ["1", "2", "3"]
    assert [each.row for each in wrong] == [2, 4]
    made = invalid_as_json(batch, wrong, "t", 1000)
    assert json.loads(made.column("value")[0].as_py())["row"] == {"value": "\ufffd"}


def test_invalid_rows_as_messages() -> None:
    batch = rows(
        _key=["k", None],
        carrier=pa.array([None, None], pa.string()),
        price=pa.array([Decimal("1.50"), None], pa.decimal128(9, 2)),
        code=[b"ab", b"x" * 900],
        at=pa.array([2**62, None], pa.timestamp("us")),
        _headers=pa.array([[("a", "1")], None], pa.map_(pa.string(), pa.string())),
    )
    _, wrong = judge(batch, topic_intake(TYPED, NOW_US))
    assert [each.row for each in wrong] == [0, 1]
    made = invalid_as_json(batch, wrong, "trips", 1000)
    assert made.column("_key").to_pylist() == ["k", None]
    first, second = map(json.loads, made.column("value").to_pylist())
    row = {"_key": "k", "carrier": None, "price": "1.50", "code": "YWI=", "at": 2**62, "_headers": {"a": "1"}}
    assert first == {"topic": "trips", "column": wrong[0].column, "reason": wrong[0].reason, "row": row}
    assert (second["row"], second["bytes"] > 1000) == (None, True)

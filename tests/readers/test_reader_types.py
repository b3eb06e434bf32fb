"""Which type each reader gives to each column, and that it reads what was published, at the bounds of the types too."""

from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from seaweedq import Client
from tests.support.readers.reader_types import BINARY, FIELD_ARROW, FIELD_TYPES, QUEUE_TYPES, TEXT, Names
from tests.support.readers.topic_readers import Reader, assert_dense

pytestmark = pytest.mark.process

LOWEST: dict[str, Any] = {
    "boolean": False,
    "int": -(2**31),
    "long": -(2**63),
    "float": float("-inf"),
    "double": 5e-324,
    "decimal(9,2)": Decimal("-9999999.99"),
    "decimal(18,0)": Decimal(10**18 - 1),
    "decimal(38,38)": Decimal("-0." + "9" * 38),
    "date": date(1, 1, 1),
    "time": time(0),
    "timestamp": datetime(1, 1, 1),
    "timestamptz": datetime(1, 1, 1),
    "string": "",
    "uuid": "00000000-0000-0000-0000-000000000000",
    "fixed[4]": b"\0\0\0\0",
    "binary": b"",
}
HIGHEST: dict[str, Any] = {
    "boolean": True,
    "int": 2**31 - 1,
    "long": 2**63 - 1,
    "float": 3.4028234663852886e38,
    "double": 1.7976931348623157e308,
    "decimal(9,2)": Decimal("9999999.99"),
    "decimal(18,0)": Decimal(1 - 10**18),
    "decimal(38,38)": Decimal("0." + "0" * 37 + "1"),
    "date": date(9999, 12, 31),
    "time": time(23, 59, 59, 999_999),
    "timestamp": datetime(9999, 12, 31, 23, 59, 59, 999_999),
    "timestamptz": datetime(9999, 12, 31, 23, 59, 59, 999_999),
    "string": "é\u2028\U0001f40b\x00 NULL",
    "uuid": "ffffffff-ffff-ffff-ffff-ffffffffffff",
    "fixed[4]": b"\xff\xff\xff\xff",
    "binary": bytes(range(256)),
}
ORDINARY = {
    "boolean": True,
    "int": -5,
    "long": 1 << 40,
    "float": 0.5,
    "double": 0.1,
    "decimal(9,2)": "12.50",
    "decimal(18,0)": 7,
    "decimal(38,38)": "0.1",
    "date": "1582-10-10",  # no such day before Gregory: readers that rebase show another one
    "time": "12:30:00",
    "timestamp": "1900-01-01T00:00:00.000001",
    "timestamptz": "1883-11-18T13:00:00+01:00",  # before there were time zones
    "string": "plain",
    "uuid": "6BA7B810-9DAD-11D1-80B4-00C04FD430C8",
    "fixed[4]": "AAECAw==",
    "binary": "AAEC",
}
ORDINARY_READ = {
    **ORDINARY,
    "decimal(9,2)": Decimal("12.50"),
    "decimal(18,0)": Decimal(7),
    "decimal(38,38)": Decimal("0.1"),
    "date": date(1582, 10, 10),
    "time": time(12, 30),
    "timestamp": datetime(1900, 1, 1, microsecond=1),
    "timestamptz": datetime(1883, 11, 18, 12),
    "uuid": "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
    "fixed[4]": b"\0\1\2\3",
    "binary": b"\0\1\2",
}
NULLS = dict.fromkeys(FIELD_TYPES)


def schema_of(types: Mapping[str, str], required: bool = False) -> dict[str, Any]:
    fields = [
        {"id": at + 1, "name": name, "required": required, "type": kind}
        for at, (name, kind) in enumerate(types.items())
    ]
    return {"type": "struct", "schema-id": 3, "fields": fields}


def table_of(*rows: Mapping[str, Any]) -> pa.Table:
    """The columns of such rows, as read; a time as text, as it is stored."""

    def stored(kind: str, value: Any) -> Any:
        return value.isoformat("microseconds") if kind == "time" and value is not None else value

    return pa.table(
        {name: pa.array([stored(name, row[name]) for row in rows], kind) for name, kind in FIELD_ARROW.items()}
    )


def assert_types(reader: Reader, path: str, values: Mapping[str, Names]) -> None:
    """Columns and types are those of the queue and of the topic, and no more."""
    expected = {name: names.of(reader.package) for name, names in {**QUEUE_TYPES, **values}.items()}
    found = reader.types(reader.open(path))
    assert {name: found.get(name) for name in expected if found.get(name) not in expected[name]} == {}
    assert set(found) == set(expected)


FIELDS = [pa.field(name, kind) for name, kind in FIELD_ARROW.items()]


@pytest.mark.parametrize("rows", [0, 2])
@pytest.mark.parametrize("required", [False, True])
def test_every_type_of_a_typed_topic(
    reader: Reader, rows: int, required: bool, client: Client, directory: Callable[[str], str]
) -> None:
    """Empty, and with values at the bounds."""
    topic = f"typed-{rows}-{required}"
    client.create_topic(topic, format="typed", schema=schema_of({name: name for name in FIELD_TYPES}, required))
    expected = table_of(LOWEST, HIGHEST)
    if rows and not client.segments(topic)[0]["end_offset"]:
        with client.producer(topic) as producer:
            producer.send_table(expected)
        client.flush(topic)
    assert_types(reader, directory(topic), FIELD_TYPES)
    assert reader.rows(directory(topic), *FIELDS).select(expected.column_names).equals(expected.slice(0, rows))


@pytest.fixture(scope="module")
def nulls(client: Client) -> str:
    """A topic of three files: an ordinary row and one of nulls, nulls only, ordinary rows only."""
    client.create_topic("nulls", format="typed", schema=schema_of({name: name for name in FIELD_TYPES}))
    for values in ([ORDINARY, {}], [NULLS, {}], [ORDINARY, ORDINARY]):
        client.publish("nulls", [{"value": value} for value in values])
        client.flush("nulls")
    return "nulls"


def test_nulls_and_columns_that_are_all_null_in_one_file(
    reader: Reader, nulls: str, directory: Callable[[str], str]
) -> None:
    expected = table_of(ORDINARY_READ, NULLS, NULLS, NULLS, ORDINARY_READ, ORDINARY_READ)
    table = reader.rows(directory(nulls), *FIELDS)
    assert_dense(table)
    assert table.select(expected.column_names).equals(expected)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(("format", "kind", "names"), [("json", pa.string(), TEXT), ("bytes", pa.binary(), BINARY)])
def test_values_of_json_and_bytes_topics(
    reader: Reader,
    full: bool,
    format: str,
    kind: pa.DataType,
    names: Names,
    client: Client,
    directory: Callable[[str], str],
) -> None:
    topic = f"{format}-{full}"
    values: list[Any] = ["", None, {"a": [1e300, "\x00\u2028"]}, 2**64]
    stored: list[Any] = ['""', "null", '{"a":[1e300,"\\u0000\u2028"]}', "18446744073709551616"]
    if format == "bytes":
        values = stored = [b"", b"\0", bytes(range(256)), b"\xff" * 70_000]
    client.create_topic(topic, format=format)
    if full and not client.segments(topic)[0]["end_offset"]:
        client.publish(topic, [{"value": value} for value in values])
        client.flush(topic)
    assert_types(reader, directory(topic), {"value": names})
    rows = reader.rows(directory(topic), pa.field("value", kind))
    assert rows["value"].to_pylist() == (stored if full else [])


NAMES = ["UPPER", "a b", "a.b", "a,b;c", "{x}(y)", "a=b", "`q`", "é", "漢字", "x[0]", "100%", "select", "a'b"]


def test_names_of_fields(reader: Reader, client: Client, directory: Callable[[str], str]) -> None:
    """All that the schema takes, all can open."""
    client.create_topic("names", format="typed", schema=schema_of(dict.fromkeys(NAMES, "int")))
    if not client.segments("names")[0]["end_offset"]:
        client.publish("names", {"value": {name: at for at, name in enumerate(NAMES)}})
        client.flush("names")
    table = reader.rows(directory("names"), *[pa.field(name, pa.int32()) for name in NAMES])
    assert table.select(NAMES).to_pylist() == [{name: at for at, name in enumerate(NAMES)}]

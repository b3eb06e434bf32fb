from typing import Any

import pyarrow as pa
import pytest

from seaweedq.errors import InvalidRequest
from seaweedq.segments.schema import decode_fields, encode_fields, is_time, is_uuid, parse_schema
from tests.support.rows.body_samples import FIELDS, TYPES, iceberg


def test_each_type_has_its_arrow_type() -> None:
    assert {field.name: field.type for field in FIELDS} == {
        "flag": pa.bool_(),
        "small": pa.int32(),
        "big": pa.int64(),
        "single": pa.float32(),
        "wide": pa.float64(),
        "price": pa.decimal128(10, 2),
        "day": pa.date32(),
        "clock": pa.string(),
        "local": pa.timestamp("us"),
        "moment": pa.timestamp("us", tz="UTC"),
        "name": pa.string(),
        "token": pa.string(),
        "code": pa.binary(3),
        "blob": pa.binary(),
    }
    assert [field.name for field in FIELDS if not field.nullable] == ["small"]
    assert [field.name for field in FIELDS if is_uuid(field)] == ["token"]
    assert [field.name for field in FIELDS if is_time(field)] == ["clock"]


def test_ids_are_kept() -> None:
    assert [field.metadata[b"PARQUET:field_id"] for field in FIELDS] == [b"%d" % (n + 1) for n in range(len(TYPES))]
    assert FIELDS.metadata[b"schema-id"] == b"7"


def test_stored_text_is_the_schema_again() -> None:
    assert decode_fields(encode_fields(FIELDS)).equals(FIELDS, check_metadata=True)


def nested(kind: Any) -> dict[str, Any]:
    return iceberg({"a": "int", "deep": kind})


@pytest.mark.parametrize(
    ("stated", "field"),
    [
        (iceberg({}), "schema"),
        (iceberg({f"f{n}": "int" for n in range(1001)}), "schema"),
        (iceberg({"Carrier": "int", "carrier": "int"}), "carrier"),
        (iceberg({"_key": "string"}), "_key"),
        (iceberg({"segment": "int"}), "segment"),
        (iceberg({"Segment": "int"}), "Segment"),
        (iceberg({"": "int"}), ""),
        (iceberg({"a\nb": "int"}), "a\nb"),
        (iceberg({"a" * 256: "int"}), "a" * 256),
        (iceberg({'a"': "int"}), 'a"'),
        (iceberg({"a\\b": "int"}), "a\\b"),
        (nested({"type": "list", "element-id": 9, "element-required": False, "element": "int"}), "deep"),
        (nested({"type": "struct", "fields": []}), "deep"),
        (nested("decimal(39,2)"), "deep"),
        (nested("decimal(3,4)"), "deep"),
        (nested("fixed[0]"), "deep"),
        (nested("timestamptz_ns"), "deep"),
        (nested("varchar"), "deep"),
        ({"type": "struct", "fields": [{"id": 1, "name": n, "required": False, "type": "int"} for n in "ab"]}, "b"),
        ({"type": "struct", "fields": [{"id": 0, "name": "a", "required": False, "type": "int"}]}, "a"),
        ({"type": "struct", "fields": 5}, "schema"),
        ({}, "schema"),
        ("schema", "schema"),
        (None, "schema"),
        ([], "schema"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused_by_field(stated: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_schema(stated)
    assert caught.value.fields["field"] == field


def test_a_thousand_fields_are_taken() -> None:
    assert len(parse_schema(iceberg({f"f{n}": "int" for n in range(1000)}))) == 1000


@pytest.mark.parametrize(("kind", "meant"), [("int64", "long"), ("Float64", "double"), ("VARCHAR", "string")])
def test_the_type_of_another_system_is_told_by_its_name_here(kind: str, meant: str) -> None:
    with pytest.raises(InvalidRequest, match=f"use '{meant}'"):
        parse_schema({"fields": [{"id": 1, "name": "x", "type": kind}]})

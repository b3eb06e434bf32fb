import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seaweedq.errors import InvalidMessages
from seaweedq.rows import envelopes, typed_values
from seaweedq.rows.bodies import decode_ndjson
from tests.support.rows.body_samples import FIELDS, TYPES, intake, reasons

VALUE = {
    "flag": True,
    "small": -(2**31),
    "big": 2**63 - 1,
    "single": 1,
    "wide": 1e300,
    "price": "12345678.90",
    "day": "0001-01-01",
    "clock": "23:59:59.999999",
    "local": "9999-12-31T23:59:59",
    "moment": "2024-01-01T01:00:00+01:00",
    "name": "é\x00",
    "token": "6BA7B810-9DAD-11D1-80B4-00C04FD430C8",
    "code": "QUJD",
    "blob": "",
}


def lines(*values: Any) -> bytes:
    return "\n".join(json.dumps({"value": value}) for value in values).encode()


def test_each_type_is_read() -> None:
    rows = decode_ndjson(lines(VALUE, {"small": 1}), intake("typed"))
    assert rows.schema.equals(intake("typed").layout.rows(0))
    first, second = rows.select(list(TYPES)).to_pylist()
    assert first == {
        **VALUE,
        "price": Decimal("12345678.90"),
        "day": dt.date(1, 1, 1),
        "local": dt.datetime(9999, 12, 31, 23, 59, 59),
        "moment": dt.datetime(2024, 1, 1, tzinfo=dt.UTC),
        "token": "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
        "code": b"ABC",
        "blob": b"",
    }
    assert second == dict.fromkeys(TYPES) | {"small": 1}


@pytest.mark.parametrize("number", ['"1.5"', "1.5", "1.50", "150e-2", '"1.500"', '"15e-1"'])
def test_decimals_are_exact(number: str) -> None:
    rows = decode_ndjson(b'{"value":{"small":1,"price":%b}}' % number.encode(), intake("typed"))
    assert rows.column("price").to_pylist() == [Decimal("1.50")]


@pytest.mark.parametrize("number", ["99999999.99", "-99999999.990", "9.9e7", "0e999", '"-0.0000"', f"1.{'0' * 70}"])
def test_the_widest_decimals_are_taken(number: str) -> None:
    rows = decode_ndjson(b'{"value":{"small":1,"price":%b}}' % number.encode(), intake("typed"))
    assert rows.column("price").to_pylist() == [Decimal(number.strip('"'))]


BAD: list[tuple[Any, str]] = [
    ({"flag": 1}, "flag must be true or false or null, not a whole number"),
    ({"small": 2**31}, "small must be a whole number of at most 2147483647"),
    ({"small": -(2**31) - 1}, "small must be a whole number of at least -2147483648"),
    ({"small": "1"}, "small must be a whole number, not text"),
    ({"small": 1.5}, "small must be a whole number, not a fraction"),
    ({"small": None}, "small must be a whole number, not null"),
    ({"big": 2**63}, "big "),
    ({"single": 3.5e38}, "single must be a number of less than 3.40282"),
    ({"single": "1"}, "single must be a number or null, not text"),
    (
        {"price": "1.001"},
        'price is not valid: "1.001" has too many digits after the decimal point: decimal(10, 2) allows at most 2',
    ),
    (
        {"price": "123456789.00"},
        'price is not valid: "123456789.00" is too large: decimal(10, 2) allows at most 8 digits before the decimal',
    ),
    ({"price": "1e8"}, 'price is not valid: "1e8" is too large: decimal(10, 2) allows at most 8 digits'),
    ({"price": "1e-999"}, 'price is not valid: "1e-999" has too many digits after the decimal point'),
    ({"price": "NaN"}, 'price is not valid: "NaN" is not a decimal number'),
    ({"price": "-Infinity"}, 'price is not valid: "-Infinity" is not a decimal number'),
    ({"price": "1e1000"}, 'price is not valid: "1e1000" has more than 76 digits, or an exponent of more than 3 digits'),
    ({"price": "1" * 60_000}, "price is not valid: "),
    ({"price": "ten"}, 'price is not valid: "ten" is not a decimal number'),
    ({"day": "2023-02-29"}, "day must be a date such as 2026-01-31"),
    ({"day": "2024-01-01T00:00:00Z"}, "day "),
    ({"clock": "24:00:00"}, "clock must be a time of day such as 12:00:00"),
    ({"clock": "12:00:00Z"}, "clock must have no time zone"),
    ({"local": "2024-01-01T00:00:00Z"}, "local must have no time zone"),
    ({"moment": "2024-01-01T00:00:00"}, "moment must have a time zone"),
    ({"moment": "0001-01-01T00:00:00+01:00"}, "moment is not valid: the time is outside the years"),
    ({"moment": "9999-12-31T23:59:59-01:00"}, "moment is not valid: the time is outside the years"),
    ({"name": 5}, "name must be text or null, not "),
    ({"name": {"a": 1}}, "name must be text or null, not "),
    ({"token": "not one"}, "token must be a UUID"),
    ({"code": "QUJDRA=="}, "code must have at most 3 bytes"),
    ({"code": "QQ=="}, "code must have at least 3 bytes"),
    ({"blob": "Q"}, "blob must be base64"),
    ({"other": 1}, "other is not a field of the schema"),
]


@pytest.mark.parametrize(("part", "why"), BAD, ids=[str(part)[:40] for part, _ in BAD])
def test_a_field_that_does_not_fit_is_named(part: dict[str, Any], why: str) -> None:
    body = lines(VALUE, {"small": 1, **part}, VALUE)
    with pytest.raises(InvalidMessages) as caught:
        decode_ndjson(body, intake("typed"))
    (reason,) = reasons(caught.value).values()
    assert list(reasons(caught.value)) == [1]
    assert reason.startswith(why)


def test_a_refusal_repeats_no_long_name_of_a_field() -> None:
    """A body full of such names was answered with as many bytes."""
    body = lines(*({**VALUE, f"{n}" + "x" * 10_000 + "y": 1} for n in range(100)))
    with pytest.raises(InvalidMessages) as caught:
        decode_ndjson(body, intake("typed"))
    found = reasons(caught.value)
    assert len(found) == 100
    assert max(map(len, (*found.values(), caught.value.detail))) < 400
    assert found[7].startswith("7xxx")
    assert found[7].endswith("xxy is not a field of the schema")


@pytest.mark.parametrize("value", [None, 5, [], "a", {}])
def test_values_that_are_no_object_of_the_fields(value: Any) -> None:
    with pytest.raises(InvalidMessages) as caught:
        decode_ndjson(lines(value), intake("typed"))
    assert list(reasons(caught.value)) == [0]


def test_bytes_that_are_not_utf8_and_depth_are_named() -> None:
    body = b'{"value":{"small":1,"name":"\xff"}}\n{"value":{"small":' + b"[" * 5000 + b"]" * 5000 + b"}}"
    with pytest.raises(InvalidMessages) as caught:
        decode_ndjson(body, intake("typed"))
    assert list(reasons(caught.value)) == [0, 1]


@pytest.mark.parametrize(("field", "key"), [("small", "-2147483648"), ("flag", "true"), ("name", "é\x00")])
def test_keys_of_fields(field: str, key: str) -> None:
    rows = decode_ndjson(lines(VALUE), intake("typed", field))
    assert rows.column("_key").to_pylist() == [key]


def test_a_date_and_a_uuid_are_keys_in_their_one_spelling() -> None:
    assert decode_ndjson(lines(VALUE), intake("typed", "day")).column("_key").to_pylist() == ["0001-01-01"]
    keys = decode_ndjson(lines(VALUE), intake("typed", "token")).column("_key").to_pylist()
    assert keys == ["6ba7b810-9dad-11d1-80b4-00c04fd430c8"]


def test_an_explicit_key_has_to_agree() -> None:
    body = b'{"key":"1","value":{"small":1}}\n{"key":"2","value":{"small":1}}'
    with pytest.raises(InvalidMessages) as caught:
        decode_ndjson(body, intake("typed", "small"))
    assert list(reasons(caught.value)) == [1]


def test_metadata_of_the_schema_reaches_the_rows() -> None:
    rows = decode_ndjson(lines(VALUE), intake("typed"))
    assert rows.schema.field("flag").metadata == FIELDS.field("flag").metadata


@given(st.lists(st.sampled_from([VALUE, {"small": 1}, {"small": "x"}, {"small": 2, "day": "no day"}, {}]), min_size=1))
def test_bad_values_are_found_among_others_as_they_are_one_by_one(values: list[dict[str, Any]]) -> None:
    body, found = lines(*values) + b"\n{", []
    for alone in (envelopes.ALONE, 10_000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(envelopes, "ALONE", alone)
            with pytest.raises(InvalidMessages) as refused:
                decode_ndjson(body, intake("typed", "small"))
        found.append(refused.value.fields)
    assert found[0] == found[1]
    assert found[0]["errors"][-1]["index"] == len(values)


def test_one_bad_value_has_few_others_looked_at_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each was, for 90 µs: 2 KB of gzip kept a core for minutes, beyond the answer and the stop."""
    looked, one = [], typed_values.columns_of_one
    monkeypatch.setattr(typed_values, "columns_of_one", lambda text, fields: looked.append(text) or one(text, fields))
    values = [{"small": n % 100} for n in range(5_000)]
    values[3_000] = {"small": "x"}
    with pytest.raises(InvalidMessages) as refused:
        decode_ndjson(lines(*values), intake("typed"))
    assert [error["index"] for error in refused.value.fields["errors"]] == [3_000]
    assert len(looked) <= 2 * envelopes.ALONE


def test_values_of_another_shape_leave_none_to_be_looked_at_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where half of them were, all came to be, and a request of 10,000 messages cost a tenth of a second."""
    looked, one = [], typed_values.columns_of_one
    monkeypatch.setattr(typed_values, "columns_of_one", lambda text, fields: looked.append(text) or one(text, fields))
    values = [{"small": n % 100 if n % 2 else "x"} for n in range(200)]
    with pytest.raises(InvalidMessages) as refused:
        decode_ndjson(lines(*values), intake("typed"))
    assert list(reasons(refused.value)) == list(range(0, 200, 2))
    assert looked == []

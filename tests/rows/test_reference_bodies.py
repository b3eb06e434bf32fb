"""Messages with a reference in place of a value, as they are decoded: what is taken, and why others are not."""

import json
from typing import Any

import pytest

from seaweedq.errors import InvalidMessages, MessageTooLarge
from seaweedq.rows.bodies import decode_json, decode_ndjson
from seaweedq.rows.envelopes import decode_single
from seaweedq.rows.intake import Intake
from seaweedq.segments.layout import Format, Layout, mask_of
from seaweedq.segments.rows import Reference, Single, rows_of_singles
from seaweedq.segments.schema import parse_schema

NOW_US = 1_790_000_000_000_000
ID = "20261121-0-0123456789abcdef0123456789abcdef"
FIELDS = parse_schema(
    {"type": "struct", "schema-id": 1, "fields": [{"id": 1, "name": "n", "required": False, "type": "int"}]}
)


def intake(format: str = "json", key_field: str | None = None, limit: int = 1000) -> Intake:
    return Intake(Layout.from_format(Format(format), FIELDS), key_field, limit, NOW_US).at(NOW_US)


def reason(message: Any, taken: Intake) -> str:
    with pytest.raises(InvalidMessages) as caught:
        decode_json(message if isinstance(message, bytes) else json.dumps(message).encode(), taken)
    (error,) = caught.value.fields["errors"]
    assert error["index"] == 0
    return str(error["reason"])


@pytest.mark.parametrize("format", ["json", "bytes"])
def test_a_reference_and_what_may_stand_beside_it(format: str) -> None:
    more = {"key": "k", "headers": {"a": "b"}, "timestamp": "2024-01-01T00:00:00Z", "expires_in_s": 1}
    body = json.dumps({"reference": {"upload_id": ID}, **more}).encode()
    rows = decode_json(body, intake(format))
    assert rows.schema.equals(intake(format).layout.rows(0b1111))
    (row,) = rows.to_pylist()
    assert row["_reference"] == {"uri": ID, "size": None, "content_type": None, "sha256": None}
    assert (row["_key"], row["_headers"], row["value"]) == ("k", [("a", "b")], None)
    assert row["_expires"].timestamp() == NOW_US / 1e6 + 1
    assert row["_timestamp"].year == 2024
    single = decode_single(body, intake(format))
    assert isinstance(single, Single)
    assert single.reference == ID
    assert rows_of_singles([single], intake(format).layout).equals(rows)


def test_values_and_references_in_one_request() -> None:
    lines = [{"value": {"n": 1}}, {"reference": {"upload_id": ID}, "key": "k"}, {"value": None}]
    for body in (json.dumps({"messages": lines}).encode(), "\n".join(map(json.dumps, lines)).encode()):
        rows = (decode_json if body.startswith(b'{"messages"') else decode_ndjson)(body, intake())
        assert rows.column("value").to_pylist() == ['{"n": 1}', None, "null"]
        assert rows.column("_reference").is_valid().to_pylist() == [False, True, False]
        assert rows.column("_key").to_pylist() == [None, "k", None]


def test_a_key_field_has_no_say_in_it() -> None:
    assert decode_json(b'{"reference":{"upload_id":"x"},"key":"k"}', intake(key_field="id"))["_key"][0].as_py() == "k"
    assert mask_of(decode_json(b'{"reference":{"upload_id":"x"}}', intake(key_field="id"))) == 0b1000


def test_a_null_is_no_reference() -> None:
    rows = decode_json(b'{"reference":null,"value":1}', intake())
    assert (mask_of(rows), rows["value"][0].as_py()) == (0, "1")
    assert "value" in reason({"reference": None}, intake())


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ({"reference": {"upload_id": ID}, "value": 1}, "the message has both a reference and the field value;"),
        ({"reference": {"upload_id": ID}, "value": None}, "the message has both a reference and the field value;"),
        (
            {"reference": {"upload_id": ID}, "value_base64": ""},
            "the message has both a reference and the field value_base64;",
        ),
        ({"reference": {}}, "upload_id"),
        ({"reference": ID}, "reference must be an object"),
        ({"reference": {"upload_id": 5}}, "upload_id"),
        ({"reference": {"upload_id": ""}}, "upload_id"),
        ({"reference": {"upload_id": "x" * 65}}, "upload_id"),
        ({"reference": {"upload_id": "../x"}}, "upload_id"),
        ({"reference": {"upload_id": "a/b"}}, "upload_id"),
        ({"reference": {"upload_id": "a\n"}}, "upload_id"),
        ({"reference": {"upload_id": "%2e%2e"}}, "upload_id"),
        ({"reference": {"uri": "s3://other/secret"}}, "uri"),
        ({"reference": {"upload_id": ID, "uri": "file:///etc/passwd"}}, "uri"),
        ({"reference": {"upload_id": ID, "size": 5}}, "size"),
        ({"reference": {"upload_id": ID}, "extra": 1}, "extra"),
        ({"reference": {"upload_id": ID}, "timestamp": "2027-01-01T00:00:00Z"}, "ahead"),
    ],
)
def test_what_is_not_taken(message: dict[str, Any], says: str) -> None:
    for format in ("json", "bytes"):
        assert says in reason(message, intake(format))
    assert says in reason({"messages": [message]}, intake())


def test_typed_topics_take_none() -> None:
    assert "typed" in reason({"reference": {"upload_id": ID}}, intake("typed"))


def test_each_bad_one_is_named() -> None:
    lines = [b'{"value":1}', b'{"reference":{"upload_id":"../x"}}', b'{"reference":{"upload_id":"x"}}', b'{"value":']
    with pytest.raises(InvalidMessages) as caught:
        decode_ndjson(b"\n".join(lines), intake())
    assert [each["index"] for each in caught.value.fields["errors"]] == [1, 3]


def test_headers_and_key_are_bounded() -> None:
    with pytest.raises(MessageTooLarge):
        decode_json(json.dumps({"reference": {"upload_id": "x"}, "key": "k" * 1001}).encode(), intake())


def test_rows_of_references_beside_values() -> None:
    """As the group commit puts singles of both kinds together."""
    reference = Reference("s3://b/p", 5, "text/plain", "ab")
    for format, value in (("json", b'"x"'), ("bytes", b"\xff")):
        layout = Layout.from_format(Format(format))
        rows = rows_of_singles(
            [Single("k", value, None, NOW_US, None), Single(None, None, None, NOW_US, None, reference)], layout
        )
        rows.validate(full=True)
        assert rows.schema.equals(layout.rows(0b1001))
        expected = {"uri": "s3://b/p", "size": 5, "content_type": "text/plain", "sha256": "ab"}
        assert rows.column("_reference").to_pylist() == [None, expected]
        assert rows.column("value").to_pylist() == [value.decode() if format == "json" else value, None]

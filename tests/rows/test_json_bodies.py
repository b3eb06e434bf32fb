import base64
import json
from typing import Any

import pyarrow as pa
import pytest

from seaweedq.errors import InvalidMessages, InvalidRequest, MessageTooLarge, UnreadableBody, UnsupportedContentType
from seaweedq.rows.bodies import decode, decode_json
from seaweedq.rows.envelopes import decode_single
from seaweedq.rows.json_values import check_key_field
from seaweedq.segments.layout import mask_of
from seaweedq.segments.rows import rows_of_singles
from tests.support.rows.body_samples import LIMIT, NOW_US, intake, reasons, values

FULL = (
    b' {"key": "k\\n", "value": {"a": [1,\n 2.50]} , "headers": {"h": "v"},'
    b' "timestamp": "2024-01-01T01:00:00.5+01:00", "expires_in_s": 1.5} '
)


def test_one_message_with_everything() -> None:
    rows = decode_json(FULL, intake())
    assert rows.schema.equals(intake().layout.rows(0b0111))
    (row,) = rows.to_pylist()
    assert row["_key"] == "k\n"
    assert row["value"] == '{"a": [1,\n 2.50]}'
    assert row["_headers"] == [("h", "v")]
    assert row["_timestamp"].isoformat() == "2024-01-01T00:00:00.500000+00:00"
    assert rows.column("_expires").cast(pa.int64()).to_pylist() == [NOW_US + 1_500_000]


def test_many_messages_leave_out_what_none_of_them_has() -> None:
    rows = decode_json(b'{"messages": [{"value": 1}, {"value": null, "headers": {}}]}', intake())
    assert mask_of(rows) == 0
    assert values(rows) == ["1", "null"]
    assert rows.column("_timestamp").cast(pa.int64()).to_pylist() == [NOW_US] * 2


def test_a_single_message_is_the_same_row_by_either_way() -> None:
    single = decode_single(FULL, intake())
    assert single is not None
    assert rows_of_singles([single], intake().layout).equals(decode_json(FULL, intake()))


def test_single_leaves_batches_and_typed_topics_to_others() -> None:
    assert decode_single(b'{"messages": [{"value": 1}]}', intake()) is None
    assert decode_single(b'{"value": {"small": 1}}', intake("typed")) is None


def test_bytes_topics_take_base64() -> None:
    octets = bytes(range(256))
    body = json.dumps({"value_base64": base64.b64encode(octets).decode()}).encode()
    assert values(decode_json(body, intake("bytes"))) == [octets]
    single = decode_single(body, intake("bytes"))
    assert single is not None
    assert single.value == octets


REFUSED: dict[bytes, str] = {
    b'{"value": 1, "extra": 2}': "there is no field 'extra'",
    b'{"key": "a"}': "the field value is missing",
    b'{"value": 1, "reference": {"upload_id": "x"}}': "the message has both a reference and the field value",
    b'{"value": 1, "key": 5}': "key must be text or null, not a whole number",
    b'{"value": 1, "key": "\xff"}': "UTF-8",
    b'{"value": "\xff"}': "UTF-8",
    b'{"value": 1e999}': "out of range",
    b'{"value": 1, "headers": {"a": 1}}': "headers[...] must be text, not ",
    b'{"value": 1, "headers": {"a": null}}': "headers[...] must be text, not ",
    b'{"value": 1, "timestamp": "2024-01-01T00:00:00"}': "must have a time zone",
    b'{"value": 1, "timestamp": "yesterday"}': "must be a time such as 2026-01-31T12:00:00Z",
    b'{"value": 1, "timestamp": 5}': "timestamp must be a time such as",
    b'{"value": 1, "timestamp": "2026-09-21T15:13:20.000001Z"}': "ahead",
    b'{"value": 1, "timestamp": "9999-12-31T23:59:59-01:00"}': "ahead",
    b'{"value": 1, "timestamp": "0001-01-01T00:00:00+00:01"}': "before the year 1",
    b'{"value": 1, "expires_in_s": 0}': "expires_in_s",
    b'{"value": 1, "expires_in_s": -1}': "expires_in_s",
    b'{"value": 1, "expires_in_s": 3155760001}': "expires_in_s",
    b'{"value": 1, "expires_in_s": 1e999}': "out of range",
    b'{"value": 1, "expires_in_s": "1x"}': "expires_in_s must be a number of seconds",
    b'{"value": 1, "expires_in_s": "101000d"}': "s must be more than 0 and at most 3155760000 seconds, not '101000d'",
    b'{"value": 1, "expires_in_s": "0s"}': "expires_in_s must be more than 0",
    b'{"value": ' + b"[" * 129 + b"]" * 129 + b"}": "deeper than 128",
}


@pytest.mark.parametrize(("body", "why"), REFUSED.items(), ids=[str(body[:40]) for body in REFUSED])
def test_a_message_that_is_not_valid_is_named(body: bytes, why: str) -> None:
    with pytest.raises(InvalidMessages) as caught:
        decode_json(body, intake())
    assert why in reasons(caught.value)[0]
    batch = b'{"messages": [{"value": 1}, ' + body + b"]}"
    with pytest.raises(InvalidMessages) as caught:
        decode_json(batch, intake())
    assert why in reasons(caught.value)[1]


@pytest.mark.parametrize(
    "text", ["QQ", "QQ=", "Q Q=", "QQ==\\n", "QU-_", "====", "QQ==QQ==", "QQ=Q", "\\u00e9\\u00e9=="]
)
def test_base64_is_strict(text: str) -> None:
    with pytest.raises(InvalidMessages, match="base64"):
        decode_json(b'{"value_base64": "%b"}' % text.encode(), intake("bytes"))


def test_at_the_bounds_a_message_is_valid() -> None:
    body = b'{"value": 1, "timestamp": "2026-09-21T15:13:20Z", "expires_in_s": 3155760000}'
    assert decode_json(body, intake()).num_rows == 1
    assert decode_json(b'{"value": 1, "timestamp": "0001-01-01T00:00:00Z"}', intake()).num_rows == 1


@pytest.mark.parametrize("body", [b"", b"{", b'{"value": 1', b'{"value": 1}}', b'{"value": NaN}', b"\xff", b"{'a': 1}"])
@pytest.mark.parametrize("wrap", [b"%b", b'{"messages": [%b]}'])
def test_broken_json_is_unreadable(body: bytes, wrap: bytes) -> None:
    if wrap % body == b'{"messages": []}':
        return
    with pytest.raises(UnreadableBody):
        decode_json(wrap % body, intake())
    assert decode_single(wrap % body, intake()) is None


@pytest.mark.parametrize(
    "body",
    [b"[]", b"5", b'{"messages": 5}', b'{"messages": []}', b'{"messages": [{"value": 1}], "key": "a"}']
    + [start * 100_000 for start in (b"[", b'{"value":', b'{"messages":[')],
)
def test_json_of_another_shape_is_not_valid(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_json(body, intake())


def test_all_bad_messages_are_counted_and_a_thousand_named() -> None:
    messages = [{"value": n} if n % 2 else {"val": n} for n in range(2_500)]
    with pytest.raises(InvalidMessages) as caught:
        decode_json(json.dumps({"messages": messages}).encode(), intake())
    assert caught.value.fields["invalid"] == 1_250
    assert list(reasons(caught.value)) == list(range(0, 2_000, 2))


@pytest.mark.parametrize("format", ["json", "bytes"])
def test_values_over_the_limit(format: str) -> None:
    def body(size: int) -> bytes:
        text = "1" * 64 if format == "bytes" else "x"
        value: Any = base64.b64encode(bytes(size)).decode() if format == "bytes" else "x" * (size - 2)
        name = "value_base64" if format == "bytes" else "value"
        first = base64.b64encode(b"1").decode() if format == "bytes" else text
        return json.dumps({"messages": [{name: first}, {name: value}]}).encode()

    assert decode_json(body(LIMIT), intake(format)).num_rows == 2
    with pytest.raises(MessageTooLarge) as caught:
        decode_json(body(LIMIT + 1), intake(format))
    assert caught.value.fields == {"limit_bytes": LIMIT, "index": 1}


def test_key_and_headers_over_the_limit() -> None:
    def body(size: int) -> bytes:
        return json.dumps({"key": "é" * 100, "headers": {"a": "b", "name": "x" * (size - 206)}, "value": 1}).encode()

    assert decode_json(b'{"messages":[%b]}' % body(LIMIT), intake()).num_rows == 1
    for decoder in (decode_json, decode_single):
        with pytest.raises(MessageTooLarge, match="key and headers"):
            decoder(body(LIMIT + 1), intake())  # type: ignore[operator]


def test_content_types() -> None:
    assert values(decode("Application/JSON; charset=utf-8", b'{"value": 1}', intake())) == ["1"]
    assert values(decode("application/x-ndjson", b"1\n2", intake(), bare=True)) == ["1", "2"]
    for kind in (None, "", "text/plain"):
        rows = decode(kind, b"\x00raw", intake("bytes"), key="k")
        assert rows.select(["_key", "value"]).to_pylist() == [{"_key": "k", "value": b"\x00raw"}]
        with pytest.raises(UnsupportedContentType) as caught:
            decode(kind, b"1", intake())
        assert "application/json" in caught.value.fields["supported"]
    with pytest.raises(MessageTooLarge):
        decode("image/png", bytes(LIMIT + 1), intake("bytes"))


KEYS = [
    (b'{"value": {"k": "a\\u00e9"}}', "aé"),
    (b'{"value": {"k": 1.50}}', "1.50"),
    (b'{"value": {"k": true}}', "true"),
    (b'{"value": {"k": null}}', None),
    (b'{"value": {"other": {"k": 1}}}', None),
    (b'{"value": [{"k": 1}]}', None),
    (b'{"value": "k"}', None),
    (b'{"key": "x", "value": {"k": null}}', "x"),
    (b'{"key": "x", "value": 1}', "x"),
    (b'{"key": "7", "value": {"k": 7}}', "7"),
    (b'{"value": {\n"k":\n"a"}}', "a"),
]


@pytest.mark.parametrize(("body", "key"), KEYS)
def test_keys_in_the_value(body: bytes, key: str | None) -> None:
    single = decode_single(body, intake(key_field="k"))
    assert single is not None
    assert single.key == key
    rows = decode_json(b'{"messages": [%b, {"value": {"k": 1}}]}' % body, intake(key_field="k"))
    assert rows.column("_key").to_pylist() == [key, "1"]


@pytest.mark.parametrize(
    "body", [b'{"value": {"k": {}}}', b'{"value": {"k": [1]}}', b'{"key": "a", "value": {"k": "b"}}']
)
def test_keys_that_are_none(body: bytes) -> None:
    with pytest.raises(InvalidMessages) as caught:
        decode_json(b'{"messages": [{"value": 1}, %b]}' % body, intake(key_field="k"))
    assert list(reasons(caught.value)) == [1]


@pytest.mark.parametrize("field", ["name", "token", "small", "big", "flag", "day"])
def test_fields_that_may_be_the_key(field: str) -> None:
    check_key_field(intake("typed").layout, field)


@pytest.mark.parametrize(
    ("format", "field"), [("typed", "none"), ("typed", "wide"), ("typed", "blob"), ("bytes", "value"), ("json", "")]
)
def test_fields_that_may_not_be_the_key(format: str, field: str) -> None:
    with pytest.raises(InvalidRequest, match=r"key|fields"):
        check_key_field(intake(format).layout, field)

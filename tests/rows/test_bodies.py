"""NDJSON bodies, the hints of errors about bodies that are no messages, and content encodings within their bound."""

import gzip

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seaweedq.errors import (
    InvalidMessages,
    InvalidRequest,
    MessageTooLarge,
    RequestTooLarge,
    UnreadableBody,
    UnsupportedContentType,
    UnsupportedEncoding,
)
from seaweedq.rows import bodies, envelopes
from seaweedq.rows import intake as intakes
from seaweedq.rows.bodies import FORM, body_hint, decode, decode_body, decode_ndjson, line_hint
from seaweedq.segments.layout import Format
from tests.support.rows.body_samples import LIMIT, intake, reasons, values


@pytest.mark.parametrize(
    "body",
    [
        b'{"value":1}\n{"value":2}',
        b'{"value":1}\n{"value":2}\n',
        b'{"value":1}\r\n{"value":2}\r\n',
        b'\n\n{"value":1}\n \t\n{"value":2}\n\n',
        b' {"value": 1 }\t\n\t{"value": 2 } ',
    ],
)
def test_lines_are_messages(body: bytes) -> None:
    assert values(decode_ndjson(body, intake())) == ["1", "2"]


@pytest.mark.parametrize("body", [b'1\n"a"', b'1\r\n"a"\r\n', b'\n 1 \n\n\t"a"\n'])
@pytest.mark.parametrize("key_field", [None, "k"])
def test_bare_lines_are_values(body: bytes, key_field: str | None) -> None:
    assert values(decode_ndjson(body, intake(key_field=key_field), bare=True)) == ["1", '"a"']


def test_bare_lines_have_keys() -> None:
    rows = decode_ndjson(b'{"k":"a"}\n{"k":5}\n{}', intake(key_field="k"), bare=True)
    assert rows.column("_key").to_pylist() == ["a", "5", None]
    rows = decode_ndjson(b'{"small":5}\n{"small":6,"name":"a"}', intake("typed", "small"), bare=True)
    assert rows.column("_key").to_pylist() == ["5", "6"]


def test_bare_lines_are_no_bytes() -> None:
    with pytest.raises(InvalidRequest, match="value_base64"):
        decode_ndjson(b'"QQ=="', intake("bytes"), bare=True)


@pytest.mark.parametrize("body", [b"", b"\n", b"\r\n \n"])
@pytest.mark.parametrize("bare", [True, False])
def test_no_messages(body: bytes, bare: bool) -> None:
    with pytest.raises(InvalidRequest, match="has no messages"):
        decode_ndjson(body, intake(), bare)


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        (b'{"value":1}{"value":2}\n{"value":\n3}', [0, 1, 2]),
        (b'{"value":1} {"value":2}', [0]),
        (b'{"value":1}{"value":2}\n{"value":{}\n}', [0, 1, 2]),
        (b'{"value":1}\n\n{"value"\n{"value":2}', [2]),
        (b'{"value":1}\nnot json\n[1]\n5\nnull', [1, 2, 3, 4]),
        (b'{"value":1}\n{"value":"\xff"}\n{"val":1}', [1, 2]),
        (b'{"value":1}\n{"value":1,"reference":{}}', [1]),
        (b'{"value":' + b"[" * 100_000 + b'\n{"value":1}', [0]),
        (b'{"value":1}\r{"value":2}', [0]),
        (b'\xef\xbb\xbf{"value":1}', [0]),
    ],
)
def test_bad_lines_are_named(body: bytes, lines: list[int]) -> None:
    with pytest.raises(InvalidMessages) as caught:
        decode_ndjson(body, intake())
    assert list(reasons(caught.value)) == lines


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        (b"1 2\n3", [0]),
        (b"1,2\n[3\n4]", [0, 1, 2]),
        (b"1\nNaN\n\n1e999\n2", [1, 3]),
        (b'{"a":1\n"b":2}\n{},{}', [0, 1, 2]),
        (b'"\xff"', [0]),
    ],
)
def test_bad_bare_lines_are_named(body: bytes, lines: list[int]) -> None:
    with pytest.raises(InvalidMessages) as caught:
        decode_ndjson(body, intake(), bare=True)
    assert list(reasons(caught.value)) == lines


def test_two_objects_on_a_bare_line_are_no_two_rows() -> None:
    body = b'{"small":1},{"small":2}\n{"small":3\n"name":"a"}'
    with pytest.raises(InvalidMessages) as caught:
        decode_ndjson(body, intake("typed"), bare=True)
    assert list(reasons(caught.value)) == [0, 1, 2]


def test_a_line_over_the_limit() -> None:
    with pytest.raises(MessageTooLarge) as caught:
        decode_ndjson(b'1\n\n"' + b"x" * LIMIT + b'"', intake(), bare=True)
    assert caught.value.fields == {"limit_bytes": LIMIT, "index": 2}


def test_the_look_at_bad_lines_ends_after_ten_thousand() -> None:
    with pytest.raises(InvalidMessages, match="at least 10000") as caught:
        decode_ndjson(b"5\n" * 5_000_000, intake())
    assert caught.value.fields["invalid"] == 10_000
    assert list(reasons(caught.value)) == list(range(1_000))


def test_more_than_a_million_messages_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="1000000"):
        decode_ndjson(b'{"value":1}\n' * 1_000_001, intake())


def test_more_than_a_million_messages_are_counted_before_they_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("seaweedq.rows.envelopes.decode_lines")
    monkeypatch.delattr("seaweedq.rows.envelopes.row_by_row")
    with pytest.raises(InvalidRequest, match="1000002 messages; the limit is 1000000"):
        decode_ndjson(b'{"value":1}\n' * 1_000_001 + b'{"v":1}\n', intake())


def test_more_than_that_are_refused_one_by_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (intakes, envelopes):
        monkeypatch.setattr(module, "MAX_ROWS", 10)
    body = b'{"value":1}\n\n'
    assert decode_ndjson(body * 10, intake()).num_rows == 10
    with pytest.raises(InvalidRequest, match="11 messages; the limit is 10"):
        decode_ndjson(body * 20, intake())


MIXED = [
    b'{"value":1}',
    b'{"value":2,"key":"k"}',
    b'{"value":[3,"long"],"headers":{"a":"b"}}',
    b'{"value":4}',
    b'{"value":5,"timestamp":"2026-01-01T00:00:00Z","expires_in_s":5}',
    b'{"value":6,"key":"","headers":{}}',
]


@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize("size", [1, 12, 13, 40, 100])
def test_slices_of_a_body_give_the_same_rows(monkeypatch: pytest.MonkeyPatch, size: int, bare: bool) -> None:
    for lines in ([*MIXED], MIXED[:1], MIXED[::-1], [MIXED[0]] * 20, [MIXED[0]] * 9 + [MIXED[1]]):
        body = b"\n".join(lines)
        whole = decode_ndjson(body, intake(), bare)
        monkeypatch.setattr(bodies, "SLICE_BYTES", size)
        sliced = decode_ndjson(body, intake(), bare)
        monkeypatch.undo()
        assert sliced.equals(whole)
        assert sliced.schema == whole.schema


def test_slices_name_the_lines_of_the_whole_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "SLICE_BYTES", 30)
    with pytest.raises(InvalidMessages) as error:
        decode_ndjson(b"\n".join([*MIXED, b'{"v":1}', *MIXED, b"{"]), intake())
    assert [each["index"] for each in error.value.fields["errors"]] == [6, 13]
    with pytest.raises(InvalidMessages) as error:
        decode_ndjson(b'{"value":1}{"value":2}\n' * 5, intake())
    assert len(error.value.fields["errors"]) == 5


BARE, JOINED, CUT = "add ?bare=true", "--data-binary", "jq -c"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            b'{"level":"info"}',
            f'if each line is a value, {BARE} to the URL; otherwise this line must be {{"value": {{"level":"info"}}}}',
        ),
        (b"3", '{"value": 3}'),
        (b'{"a":1}{"b":2}', JOINED),
        (b'{"value":1} {"value":2}', JOINED),
        (b'{"a":1', CUT),
        (b"[", CUT),
        (b'{"a":"' + b"x" * 300 + b'"}', '{"value": {"a":"' + "x" * 194 + "...}"),
    ],
)
def test_a_line_that_is_no_message_is_explained(line: bytes, said: str) -> None:
    with pytest.raises(InvalidMessages) as caught:
        decode("application/x-ndjson", b'{"value":1}\r\n\r\n' + line + b'\n{"no":1}', intake())
    assert caught.value.fields["errors"][0]["index"] == 2
    assert said in caught.value.fields["hint"]
    assert caught.value.detail.endswith(caught.value.fields["hint"])


@pytest.mark.parametrize("line", [b'{"value":1,"x":2}', b"\xff", b"no JSON", b'{"value":1,"timestamp":"x"}'])
def test_any_other_line_is_not(line: bytes) -> None:
    with pytest.raises(InvalidMessages) as caught:
        decode("application/x-ndjson", line, intake())
    assert "hint" not in caught.value.fields


def test_bare_lines_that_are_cut_or_joined_are_explained() -> None:
    for line, said in ((b'{"a":1}{"b":2}', JOINED), (b'{"a":', CUT)):
        with pytest.raises(InvalidMessages) as caught:
            decode("application/x-ndjson", line, intake(), bare=True)
        assert said in caught.value.fields["hint"]


def test_a_topic_of_bytes_is_told_of_its_own_field() -> None:
    with pytest.raises(InvalidMessages, match="value_base64") as caught:
        decode("application/x-ndjson", b'{"level":"info"}', intake("bytes"))
    assert "bare" not in caught.value.fields["hint"]


@pytest.mark.parametrize(
    ("type", "body"),
    [("application/x-ndjson", b'{"value":"x"}'), ("application/json", b'{"value":"x"}')],
)
def test_a_value_of_text_for_a_topic_of_bytes_is_told_where_bytes_go(type: str, body: bytes) -> None:
    with pytest.raises(InvalidMessages) as caught:
        decode(type, body, intake("bytes"))
    assert "base64 in `value_base64`" in caught.value.fields["hint"]
    with pytest.raises(InvalidMessages) as of_base64:
        decode(type, body.replace(b"value", b"value_base64"), intake("bytes"))
    assert "hint" not in of_base64.value.fields


def test_a_json_body_that_is_no_message_is_explained() -> None:
    with pytest.raises(InvalidMessages) as caught:
        decode("application/json", b'{"level": "info"}', intake())
    assert caught.value.fields["hint"] == 'if the body is a value, it must be {"value": {"level": "info"}}'
    with pytest.raises(UnreadableBody) as unreadable:
        decode("application/json", b'{"level":"info"}\n{"level":"warn"}', intake())
    assert "application/x-ndjson" in unreadable.value.fields["hint"]
    with pytest.raises(UnsupportedContentType, match="curl sends it"):
        decode("application/x-www-form-urlencoded", b'{"value":1}', intake())


@pytest.mark.parametrize(
    ("type", "body", "told"),
    [
        ("text/plain", b'{"value":1}', ["looks like JSON", "'content-type: application/json'"]),
        ("text/plain", b'{"a":1}\n{"a":2}\n', ["looks like lines of JSON", "'content-type: application/x-ndjson'"]),
        (FORM, b'{"a":1}\n{"a":2}\n', ["curl sends it", "'content-type: application/x-ndjson'"]),
        (FORM, b'{"a":1}{"a":2}', ["curl sends it", "'content-type: application/x-ndjson'", JOINED]),
        (FORM, b"a=b", ["curl sends it"]),
        ("text/plain", b"hello", ["other types need a bytes topic"]),
    ],
)
def test_a_content_type_that_was_forgotten_is_told(type: str, body: bytes, told: list[str]) -> None:
    with pytest.raises(UnsupportedContentType) as caught:
        decode(type, body, intake())
    assert [text for text in told if text not in str(caught.value)] == []
    assert ("looks like" in str(caught.value)) is any("content-type: app" in text for text in told)


def test_a_message_in_a_list_is_not_explained_by_the_whole_body() -> None:
    with pytest.raises(InvalidMessages) as caught:
        decode("application/json", b'{"messages":[{"level":"info"}]}', intake())
    assert "hint" not in caught.value.fields


def test_a_line_is_a_message_or_a_bare_value() -> None:
    assert values(decode("application/x-ndjson", b'{"value":1}', intake(), bare=True)) == ['{"value":1}']
    assert values(decode("application/x-ndjson", b'{"value":1}', intake(), bare=False)) == ["1"]
    assert values(decode("application/x-ndjson", b'{"value":1}', intake())) == ["1"]


@given(
    st.binary(max_size=60) | st.text('{}[]",:ab1 \n', max_size=40).map(str.encode),
    st.booleans(),
    st.sampled_from(Format),
)
def test_hostile_bytes_raise_nothing(line: bytes, bare: bool, format: Format) -> None:
    for found in (line_hint(line, bare, format), body_hint(line, format)):
        assert found is None or 0 < len(found) < 500


BODY = b"".join(b'{"value":%d}\n' % n for n in range(5000))


def packed(body: bytes, encoding: str) -> bytes:
    return gzip.compress(body) if "gzip" in encoding else pa.compress(body, codec="zstd", asbytes=True)


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "zstd", " GZIP "])
def test_decodes(encoding: str) -> None:
    assert decode_body(packed(BODY, encoding.lower()), encoding, len(BODY)) == BODY


@pytest.mark.parametrize("encoding", [None, "", "identity", "Identity"])
def test_identity_is_the_body_itself(encoding: str | None) -> None:
    assert decode_body(BODY, encoding, len(BODY)) is BODY


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_several_members_follow_each_other(encoding: str) -> None:
    assert decode_body(packed(BODY, encoding) + packed(b"end", encoding), encoding, 1 << 20) == BODY + b"end"


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_every_truncation_is_noticed(encoding: str) -> None:
    whole = packed(b"a body of some length " * 3, encoding)
    for body in (whole, whole + whole):
        for end in range(len(body)):
            if end in (0, len(whole)):
                continue
            with pytest.raises(UnreadableBody):
                decode_body(body[:end], encoding, 1 << 20)


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
@pytest.mark.parametrize("damage", [b"", b"plain text", b"\x1f\x8b", b"\x28\xb5\x2f\xfd"])
def test_what_is_not_in_the_encoding_is_unreadable(encoding: str, damage: bytes) -> None:
    with pytest.raises(UnreadableBody, match=encoding):
        decode_body(damage, encoding, 1 << 20)


def test_a_wrong_checksum_is_unreadable() -> None:
    body = bytearray(gzip.compress(BODY))
    body[-8] ^= 1
    with pytest.raises(UnreadableBody):
        decode_body(bytes(body), "gzip", 1 << 20)


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_bomb_costs_no_more_than_the_limit(encoding: str) -> None:
    bomb = packed(bytes(256 << 20), encoding)
    before = pa.total_allocated_bytes()
    with pytest.raises(RequestTooLarge, match="upload") as caught:
        decode_body(bomb, encoding, 1 << 20)
    assert caught.value.fields == {"limit_bytes": 1 << 20}
    assert pa.total_allocated_bytes() - before < 8 << 20


def test_the_limit_itself_is_allowed_and_one_more_is_not() -> None:
    assert len(decode_body(gzip.compress(bytes(1000)), "gzip", 1000)) == 1000
    for body, encoding in ((gzip.compress(bytes(1001)), "gzip"), (bytes(1001), None)):
        with pytest.raises(RequestTooLarge):
            decode_body(body, encoding, 1000)


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, gzip", "gzip,zstd", "\x00"])
def test_other_encodings_are_named_with_those_that_are_taken(encoding: str) -> None:
    with pytest.raises(UnsupportedEncoding) as caught:
        decode_body(BODY, encoding, 1 << 20)
    assert caught.value.fields == {"supported": ["gzip", "zstd"]}


@pytest.mark.parametrize(
    ("format", "message", "reason"),
    [
        (
            "json",
            b'{"value_base64": "eA=="}',
            "messages of a json topic need the field `value`, not `value_base64` (in Python, text",
        ),
        ("bytes", b'{"value": {"a": 1}}', "messages of a bytes topic need the field `value_base64`, not `value`"),
    ],
)
def test_the_value_of_another_format_is_told_which_field_it_needs(format: str, message: bytes, reason: str) -> None:
    with pytest.raises(InvalidMessages) as caught:
        decode_ndjson(message, intake(format))
    assert reason in str(caught.value)

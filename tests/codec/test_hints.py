"""The hints of errors about bodies that are no messages."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seaweedq.codec import hints
from seaweedq.codec.bodies import FORM, decode
from seaweedq.errors import InvalidMessages, UnreadableBody, UnsupportedContentType
from seaweedq.segments.layout import Format
from tests.support.codec.body_samples import intake, values

BARE, JOINED, CUT = "add ?bare=true", "--data-binary", "jq -c"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            b'{"level":"info"}',
            f'if each line is a value, {BARE} to the URL; else this line has to be {{"value": {{"level":"info"}}}}',
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
    assert caught.value.fields["hint"] == 'if the body is a value, it has to be {"value": {"level": "info"}}'
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


def test_a_topic_decides_where_the_request_does_not() -> None:
    bare = replace(intake(), bare=True)
    assert values(decode("application/x-ndjson", b'{"value":1}', bare)) == ['{"value":1}']
    assert values(decode("application/x-ndjson", b'{"value":1}', bare, bare=False)) == ["1"]
    assert values(decode("application/x-ndjson", b'{"value":1}', intake())) == ["1"]


@given(
    st.binary(max_size=60) | st.text('{}[]",:ab1 \n', max_size=40).map(str.encode),
    st.booleans(),
    st.sampled_from(Format),
)
def test_hostile_bytes_raise_nothing(line: bytes, bare: bool, format: Format) -> None:
    for found in (hints.of_line(line, bare, format), hints.of_body(line, format)):
        assert found is None or 0 < len(found) < 500

"""What the decoder of JSON says reaches users in this project's words, and an unknown field names the nearest."""

from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta, Struct

from seaweedq.api.connections.request_reader import decode_request
from seaweedq.errors import InvalidRequest, UnreadableBody
from seaweedq.json_reasons import in_words


class Inner(Struct, forbid_unknown_fields=True):
    max_age_s: Annotated[float, Meta(gt=0, le=10)] | None = None


class Outer(Struct, forbid_unknown_fields=True):
    initial_segments: Annotated[int, Meta(ge=1)]
    format: Literal["json", "bytes"] = "json"
    names: Annotated[list[Annotated[str, Meta(max_length=3, pattern="^a")]], Meta(max_length=2)] = []
    retention: Inner | None = None


DECODER = msgspec.json.Decoder(Outer)


@pytest.mark.parametrize(("body", "told"), [
    (b'{"initial_segment":2}', "the request is not valid: there is no field 'initial_segment'; the nearest is "
     "initial_segments"),
    (
        b'{"initial_segments":2,"zzz":1}',
        "the request is not valid: there is no field 'zzz'; the fields are initial_segments, format, names, retention",
    ),
    (b'{"initial_segments":2,"retention":{"max_age":1}}', 'retention has no field \'max_age\'; '
     "the nearest is max_age_s"),
    (b"{}", "the request is not valid: the field initial_segments is missing"),
    (b"[]", "the body must be an object, not a list"),
    (b'{"initial_segments":0}', "initial_segments must be a whole number of at least 1, not 0"),
    (b'{"initial_segments":1.5}', "initial_segments must be a whole number, not 1.5"),
    (b'{"initial_segments":1,"format":"x"}', 'format must be one of bytes, json, not "x"'),
    (b'{"initial_segments":1,"names":["a","a","a"]}', 'names must have at most 2 entries, not ["a","a","a"]'),
    (b'{"initial_segments":1,"names":["aaaa"]}', 'names[0] must have at most 3 characters, not "aaaa"'),
    (b'{"initial_segments":1,"names":["b"]}', "names[0] must match '^a', not \"b\""),
    (b'{"initial_segments":1,"retention":{"max_age_s":0}}',
     "retention.max_age_s must be a number of more than 0, not 0"),
])  # fmt: skip
def test_a_request_that_is_refused_is_told_in_words(body: bytes, told: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_request(body, None, DECODER)
    assert str(caught.value) == told
    assert not any("`" in str(value) for value in caught.value.fields.values())


@pytest.mark.parametrize(("body", "told"), [
    (b'{"initial_segments":', "the body is not JSON: it is cut off"), (b"{]", "the body is not JSON from byte 1 on"),
    (b'{"initial_segments":1} {}',
     "the body is not JSON from byte 24 on, followed by more text"), (b'{"\xff":1}', "the body is not UTF-8"),
])  # fmt: skip
def test_a_body_that_is_no_json_is_told_in_words(body: bytes, told: str) -> None:
    with pytest.raises(UnreadableBody) as caught:
        decode_request(body, None, DECODER)
    assert str(caught.value) == told


@pytest.mark.parametrize("kind", [bool, int, float, str, bytes, list[int], dict[str, int], Inner, int | None])
@pytest.mark.parametrize("text", [b"1", b"1.5", b'"a"', b"null", b"true", b"[1.5]", b'{"a":"b"}', b"1e999", b"", b"{"])
def test_no_text_of_the_decoder_is_left(kind: Any, text: bytes) -> None:
    try:
        msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError as error:
        words = in_words(error)
        assert "`" not in words
        assert not {"Expected", "Object", "Invalid", "malformed", "truncated", "int", "str"} & set(words.split())
        assert words != "is not valid"

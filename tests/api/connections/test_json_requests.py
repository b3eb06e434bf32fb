"""Errors about the values of JSON requests name what is allowed there; durations and sizes may be texts."""

from enum import StrEnum
from typing import Annotated

import msgspec
import pytest

from seaweedq.api.connections.request_reader import MAX_BYTES_OF_TEXTS, decode_request
from seaweedq.errors import InvalidRequest, UnreadableBody


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Part(msgspec.Struct):
    colours: list[Colour]


class Whole(msgspec.Struct):
    parts: list[Part] = []
    best: Colour | None = None


@pytest.mark.parametrize(
    ("body", "field"),
    [(b'{"best": "green"}', "best"), (b'{"parts": [{"colours": ["red", "green"]}]}', "parts[0].colours[1]")],
)
def test_the_values_of_an_enum_are_named_wherever_it_stands(body: bytes, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_request(body, "application/json", msgspec.json.Decoder(Whole))
    assert caught.value.fields["field"] == field
    assert sorted(str(caught.value.fields["bound"]).removeprefix("must be one of ").split(", ")) == ["blue", "red"]


class Bounds(msgspec.Struct, forbid_unknown_fields=True):
    max_age_s: Annotated[float, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    max_bytes: Annotated[int, msgspec.Meta(ge=1, le=2**40)] | None = None


class Taking(msgspec.Struct, forbid_unknown_fields=True):
    retention: Bounds | None = None
    backoff_s: Annotated[list[Annotated[float, msgspec.Meta(le=3600)]], msgspec.Meta(max_length=3)] = []
    target_bytes_per_s: int = 0
    target_messages_per_s: int = 0
    mode: str = ""
    headers: dict[str, str] = {}
    note: int = 0


def taken(body: bytes) -> Taking:
    return decode_request(body, "application/json", msgspec.json.Decoder(Taking))


@pytest.mark.parametrize(
    ("with_texts", "with_numbers"),
    [
        (
            b'{"retention":{"max_age_s":"7d","max_bytes":"10GB"}}',
            b'{"retention":{"max_age_s":604800,"max_bytes":10000000000}}',
        ),
        (b'{"backoff_s":["500ms",2,"1m"]}', b'{"backoff_s":[0.5,2,60]}'),
        (b'{"target_bytes_per_s":"1MiB"}', b'{"target_bytes_per_s":1048576}'),
        (b'{"retention":{"max_age_s":"60"}}', b'{"retention":{"max_age_s":60}}'),
    ],
)
def test_fields_that_end_in_their_unit_take_texts(with_texts: bytes, with_numbers: bytes) -> None:
    assert taken(with_texts) == taken(with_numbers)


def test_a_large_body_has_no_texts_of_durations() -> None:
    """They are parsed on the loop, one by one: 16 MiB of them held it up for half a minute."""
    large = b'{"backoff_s":["1s"%b]}' % (b',"1s"' * (MAX_BYTES_OF_TEXTS // 5))
    with pytest.raises(InvalidRequest, match=r"backoff_s\[0\] must be a number, not \"1s\""):
        taken(large)


def test_a_text_elsewhere_stays_a_text() -> None:
    found = taken(b'{"mode":"5m","headers":{"age_s":"5m"},"backoff_s":["5m"]}')
    assert (found.mode, found.headers, found.backoff_s) == ("5m", {"age_s": "5m"}, [300])


@pytest.mark.parametrize(
    ("body", "field", "told"),
    [
        (
            b'{"retention":{"max_age_s":"7x"}}',
            "retention.max_age_s",
            "must be a number of sec",
        ),
        (b'{"retention":{"max_bytes":"10G"}}', "retention.max_bytes", "must be .*GB is 10.9.*, not '10G'"),
        (b'{"retention":{"max_bytes":"1.5B"}}', "retention.max_bytes", "must be a whole number of bytes, not '1.5B'"),
        (b'{"retention":{"max_age_s":"52w"}}', "retention.max_age_s", 'must be a number of at most 1000000, not "52w"'),
        (b'{"retention":{"max_age_s":"-1d"}}', "retention.max_age_s", "must be .*, not '-1d'"),
        (b'{"backoff_s":[1,"1s","x"]}', "backoff_s[2]", "must be .*, not 'x'"),
        (b'{"backoff_s":["1s","2h"]}', "backoff_s[1]", 'must be a number of at most 3600, not "2h"'),
        (b'{"backoff_s":["1s","1s","1s","1s"]}', "backoff_s", "must have at most 3 entries"),
        (b'{"backoff_s":"5m"}', "backoff_s", 'must be a list, not "5m"'),
        (b'{"target_messages_per_s":"1MB"}', "target_messages_per_s", 'must be a whole number, not "1MB"'),
        (b'{"note":"5m"}', "note", 'must be a whole number, not "5m"'),
    ],
)
def test_an_error_about_a_text_names_the_field_the_text_and_the_bound(body: bytes, field: str, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told) as caught:
        taken(body)
    assert caught.value.fields["field"] == field
    assert caught.value.fields["bound"]


@pytest.mark.parametrize("body", [b'{"backoff_s":["5m"],"mode":nope}', b'{"backoff_s":["5m"],"mode":"\xff"}'])
def test_a_body_that_is_no_json_behind_a_text_is_unreadable(body: bytes) -> None:
    with pytest.raises(UnreadableBody):
        taken(body)

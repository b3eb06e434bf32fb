"""Errors about the values of JSON requests name what is allowed there."""

from enum import StrEnum
from typing import Any

import msgspec
import pytest

from seaweedq.api.bodies.json_requests import decode_request
from seaweedq.errors import InvalidRequest


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
    scope: Any = {"headers": [(b"content-type", b"application/json")]}
    with pytest.raises(InvalidRequest) as caught:
        decode_request(body, scope, msgspec.json.Decoder(Whole))
    assert caught.value.fields["field"] == field
    assert sorted(str(caught.value.fields["bound"]).removeprefix("one of ").split(", ")) == ["blue", "red"]

"""Decodes the envelopes of messages that are published as JSON; values are not decoded.

Topics of values, topics of bytes and messages with a payload each have a decoder: each is as fast as its shape allows.
"""

import datetime as dt
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from seaweedq.codec.intake import MAX_EXPIRES_S
from seaweedq.segments.layout import Format
from seaweedq.units import DURATION_PATTERN

_DURATION = msgspec.Meta(
    extra_json_schema={"pattern": DURATION_PATTERN, "description": "a duration, such as 90s, 1h30m or 7d"}
)
Expiry = Annotated[float, msgspec.Meta(gt=0, le=MAX_EXPIRES_S)] | Annotated[str, _DURATION]
_BASE64 = msgspec.Meta(extra_json_schema={"pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"})
Moment = Annotated[dt.datetime, msgspec.Meta(tz=True)]


class Envelope(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A message of a json or typed topic."""

    value: msgspec.Raw
    key: str | None = None
    headers: dict[str, str] | None = None
    timestamp: Moment | None = None
    expires_in_s: Expiry | None = None


class BytesEnvelope(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A message of a bytes topic."""

    value: Annotated[bytes, _BASE64] = msgspec.field(name="value_base64")
    key: str | None = None
    headers: dict[str, str] | None = None
    timestamp: Moment | None = None
    expires_in_s: Expiry | None = None


class UploadReference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A payload: the upload that has it."""

    upload_id: Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_-]+(?!\n)$")]


class ReferenceEnvelope(msgspec.Struct, forbid_unknown_fields=True):
    """A message of a json or bytes topic that has a payload in the store, and no value."""

    reference: UploadReference
    key: str | None = None
    headers: dict[str, str] | None = None
    timestamp: Moment | None = None
    expires_in_s: Expiry | None = None


class Envelopes(msgspec.Struct, forbid_unknown_fields=True):
    """Several messages of a json or typed topic."""

    messages: Annotated[list[Envelope], msgspec.Meta(min_length=1)]


class BytesEnvelopes(msgspec.Struct, forbid_unknown_fields=True):
    """Several messages of a bytes topic."""

    messages: Annotated[list[BytesEnvelope], msgspec.Meta(min_length=1)]


class ReferenceEnvelopes(msgspec.Struct, forbid_unknown_fields=True):
    """Several messages, each with a payload. One request may hold messages of both kinds."""

    messages: Annotated[list[ReferenceEnvelope], msgspec.Meta(min_length=1)]


Message = Envelope | BytesEnvelope

_one = msgspec.json.Decoder(Envelope)
_one_bytes = msgspec.json.Decoder(BytesEnvelope)
_many = msgspec.json.Decoder(Envelopes)
_many_bytes = msgspec.json.Decoder(BytesEnvelopes)
_referenced = msgspec.json.Decoder(ReferenceEnvelope)


def decode_one(body: Any, format: Format) -> Message:
    """Decodes one message, whose value is not checked yet. Raises msgspec's errors."""
    return _one_bytes.decode(body) if format is Format.BYTES else _one.decode(body)


def decode_lines(body: bytes, format: Format) -> Sequence[Message]:
    """Decodes one message after the other, wherever the lines end. Raises msgspec's errors."""
    return _one_bytes.decode_lines(body) if format is Format.BYTES else _one.decode_lines(body)


def decode_many(body: Any, format: Format) -> Sequence[Message]:
    """Decodes the messages of `{"messages": [...]}`. Raises msgspec's errors."""
    return _many_bytes.decode(body).messages if format is Format.BYTES else _many.decode(body).messages


def decode_reference(body: Any) -> ReferenceEnvelope:
    """Decodes one message with a payload. Raises msgspec's errors."""
    return _referenced.decode(body)

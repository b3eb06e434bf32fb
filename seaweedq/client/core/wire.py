"""The typed messages of the HTTP API: decoding directly into these is the client's fast path."""

import reprlib
from datetime import datetime
from functools import cached_property
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType


class Reference(msgspec.Struct, frozen=True, omit_defaults=True):
    """A payload in the store: its URI, size in bytes, SHA-256 in hex, and content type.

    `url` downloads the payload without credentials for a short time, and is not printed; None if there is no such URL.
    """

    uri: str
    size: int
    sha256: str
    content_type: str = "application/octet-stream"
    url: str | None = None

    def __repr__(self) -> str:
        return f"Reference(uri={self.uri!r}, size={self.size}, sha256={self.sha256!r})"


class WireMessage(msgspec.Struct, gc=False, kw_only=True):
    """A message as a broker sends it; the value stays JSON text."""

    id: str
    key: str | None = None
    value: msgspec.Raw | UnsetType = UNSET
    value_base64: str | UnsetType | None = UNSET
    headers: dict[str, str] | None = None
    timestamp: datetime
    segment: int
    offset: int
    attempt: int | UnsetType = UNSET
    reference: Reference | UnsetType | None = UNSET


class PageAnswer(msgspec.Struct):
    """The answer to a fetch."""

    messages: list[WireMessage]
    next_offset: int
    sealed: bool = False
    successors: list[int] = []


class PullAnswer(msgspec.Struct):
    """The answer to a pull: messages, and the name of the lease that they are under; None of an older broker."""

    messages: list[WireMessage]
    lease: str | None = None


class SegmentRows(msgspec.Struct, frozen=True):
    """The position of a publish's rows in a segment."""

    segment: int
    first_offset: int
    count: int


SHOWN = 5  # ids of a repr


class Published(msgspec.Struct, dict=True):
    """The answer to a publish. `named` are the ids as the broker sent them: few ask for them."""

    count: int
    segments: list[SegmentRows]
    named: msgspec.Raw = msgspec.field(name="ids", default=msgspec.Raw(b"null"))
    duplicate: bool = False

    @cached_property
    def ids(self) -> list[str] | None:
        """Returns the ids in the order of the messages; None if the broker was not asked for ids."""
        found: list[str] | None = _decode_ids(self.named)
        return found

    def __repr__(self) -> str:
        ids = self.ids or []
        more = f", ... {len(ids) - SHOWN:,} more" if len(ids) > SHOWN else ""
        shown = f"[{', '.join(map(repr, ids[:SHOWN]))}{more}]" if ids else None
        return f"Published(count={self.count}, ids={shown}, duplicate={self.duplicate})"


class AckResult(msgspec.Struct, frozen=True):
    """The answer to an ack, a nack or an extend; `unknown` ids were no longer leased, `late` ones neither, but nobody
    else had got them."""

    late: int = 0
    unknown: list[str] = []


class Envelope(msgspec.Struct, omit_defaults=True):
    """A message to be published."""

    value: Any
    key: str | None = None
    headers: dict[str, str] | None = None
    timestamp: datetime | str | None = None
    expires_in_s: float | None = None


class BytesEnvelope(msgspec.Struct, omit_defaults=True):
    """A message to be published whose value is bytes."""

    value_base64: bytes  # msgspec writes bytes as base64
    key: str | None = None
    headers: dict[str, str] | None = None
    timestamp: datetime | str | None = None
    expires_in_s: float | None = None


class UploadId(msgspec.Struct):
    """The id of an upload."""

    upload_id: str


class ReferenceEnvelope(msgspec.Struct, omit_defaults=True):
    """A message to be published whose payload was uploaded."""

    reference: UploadId
    key: str | None = None
    headers: dict[str, str] | None = None
    timestamp: datetime | str | None = None
    expires_in_s: float | None = None


decode_page = msgspec.json.Decoder(PageAnswer).decode
decode_pull = msgspec.json.Decoder(PullAnswer).decode
_decode_ids = msgspec.json.Decoder(list[str] | None).decode
decode_published = msgspec.json.Decoder(Published).decode
decode_ack_result = msgspec.json.Decoder(AckResult).decode
encode = msgspec.json.Encoder().encode


def envelope(
    value: Any,
    key: str | None = None,
    headers: dict[str, str] | None = None,
    timestamp: datetime | str | None = None,
    expires_in_s: float | None = None,
) -> bytes:
    """Encodes a message as one line of JSON.

    `value` is any JSON value (NaN becomes null), a msgspec.Raw with JSON text, or bytes for a `bytes` topic. Raises
    TypeError for a value that JSON cannot express and for a field of another type, ValueError for a `timestamp` without
    time zone.
    """
    _check(key, headers, timestamp, expires_in_s)
    if isinstance(value, bytes | bytearray | memoryview):
        return encode(BytesEnvelope(bytes(value), key, headers, timestamp, expires_in_s))
    line = encode(Envelope(value, key, headers, timestamp, expires_in_s))
    # Line breaks can only come from a Raw value, where they are white space between tokens.
    return line.replace(b"\n", b" ") if isinstance(value, msgspec.Raw) else line


def reference_envelope(
    upload_id: str,
    key: str | None = None,
    headers: dict[str, str] | None = None,
    timestamp: datetime | str | None = None,
    expires_in_s: float | None = None,
) -> bytes:
    """Encodes a message that names an upload, as one line of JSON. Raises as `envelope` does."""
    _check(key, headers, timestamp, expires_in_s)
    return encode(ReferenceEnvelope(UploadId(upload_id), key, headers, timestamp, expires_in_s))


def _check(key: object, headers: object, timestamp: object, expires_in_s: object) -> None:
    """Refuses values here that a broker would refuse much later, when the message's batch has been sent."""
    if key is not None and not isinstance(key, str):
        raise _wrong("key", key, "a str")
    if headers is not None:
        if not isinstance(headers, dict):
            raise _wrong("headers", headers, "a dict of str to str")
        for name, text in headers.items():
            if not isinstance(name, str) or not isinstance(text, str):
                raise _wrong("headers", {name: text}, "a dict of str to str")
    if timestamp is not None:
        if not isinstance(timestamp, datetime | str):
            raise _wrong("timestamp", timestamp, "a datetime or a str")
        if isinstance(timestamp, datetime) and timestamp.tzinfo is None:
            raise ValueError(f"timestamp {timestamp.isoformat()} has no time zone")
    if expires_in_s is not None and (isinstance(expires_in_s, bool) or not isinstance(expires_in_s, int | float)):
        raise _wrong("expires_in_s", expires_in_s, "a number of seconds")


def _wrong(field: str, given: object, wanted: str) -> TypeError:
    return TypeError(f"{field} must be {wanted}, not {reprlib.repr(given)} ({type(given).__name__})")

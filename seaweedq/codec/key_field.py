"""Reads keys from values: `key_field` names the top-level field that holds the key.

A string is decoded; a number or a boolean counts as its JSON text; a missing field or null is no key; an object or an
array is refused. A value that is not an object has no key. An explicit key counts where the field has none, and must
equal the field's key otherwise.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
import pyarrow as pa

from seaweedq.errors import InvalidRequest
from seaweedq.segments.layout import Format, Layout

_KEY_TYPES = (pa.string(), pa.int32(), pa.int64(), pa.bool_(), pa.date32())


def check_key_field(layout: Layout, key_field: str) -> None:
    """Raises InvalidRequest unless messages of this layout can have their key in that field."""
    if layout.format is Format.BYTES:
        raise InvalidRequest("the values of a bytes topic have no fields", field="key_field", value=key_field)
    if layout.format is Format.JSON:
        if not key_field:
            raise InvalidRequest("key_field is empty", field="key_field", value=key_field)
        return
    at = layout.values.get_field_index(key_field)
    if at < 0:
        raise InvalidRequest(
            f"key_field {key_field!r} is not a field of the schema", field="key_field", value=key_field
        )
    kind = layout.values.field(at).type
    if kind not in _KEY_TYPES:
        reason = f"key_field {key_field!r} is of type {kind}; a key must be a string, uuid, int, long, boolean or date"
        raise InvalidRequest(reason, field="key_field", value=key_field)


def keys_in(texts: Sequence[Any], key_field: str) -> list[str | None]:
    """Returns the keys in JSON texts. Raises msgspec.DecodeError or ValueError where a text may be invalid or is not an
    object."""
    joined = b"[%b]" % b",".join(texts)
    strings, raw = _decoders(key_field)
    try:
        return [each.key for each in strings.decode(joined)]
    except msgspec.ValidationError:
        return [_key(each.key) for each in raw.decode(joined)]


def key_in(text: bytes | msgspec.Raw, key_field: str) -> str | None:
    """Returns the key in one JSON text. Raises msgspec.DecodeError or ValueError where the field cannot be a key."""
    return keys_in([text], key_field)[0] if bytes(text[:1]) == b"{" else None


def agreed(explicit: str | None, field: str | None, key_field: str) -> str | None:
    """Returns the key of a message that may have two. Raises ValueError where they differ."""
    if explicit is None or field is None or explicit == field:
        return field if explicit is None else explicit
    raise ValueError(f"key {explicit[:64]!r} differs from the field {key_field!r}, {field[:64]!r}")


def _key(raw: msgspec.Raw) -> str | None:
    text = bytes(raw)
    if text[:1] == b'"':
        return msgspec.json.decode(text, type=str)
    if text[:1] in (b"{", b"["):
        raise ValueError("the key field is an object or an array")
    return None if text == b"null" else text.decode()


@lru_cache(1024)
def _decoders(key_field: str) -> tuple[msgspec.json.Decoder[Any], msgspec.json.Decoder[Any]]:
    kinds = (
        msgspec.defstruct("Key", [("key", kind, default)], gc=False, rename={"key": key_field})
        for kind, default in ((str | None, None), (msgspec.Raw, msgspec.Raw(b"null")))
    )
    strings, raw = (msgspec.json.Decoder(list[kind]) for kind in kinds)  # type: ignore[valid-type]
    return strings, raw

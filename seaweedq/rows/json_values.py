"""The values of json topics: checks that each is one JSON text that every reader of the topic can read, and reads keys.

Refusal are texts that the grammar does not allow (NaN, raw control characters, lone surrogates, two texts), bytes that
are not UTF-8, nesting deeper than 128, and numbers of more than 1,000 characters or out of a double's range.
msgspec checks the grammar of a text that it skips, but neither encoding, depth nor numbers. `doubtful` finds, in a few
passes over the whole column, the rows that may break one of these rules; `blemish` decides for one row.

`key_field` names the top-level field that holds the key. A string is decoded; a number or a boolean counts as its JSON
text; a missing field or null is no key; an object or an array is refused. A value that is not an object has no key. An
explicit key counts if the field has none, and must equal the field's key otherwise.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seaweedq.errors import InvalidRequest
from seaweedq.json_reasons import in_words
from seaweedq.segments.layout import Format, Layout

MAX_DEPTH = 128
MAX_NUMBER_CHARACTERS = 1000

TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"

_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_NUMBERS = re.compile(rb"[0-9.eE+-]++")
_STRIDE = 16

_texts = msgspec.json.Decoder(list[msgspec.Raw])

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Offsets = np.ndarray[Any, np.dtype[Any]]
_KEY_TYPES = (pa.string(), pa.int32(), pa.int64(), pa.bool_(), pa.date32())


def blemish(text: bytes | msgspec.Raw) -> str | None:
    """Returns the reason for which a json topic refuses this text, None if it accepts the text."""
    try:
        msgspec.json.decode(text)
    except RecursionError:
        return TOO_DEEP
    except msgspec.DecodeError as error:
        return in_words(error)
    if len(text) <= 2 * MAX_DEPTH:
        return None  # too short for both faults that follow
    bare = _STRINGS.sub(b"", memoryview(text))
    if max(map(len, _NUMBERS.findall(bare)), default=0) > MAX_NUMBER_CHARACTERS:
        return f"a number of more than {MAX_NUMBER_CHARACTERS} characters"
    brackets = np.frombuffer(bare, np.uint8) | 32
    steps = (brackets == ord("{")).astype(np.int8) - (brackets == ord("}")).astype(np.int8)
    return TOO_DEEP if np.cumsum(steps, dtype=np.int32).max(initial=0) > MAX_DEPTH else None


def doubtful(column: pa.StringArray) -> list[int]:
    """Returns the rows of valid JSON texts that `blemish` has to check: all that may be refused. No nulls.

    Raises pa.ArrowInvalid if a text is not UTF-8.
    """
    column.validate(full=True)
    offsets, data = _buffers(column)
    found = np.concatenate([_numbers(data), _openers(data, offsets)])
    rows = np.searchsorted(offsets, found, side="right") - 1
    return np.unique(rows).tolist() if len(found) else []


def are_json(column: pa.StringArray) -> bool:
    """Returns whether every row is exactly one JSON text without space around it. No nulls.

    The texts are decoded as the elements of one array. A text that holds a comma or a bracket of its own could shift
    the elements, but then their lengths cannot all agree: together with the commas they fill the whole array.
    """
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(column)], pa.int32()), column), ",")[0]
    try:
        texts = _texts.decode(b"[%b]" % joined.as_buffer())
    except (msgspec.DecodeError, RecursionError):
        return False
    return len(texts) == len(column) and bool(
        (np.fromiter(map(len, texts), np.int32, len(texts)) == np.diff(_buffers(column)[0])).all()
    )


def _buffers(column: pa.StringArray) -> tuple[Offsets, Bytes]:
    """Returns the row boundaries, counted from the column's first byte, and its bytes."""
    _, ends, data = column.buffers()
    offsets = np.frombuffer(ends, np.int32, len(column) + 1, column.offset * 4)
    first, last = int(offsets[0]), int(offsets[-1])
    body = np.frombuffer(data, np.uint8, last - first, first) if data else np.empty(0, np.uint8)
    return offsets - first, body


def _numbers(data: Bytes) -> "np.ndarray[Any, np.dtype[np.intp]]":
    """Returns where an exponent of three digits or a run of 128 digits may be: other numbers are below 1e227.

    Such a run has a digit at eight places in a row that are 16 bytes apart.
    """
    if len(data) < 5:
        return np.empty(0, np.intp)
    digits = (data - 48) < 10
    exponents = (data[1:-3] | 32) == ord("e")
    for part in (digits[:-4], digits[3:-1], digits[4:]):
        exponents &= part
    found = np.flatnonzero(exponents) + 1
    run = digits[::_STRIDE]
    for step in (1, 2, 4):
        run = run[:-step] & run[step:]
    return np.concatenate([found, np.flatnonzero(run) * _STRIDE])


def _openers(data: Bytes, offsets: Offsets) -> "np.ndarray[Any, np.dtype[np.intp]]":
    """Returns the first byte of each row with more than MAX_DEPTH opening brackets and braces."""
    if len(offsets) < 2 or int(np.diff(offsets).max()) <= 2 * MAX_DEPTH:
        return np.empty(0, np.intp)
    before = np.searchsorted(np.flatnonzero((data | 32) == ord("{")), offsets)
    return offsets[:-1][np.diff(before) > MAX_DEPTH]


def check_key_field(layout: Layout, key_field: str) -> None:
    """Raises InvalidRequest unless messages of this layout can have their key in that field."""
    if layout.format is Format.BYTES:
        raise InvalidRequest(
            "key_field cannot be set, because the values of a bytes topic have no fields",
            field="key_field",
            value=key_field,
        )
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
    """Returns the keys in JSON texts. Raises msgspec.DecodeError or ValueError if a text may be invalid or is not an
    object."""
    joined = b"[%b]" % b",".join(texts)
    strings, raw = _decoders(key_field)
    try:
        return [each.key for each in strings.decode(joined)]
    except msgspec.ValidationError:
        return [_key(each.key) for each in raw.decode(joined)]


def key_in(text: bytes | msgspec.Raw, key_field: str) -> str | None:
    """Returns the key in one JSON text. Raises msgspec.DecodeError or ValueError if the field cannot be a key."""
    return keys_in([text], key_field)[0] if bytes(text[:1]) == b"{" else None


def agree_on_key(explicit: str | None, field: str | None, key_field: str) -> str | None:
    """Returns the key of a message that may have two. Raises ValueError if they differ."""
    if explicit is None or field is None or explicit == field:
        return field if explicit is None else explicit
    raise ValueError(
        f"the message has the key {explicit[:64]!r}, but its key field {key_field!r} has the value {field[:64]!r}"
    )


def _key(raw: msgspec.Raw) -> str | None:
    text = bytes(raw)
    if text[:1] == b'"':
        return msgspec.json.decode(text, type=str)
    if text[:1] in (b"{", b"["):
        raise ValueError("the key field contains an object or an array, which cannot be a key")
    return None if text == b"null" else text.decode()


@lru_cache(1024)
def _decoders(key_field: str) -> tuple[msgspec.json.Decoder[Any], msgspec.json.Decoder[Any]]:
    kinds = (
        msgspec.defstruct("Key", [("key", kind, default)], gc=False, rename={"key": key_field})
        for kind, default in ((str | None, None), (msgspec.Raw, msgspec.Raw(b"null")))
    )
    strings, raw = (msgspec.json.Decoder(list[kind]) for kind in kinds)  # type: ignore[valid-type]
    return strings, raw

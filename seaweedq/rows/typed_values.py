"""Decodes the values of typed topics: JSON objects of the schema's fields become columns.

The struct that msgspec decodes into is made once for each schema. It is strict (no number for a string); a float may be
an integer, a decimal is a string or a number, times are RFC 3339 strings, binary is base64. Values that JSON can hold
and the column cannot (a decimal's scale, a float32's range, a time before the year 1) are refused.
"""

import datetime as dt
import decimal
import re
import uuid
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from seaweedq.json_reasons import of_field, reword, split_path
from seaweedq.rows.intake import MAX_US, MIN_US, Refusal
from seaweedq.segments.schema import is_time, is_uuid

UNKNOWN_FIELD = " is not a field of the schema"  # behind the field's name
_FLOAT32_MAX = 3.4028235677973366e38
_DECIMAL = re.compile(rb'("?)-?[0-9]{1,76}(\.[0-9]{1,76})?([eE][+-]?[0-9]{1,3})?\1')
_LONG_DECIMAL = re.compile(rb'("?)-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?\1')
_EXACT = decimal.Context(prec=200)  # more digits than a text may have
_ABOUT_FIELD = re.compile(r"^Object (missing required|contains unknown) field `(.*)`$", re.DOTALL)


def columns(texts: Sequence[Any], fields: pa.Schema) -> list[pa.Array]:
    """Returns one column for each field, from JSON texts.

    Raises msgspec.DecodeError, ValueError, OverflowError, RecursionError or pa.ArrowException if a value does not
    fit.
    """
    rows = _decoders(_Columns(fields))[1].decode(b"[%b]" % b",".join(texts))
    return [column([getattr(row, f"f{at}") for row in rows], field) for at, field in enumerate(fields)]


def columns_of_one(text: bytes, fields: pa.Schema) -> list[pa.Array]:
    """Returns the columns of one value. Raises Refusal, which names the field."""
    row = decode_value(text, fields)
    found = []
    for at, field in enumerate(fields):
        try:
            found.append(column([getattr(row, f"f{at}")], field))
        except (pa.ArrowException, ValueError, OverflowError) as error:
            raise Refusal(f"{field.name} is not valid: {error}") from None
    return found


def decode_value(text: bytes, fields: pa.Schema) -> Any:
    """Returns the row of one value, of which columns need not be able to hold every field. Costs a twentieth of
    `columns_of_one`. Raises Refusal, which names the field."""
    try:
        return _decoders(_Columns(fields))[0].decode(text)
    except RecursionError:
        raise Refusal("is nested too deeply") from None
    except msgspec.DecodeError as error:
        raise Refusal(_reason(str(error))) from None


def column(values: list[Any], field: pa.Field) -> pa.Array:
    """Returns a column of decoded values. Raises ValueError, OverflowError or pa.ArrowException for misfits."""
    if is_uuid(field):
        values = [None if value is None else str(value) for value in values]
    if is_time(field):
        values = [None if value is None else value.isoformat("microseconds") for value in values]
    if pa.types.is_decimal(field.type):
        values = [_decimal(value, field) for value in values]
    made = pa.array(values, field.type)
    if pa.types.is_timestamp(field.type) and field.type.tz:
        check_range(made)
    return made


def _decimal(raw: msgspec.Raw | None, field: pa.Field) -> decimal.Decimal | None:
    """Parses a decimal from JSON text. Decimal itself would accept `1_000`, white space and other scripts' digits."""
    text = bytes(raw) if raw is not None else b"null"
    if text == b"null" and field.nullable:
        return None
    shown = text[:50].decode(errors="replace")
    if not _DECIMAL.fullmatch(text):
        if _LONG_DECIMAL.fullmatch(text):
            raise ValueError(f"{shown} has more than 76 digits, or an exponent of more than 3 digits")
        raise ValueError(f"{shown} is not a decimal number")
    value, kind = decimal.Decimal(text.strip(b'"').decode()), field.type
    _, digits, exponent = value.normalize(_EXACT).as_tuple()
    assert isinstance(exponent, int)  # of a finite number
    if -exponent > kind.scale:
        raise ValueError(
            f"{shown} has too many digits after the decimal point: {_shown(kind)} allows at most {kind.scale}"
        )
    if value and len(digits) + exponent > kind.precision - kind.scale:
        whole = kind.precision - kind.scale
        raise ValueError(f"{shown} is too large: {_shown(kind)} allows at most {whole} digits before the decimal point")
    return value.quantize(decimal.Decimal((0, (1,), -kind.scale)), context=_EXACT)  # Arrow takes no exponent for zeros


def _shown(kind: pa.DataType) -> str:
    return f"decimal({kind.precision}, {kind.scale})"


def check_range(column: pa.Array) -> None:
    """Raises ValueError unless all times lie in the years 1 to 9999."""
    bounds = pc.min_max(column.cast(pa.int64()))
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if low is not None and not MIN_US <= low <= high <= MAX_US:
        raise ValueError("the time is outside the years 1 to 9999")


def unknown_field(fields: Mapping[str, Any]) -> str | None:
    """Returns the field that the first invalid message, or a column, has, and the schema has not, by the fields of an
    error; None if that is not why."""
    if not (errors := fields.get("errors")):
        return fields.get("field")
    reason = str(errors[0]["reason"])
    return reason.removesuffix(UNKNOWN_FIELD) if reason.endswith(UNKNOWN_FIELD) else None


def keys_of(values: Sequence[pa.Array], fields: pa.Schema, key_field: str) -> pa.Array:
    """Returns the column of a field as keys: text as it is, numbers and booleans as JSON, dates as ISO 8601."""
    return values[fields.get_field_index(key_field)].cast(pa.string())


def _reason(error: str) -> str:
    what, path = split_path(error)
    if about := _ABOUT_FIELD.match(what):
        return reword(what) if about[1].startswith("missing") else f"{about[2]}{UNKNOWN_FIELD}"
    return of_field(path, reword(what)) if path else reword(what)


class _Columns:
    """Columns as the key of a cache, by identity. pyarrow takes columns of text and of UUIDs for equal, and compares
    all fields of large schemas."""

    def __init__(self, fields: pa.Schema) -> None:
        self.fields = fields

    def __hash__(self) -> int:
        return id(self.fields)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Columns) and other.fields is self.fields


@lru_cache(1024)
def _decoders(columns: _Columns) -> tuple[msgspec.json.Decoder[Any], msgspec.json.Decoder[Any]]:
    """Returns the decoders of one value and of an array of values."""
    members: list[Any] = []
    fields = columns.fields
    for at, field in enumerate(fields):
        kind = _python_type(field)
        optional = kind if kind is msgspec.Raw else kind | None
        members.append((f"f{at}", optional, None) if field.nullable else (f"f{at}", kind))
    names = {f"f{at}": field.name for at, field in enumerate(fields)}
    row = msgspec.defstruct("Row", members, gc=False, forbid_unknown_fields=True, kw_only=True, rename=names)
    return msgspec.json.Decoder(row), msgspec.json.Decoder(list[row])  # type: ignore[valid-type]


def _python_type(field: pa.Field) -> Any:
    kind = field.type
    if is_uuid(field):
        return uuid.UUID
    if is_time(field):
        return Annotated[dt.time, msgspec.Meta(tz=False)]
    if pa.types.is_integer(kind):
        bound = 1 << kind.bit_width - 1
        return Annotated[int, msgspec.Meta(ge=-bound, le=bound - 1)]
    if pa.types.is_float32(kind):
        return Annotated[float, msgspec.Meta(gt=-_FLOAT32_MAX, lt=_FLOAT32_MAX)]
    if pa.types.is_timestamp(kind):
        return Annotated[dt.datetime, msgspec.Meta(tz=kind.tz is not None)]
    if pa.types.is_fixed_size_binary(kind):
        return Annotated[bytes, msgspec.Meta(min_length=kind.byte_width, max_length=kind.byte_width)]
    if pa.types.is_decimal(kind):
        return msgspec.Raw
    return {
        pa.bool_(): bool,
        pa.float64(): float,
        pa.string(): str,
        pa.binary(): bytes,
        pa.date32(): dt.date,
    }[kind]

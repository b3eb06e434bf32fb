"""Decodes Arrow IPC streams in request bodies: untrusted bytes become the rows of a layout, column by column.

The order of the checks matters. First come the bounds (`ipc_bounds`), then the schema, so that only plain types are
ever read. Then every batch is validated in full, and cast to the layout's types within a budget, since a dictionary or
a view can expand to far more bytes than it has. Only then are the values checked. No exception of Arrow's leaves this
module.

A cast is allowed if it loses nothing: from wider offsets, views and dictionaries of text, narrower numbers, and other
units of time (digits below a microsecond are cut). Any other type is refused before a row is read.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from seaweedq.errors import InvalidRequest, RequestTooLarge, UnreadableBody
from seaweedq.rows import json_values, typed_values
from seaweedq.rows.intake import (
    MAX_AHEAD_US,
    MAX_EXPIRES_S,
    MAX_INVALID,
    MAX_US,
    MIN_US,
    Intake,
    check_count,
    refuse,
    too_large,
)
from seaweedq.segments.ipc_bounds import check_bounds, is_plain_and_short
from seaweedq.segments.layout import OPTIONAL_FIELDS, TIMESTAMP_FIELD, Format, Layout, is_wider
from seaweedq.segments.rows import assemble, header_sizes, microseconds
from seaweedq.segments.schema import is_time, is_uuid

Cast = Callable[[pa.Array, int], pa.Array]
FILE_MAGIC = b"ARROW1"  # an Arrow file begins and ends with it, a stream does not
_KEY, _HEADERS, _EXPIRES = OPTIONAL_FIELDS[:3]
_QUEUE_FIELDS = {field.name: field for field in (TIMESTAMP_FIELD, _KEY, _HEADERS, _EXPIRES)}
_ARROW_ERRORS = (
    pa.ArrowException,
    ValueError,
    TypeError,
    LookupError,
    OverflowError,
    OSError,
    MemoryError,
    RecursionError,
)
_UUID = r"^[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$"
_TIME = r"^([01][0-9]|2[0-3])(:[0-5][0-9]){2}\.[0-9]{6}$"
_DAY_US = 86_400_000_000
_FIRST_DAY, _LAST_DAY = MIN_US // _DAY_US, MAX_US // _DAY_US


class InvalidRow(NamedTuple):
    """A row that a topic refuses: its number, from 0 on, the column at fault, and the reason. There is no column where
    all of them together are too much."""

    row: int
    column: str | None
    reason: str


Errors = list[InvalidRow]


def decode_arrow(body: bytes | pa.Buffer, intake: Intake) -> pa.RecordBatch:
    """Returns the rows of a stream: the layout's value columns, optional `_key`, `_timestamp`, `_headers`, `_expires`.

    Raises UnreadableBody, RequestTooLarge, InvalidRequest (a column does not fit), InvalidMessages, MessageTooLarge.
    """
    content = pa.py_buffer(body)
    if content[: len(FILE_MAGIC)].to_pybytes() == FILE_MAGIC:
        raise UnreadableBody("the body is an Arrow file: send an Arrow stream, as pyarrow.ipc.new_stream writes it")
    with _unreadable():
        check_bounds(content, intake.max_request_bytes)
    return _rows_of(*_read(content, intake), intake)


def decode_short_arrow(body: bytes | pa.Buffer, intake: Intake, most_rows: int) -> pa.RecordBatch | None:
    """Does the same as `decode_arrow` for a stream of at most so many rows that takes no more bytes once it is decoded,
    which costs a fraction of a millisecond; returns None for any other, and for one that cannot be read."""
    content = pa.py_buffer(body)
    if content.size > intake.max_request_bytes or not is_plain_and_short(content, most_rows):
        return None
    return _rows_of(*_read(content, intake), intake)


def check_columns(schema: pa.Schema, intake: Intake) -> None:
    """Raises InvalidRequest, which names the column, if a column does not fit."""
    _casts(schema, intake)


def decode_batch(batch: pa.RecordBatch, intake: Intake) -> pa.RecordBatch:
    """Does the same as `decode_arrow` for one batch of a file, none of whose values has been checked."""
    return _rows_of(_columns_of(batch, intake), batch.num_rows, intake)


def invalid_rows(batch: pa.RecordBatch, intake: Intake) -> list[InvalidRow]:
    """Returns the rows for which `decode_batch` would refuse the batch, in order, each with its first fault.

    Raises UnreadableBody, RequestTooLarge, InvalidRequest (a column does not fit, or there are no rows).
    """
    check_count(batch.num_rows)
    columns = _columns_of(batch, intake)
    values = _values(columns, batch.num_rows, intake.layout)
    oversized = [
        InvalidRow(int(row), column, f"over max_message_bytes={intake.max_message_bytes}")
        for _, column, sizes in _oversized(columns, values, intake)
        for row in np.flatnonzero(sizes > intake.max_message_bytes)
    ]
    return _first_of_each([*oversized, *_judged(columns, values, batch.num_rows, intake)[1]])


def _columns_of(batch: pa.RecordBatch, intake: Intake) -> dict[str, pa.Array]:
    """Returns the columns of a batch in the layout's types. Raises UnreadableBody, RequestTooLarge, InvalidRequest."""
    try:
        casts = _casts(batch.schema, intake)
        batch.validate(full=True)
    except _ARROW_ERRORS as error:
        raise UnreadableBody(f"the rows are not valid Arrow data: {_brief(error)}") from None
    return {name: _cast(name, casts[name], [batch.column(at)], intake) for at, name in enumerate(batch.schema.names)}


def _rows_of(columns: dict[str, pa.Array], count: int, intake: Intake) -> pa.RecordBatch:
    check_count(count)
    values = _values(columns, count, intake.layout)
    for what, _, sizes in _oversized(columns, values, intake):
        index = int(np.argmax(sizes > intake.max_message_bytes))
        raise too_large(what, int(sizes[index]), intake.max_message_bytes, index)
    (timestamp, key, headers, expires), errors = _judged(columns, values, count, intake)
    if errors:
        refuse([(row, reason) for row, _, reason in _first_of_each(errors)])
    return assemble(intake.layout, timestamp, key, headers, expires, values)


_Parts = tuple[pa.Array, pa.Array | None, pa.Array | None, pa.Array | None]


def _judged(columns: dict[str, pa.Array], values: list[pa.Array], count: int, intake: Intake) -> tuple[_Parts, Errors]:
    """Returns the columns beside the values (time, key, headers, expiry), and all faults of values."""
    key, headers = columns.get(_KEY.name), columns.get(_HEADERS.name)
    errors: Errors = []
    for field, column in zip(intake.layout.values, values, strict=True):
        errors += _value_errors(field, column, intake.layout)
    timestamp, expires = _times(columns, count, intake, errors)
    if headers is not None:
        errors += _rows(_without_value(headers), _HEADERS.name, "_headers: contains a null")
    if intake.key_field is not None and len(errors) < MAX_INVALID:
        key = _keys(key, values, intake, errors)
    return (timestamp, key, headers, expires), errors


def _values(columns: dict[str, pa.Array], count: int, layout: Layout) -> list[pa.Array]:
    return [columns[f.name] if f.name in columns else pa.nulls(count, f.type) for f in layout.values]


def _first_of_each(errors: Errors) -> Errors:
    """Returns the first fault of each row, in the order of the rows."""
    return sorted({error.row: error for error in reversed(errors)}.values())


def _read(body: pa.Buffer, intake: Intake) -> tuple[dict[str, pa.Array], int]:
    """Returns the columns of all batches in the layout's types, and the number of rows."""
    with _unreadable():
        reader = pa.ipc.open_stream(body)
        casts = _casts(reader.schema, intake)
        batches = list(reader)
        for batch in batches:
            batch.validate(full=True)
        names = reader.schema.names
    count = sum(batch.num_rows for batch in batches)
    check_count(count)
    return {
        name: _cast(name, casts[name], [b.column(at) for b in batches], intake) for at, name in enumerate(names)
    }, count


@contextmanager
def _unreadable() -> Iterator[None]:
    """Has an error of Arrow's say that the body cannot be read."""
    try:
        yield
    except _ARROW_ERRORS as error:
        raise UnreadableBody(f"the body is not a valid Arrow stream: {_brief(error)}") from None


def _casts(schema: pa.Schema, intake: Intake) -> dict[str, Cast]:
    """Returns the cast of each column by name. Raises InvalidRequest if a column does not fit."""
    wanted = {**_QUEUE_FIELDS, **{field.name: field for field in intake.layout.values}}
    casts: dict[str, Cast] = {}
    for field in schema:
        name = field.name
        if name == "_reference":
            raise _unfit(name, "the column '_reference' is not allowed: publish references as JSON or NDJSON")
        if name not in wanted:
            raise _unfit(name, f"the column {name[:100]!r} is not one of {', '.join(list(wanted)[:20])}")
        if name in casts:
            raise _unfit(name, f"the column {name[:100]!r} occurs twice")
        kind = wanted[name].type
        cast = _field_caster(field.type, wanted[name])
        if cast is None:
            raise _unfit(
                name, f"the column {name[:100]!r} is {str(field.type)[:200]}, which cannot be converted to {kind}"
            )
        casts[name] = cast
    for field in intake.layout.values:
        if field.name not in casts and (not field.nullable or intake.layout.format is not Format.TYPED):
            raise _unfit(field.name, f"the column {field.name[:100]!r} is missing")
    return casts


def _field_caster(given: pa.DataType, wanted: pa.Field) -> Cast | None:
    """Returns the cast for a field. Times of day become text; a UUID gets its one spelling, in lower case."""
    if is_time(wanted) and pa.types.is_time(given):
        return _time_text
    cast = _caster(given, wanted.type)
    if cast is None or not is_uuid(wanted):
        return cast
    return lambda column, budget: pc.ascii_lower(cast(column, budget))


def _cast(name: str, cast: Cast, chunks: list[pa.Array], intake: Intake) -> pa.Array:
    budget, made = intake.max_request_bytes, []
    try:
        for chunk in chunks:
            made.append(cast(chunk, budget))
            budget -= made[-1].nbytes
        column = made[0] if len(made) == 1 else pa.concat_arrays(made)
    except _Misfit:
        limit = intake.max_request_bytes
        raise RequestTooLarge(
            f"the column {name!r} needs more than {limit} bytes once its dictionary or views are expanded; send "
            "fewer rows per request, or import the rows as an uploaded file",
            limit_bytes=limit,
        ) from None
    except _ARROW_ERRORS as error:
        detail = f"the column {name[:100]!r} has a value that cannot be converted to the topic's type for this column"
        raise _unfit(name, f"{detail}: {_brief(error)}") from None
    return column


def _oversized(
    columns: dict[str, pa.Array], values: list[pa.Array], intake: Intake
) -> "Iterator[tuple[str, str | None, np.ndarray[Any, np.dtype[np.int64]]]]":
    """Yields the values, then keys and headers, if one of the messages is over the limit: their name, the column if
    there is one, and the sizes of all messages."""
    key, headers = columns.get(_KEY.name), columns.get(_HEADERS.name)
    if headers is None and sum(c.nbytes for c in (*values, key) if c is not None) <= intake.max_message_bytes:
        return  # all of them together are no larger
    named = zip(intake.layout.values, values, strict=True)
    texts = {f.name: _sizes(c) for f, c in named if pa.types.is_string(c.type) or pa.types.is_binary(c.type)}
    beside = {_KEY.name: _sizes(key)} if key is not None else {}
    if headers is not None:
        beside[_HEADERS.name] = header_sizes(headers)
    for what, sizes in (("the value", texts), ("key and headers", beside)):
        if sizes and (total := np.sum(list(sizes.values()), axis=0)).max() > intake.max_message_bytes:
            yield what, next(iter(sizes)) if len(sizes) == 1 else None, total


def _sizes(column: pa.Array) -> "np.ndarray[Any, np.dtype[np.int64]]":
    sizes = pc.binary_length(column)
    return (sizes.fill_null(0) if sizes.null_count else sizes).to_numpy().astype(np.int64)  # type: ignore[no-any-return]


def _value_errors(field: pa.Field, column: pa.Array, layout: Layout) -> Errors:
    name = field.name
    required = layout.format is not Format.TYPED or not field.nullable
    nulls = _rows(column.is_null(), name, f"{name} is null") if required and column.null_count else []
    if layout.format is Format.JSON:
        texts = column.fill_null("null") if nulls else column
        rows = json_values.doubtful(texts) if json_values.are_json(texts) else range(len(texts))
        found = ((row, why) for row in rows if (why := json_values.blemish(texts[row].as_buffer())))
        return nulls + [InvalidRow(row, name, why) for row, why in islice(found, MAX_INVALID)]
    if layout.format is Format.BYTES:
        return nulls
    kind = field.type
    if is_uuid(field):
        return nulls + _rows(pc.invert(pc.match_substring_regex(column, _UUID)), name, f"{name} is not a UUID")
    if is_time(field):
        why = f"{name} is not a time of the form HH:MM:SS.ffffff"
        return nulls + _rows(pc.invert(pc.match_substring_regex(column, _TIME)), name, why)
    if pa.types.is_timestamp(kind):
        return nulls + _outside(name, column.cast(pa.int64()), MIN_US, MAX_US)
    if pa.types.is_date(kind):
        return nulls + _outside(name, column.cast(pa.int32()), _FIRST_DAY, _LAST_DAY)
    return nulls


def _outside(name: str, column: pa.Array, low: int, high: int) -> Errors:
    return _rows(pc.or_(pc.less(column, low), pc.greater(column, high)), name, f"{name} is out of range")


def _times(
    columns: dict[str, pa.Array], count: int, intake: Intake, errors: Errors
) -> tuple[pa.Array, pa.Array | None]:
    """Returns `_timestamp`, with the broker's time if there is none, and `_expires`."""
    expires = columns.get(_EXPIRES.name)
    if expires is not None:
        errors += _outside(
            "_expires", expires.cast(pa.int64()), MIN_US, intake.judged_from_us + MAX_EXPIRES_S * 1_000_000
        )
    name = TIMESTAMP_FIELD.name
    if name not in columns:
        return microseconds(np.full(count, intake.now_us)), expires
    us = columns[name].cast(pa.int64())
    ahead = intake.judged_from_us + MAX_AHEAD_US
    errors += _rows(pc.greater(us, ahead), name, "_timestamp is more than one hour ahead of the cluster's time")
    errors += _rows(pc.less(us, MIN_US), name, "_timestamp is before the year 1")
    return us.fill_null(intake.now_us).cast(TIMESTAMP_FIELD.type), expires


def _keys(explicit: pa.Array | None, values: list[pa.Array], intake: Intake, errors: Errors) -> pa.Array:
    """Returns the keys from the key field, and from `_key` if the field has none."""
    field = intake.key_field
    assert field is not None
    if intake.layout.format is Format.TYPED:
        found = typed_values.keys_of(values, intake.layout.values, field)
    else:
        texts = values[0]
        if errors:  # an empty object, which has no key, in place of each row that has an error
            bad = np.zeros(len(texts), bool)
            bad[[error.row for error in errors]] = True
            texts = pc.if_else(pa.array(bad), "{}", texts)
        found = _text_keys(texts, field, errors)
    if explicit is None:
        return found
    errors += _rows(pc.not_equal(explicit, found), _KEY.name, f"_key differs from the field {field!r}")
    return pc.coalesce(explicit, found)


def _text_keys(column: pa.Array, field: str, errors: Errors) -> pa.Array:
    texts = [text.encode() for text in column.to_pylist()]
    try:
        return pa.array(json_values.keys_in(texts, field), pa.string())
    except ValueError:
        found: list[str | None] = []
        for row, text in enumerate(texts):
            try:
                found.append(json_values.key_in(text.strip(), field))
            except ValueError as error:
                errors.append(InvalidRow(row, "value", f"{field} is not valid: {error}"))
                found.append(None)
        return pa.array(found, pa.string())


def _without_value(headers: pa.Array) -> pa.Array:
    """Returns a mask of the rows whose headers contain a null."""
    nulls = pc.or_(headers.keys.is_null(), headers.items.is_null()).to_numpy(zero_copy_only=False)
    before = np.concatenate([[0], np.cumsum(nulls)])
    return pa.array(np.diff(before[headers.offsets.to_numpy()]) > 0)


def _rows(mask: pa.Array, column: str, reason: str) -> Errors:
    found = np.flatnonzero(mask.fill_null(False).to_numpy(zero_copy_only=False))
    return [InvalidRow(int(row), column, reason) for row in found]


def _unfit(name: str, detail: str) -> InvalidRequest:
    return InvalidRequest(detail, field=name[:100], reason=detail)


def _brief(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


class _Misfit(Exception):
    """Raised if a column would take more bytes than the budget allows."""


def _caster(given: pa.DataType, wanted: pa.DataType) -> Cast | None:
    """Returns the cast from one type to another within a budget of bytes, None if there is none.

    A cast raises _Misfit over its budget, and Arrow's own errors if a value does not fit.
    """
    if types.is_dictionary(given):
        inner = _caster(given.value_type, wanted) if _is_text(given.value_type) and _is_text(wanted) else None
        return None if inner is None else _from_dictionary(wanted)
    if _is_text(wanted):
        if given == wanted:
            return _same
        taken = _is_string(given) or (types.is_binary(wanted) and _is_text(given))
        return _text(wanted) if taken else None
    if not (given == wanted or _widens(given, wanted)):
        return None
    return lambda column, _: column.cast(options=pc.CastOptions(wanted, allow_time_truncate=True))


def _time_text(column: pa.Array, _: int) -> pa.Array:
    """Casts times of day to text, to the microsecond."""
    return column.cast(options=pc.CastOptions(pa.time64("us"), allow_time_truncate=True)).cast(pa.string())


def _is_string(kind: pa.DataType) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(_is_string(kind) or types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


def _is_view(kind: pa.DataType) -> bool:
    return bool(types.is_string_view(kind) or types.is_binary_view(kind))


def _widens(given: pa.DataType, wanted: pa.DataType) -> bool:
    if types.is_map(wanted):
        return types.is_map(given) and all(
            types.is_string(part) or types.is_large_string(part) for part in (given.key_type, given.item_type)
        )
    if types.is_decimal(wanted):
        return is_wider(wanted, given)
    if types.is_signed_integer(wanted):
        return bool(types.is_integer(given) and given.bit_width + types.is_unsigned_integer(given) <= wanted.bit_width)
    if types.is_floating(wanted):
        return bool(types.is_floating(given) and given.bit_width <= wanted.bit_width)
    if types.is_timestamp(wanted):
        return bool(types.is_timestamp(given) and (given.tz is None) == (wanted.tz is None))
    return False


def _same(column: pa.Array, budget: int) -> pa.Array:
    _spend(column.nbytes, budget)
    return column


def _text(wanted: pa.DataType) -> Cast:
    def cast(column: pa.Array, budget: int) -> pa.Array:
        if _is_view(column.type):
            column = _clean(column)
        _spend(pc.sum(_lengths(column)).as_py(), budget)
        return column.cast(wanted)

    return cast


def _clean(column: pa.Array) -> pa.Array:
    """Returns a column of views with zeros for nulls: nothing validates the views of nulls, but Arrow's cast follows
    them."""
    validity, views, *data = column.buffers()
    words = np.frombuffer(views, np.int64, 2 * len(column), 16 * column.offset).reshape(-1, 2).copy()
    words[column.is_null().to_numpy(zero_copy_only=False)] = 0
    nulls = pc.invert(column.is_null()).buffers()[1] if validity else None
    return pa.Array.from_buffers(column.type, len(column), [nulls, pa.py_buffer(words), *data])


def _lengths(column: pa.Array) -> pa.Array:
    """Returns the bytes of each row. A column of views must have no offset; each view begins with its length."""
    if _is_view(column.type):
        return pa.array(np.frombuffer(column.buffers()[1], np.int32)[::4][: len(column)].astype(np.int64))
    return pc.binary_length(column).cast(pa.int64())


def _from_dictionary(wanted: pa.DataType) -> Cast:
    def cast(column: pa.DictionaryArray, budget: int) -> pa.Array:
        plain = _caster(column.dictionary.type, wanted)
        assert plain is not None
        dictionary = plain(column.dictionary, budget)
        _spend(pc.sum(pc.take(_lengths(dictionary), column.indices)).as_py(), budget)
        return pc.take(dictionary, column.indices)

    return cast


def _spend(size: int | None, budget: int) -> None:
    if (size or 0) > budget:
        raise _Misfit

"""Casts columns of a request to the types of a layout.

A cast is allowed where it loses nothing: from wider offsets, views and dictionaries of text, narrower numbers, and
other units of time (digits below a microsecond are cut). Any other type is refused before a row is read.
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

Cast = Callable[[pa.Array, int], pa.Array]


class Misfit(Exception):
    """Raised where a column would take more bytes than the budget allows."""


def caster(given: pa.DataType, wanted: pa.DataType) -> Cast | None:
    """Returns the cast from one type to another within a budget of bytes, None where there is none.

    A cast raises Misfit over its budget, and Arrow's own errors where a value does not fit.
    """
    if types.is_dictionary(given):
        inner = caster(given.value_type, wanted) if _is_text(given.value_type) and _is_text(wanted) else None
        return None if inner is None else _from_dictionary(wanted)
    if _is_text(wanted):
        if given == wanted:
            return _same
        taken = _is_string(given) or (types.is_binary(wanted) and _is_text(given))
        return _text(wanted) if taken else None
    if not (given == wanted or _widens(given, wanted)):
        return None
    return lambda column, _: column.cast(options=pc.CastOptions(wanted, allow_time_truncate=True))


def time_text(column: pa.Array, _: int) -> pa.Array:
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
        plain = caster(column.dictionary.type, wanted)
        assert plain is not None
        dictionary = plain(column.dictionary, budget)
        _spend(pc.sum(pc.take(_lengths(dictionary), column.indices)).as_py(), budget)
        return pc.take(dictionary, column.indices)

    return cast


def _spend(size: int | None, budget: int) -> None:
    if (size or 0) > budget:
        raise Misfit

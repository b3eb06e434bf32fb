"""How rows are built from single messages or loose columns, whose values have been checked: nothing here refuses a
message. Apart from `layout`, since the client and `seaweedq sql` start without numpy."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seaweedq.segments.layout import HEADERS, REFERENCE, TIMESTAMP, Format, Layout, mask_of

FEW = 64  # values up to which Python is faster than numpy has begun


@dataclass(frozen=True, slots=True)
class Reference:
    """A payload in the store: its URI, size in bytes, content type, and SHA-256 in hex."""

    uri: str
    size: int
    content_type: str
    sha256: str


class Single(msgspec.Struct):
    """One checked message. `value` is JSON text, or the bytes themselves; times are in microseconds since the epoch.

    A message with a `reference` has no value. Until the upload was looked up, `reference` is the upload's id.
    """

    key: str | None
    value: bytes | None
    headers: dict[str, str] | None
    timestamp_us: int
    expires_us: int | None
    reference: Reference | str | None = None


def rows_of_singles(singles: Sequence[Single], layout: Layout) -> pa.RecordBatch:
    """Builds the rows of one or more messages of a json or bytes topic, in order."""
    assert layout.format is not Format.TYPED
    kind = layout.values.field(0).type
    values = [single.value for single in singles]
    references = [single.reference for single in singles]
    if not any_there(references):
        return rows_with_values(singles, [binaries(values, kind)], layout)
    column = pa.array(values, pa.binary()).cast(kind)
    return rows_with_values(singles, [column], layout, references_column(references))


def rows_with_values(
    singles: Sequence[Single], values: Sequence[pa.Array], layout: Layout, references: pa.Array | None = None
) -> pa.RecordBatch:
    """Builds the rows of one or more messages of any topic, with the value columns already built, and the references
    if there are any."""
    return assemble(
        layout,
        microseconds(np.array([single.timestamp_us for single in singles], np.int64)),
        optional([single.key for single in singles], pa.string()),
        headers_column([single.headers for single in singles]),
        optional([single.expires_us for single in singles], TIMESTAMP),
        values,
        references,
    )


def assemble(
    layout: Layout,
    timestamp: pa.Array,
    key: pa.Array | None,
    headers: pa.Array | None,
    expires: pa.Array | None,
    values: Sequence[pa.Array],
    reference: pa.Array | None = None,
) -> pa.RecordBatch:
    """Assembles a record batch of `layout.rows(mask)`: optional columns only if they have a value that is not null."""
    count = len(timestamp)
    columns, mask = [timestamp], 0
    for bit, column in enumerate((key, headers, expires, reference)):
        if column is not None and column.null_count < count:
            columns.append(column)
            mask |= 1 << bit
    return pa.RecordBatch.from_arrays([*columns, *values], schema=layout.rows(mask))


def together(parts: Sequence[pa.RecordBatch], layout: Layout) -> pa.RecordBatch:
    """Puts rows of a layout, or of earlier versions, together, in order; an optional column of some parts is null in
    the others. Raises NotReady as `Layout.raised`."""
    parts = [layout.raised(part) for part in parts]
    if len(parts) == 1:
        return parts[0]
    mask = 0
    for part in parts:
        mask |= mask_of(part)
    schema = layout.rows(mask)
    return pa.concat_batches([_filled(part, schema) for part in parts])


def _filled(part: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if part.num_columns == len(schema):
        return part
    there = set(part.schema.names)
    columns = [part.column(f.name) if f.name in there else pa.nulls(part.num_rows, f.type) for f in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def binaries(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Builds a string or binary column from bytes-like objects, without checking the bytes."""
    ends: Any
    if len(values) <= FEW:
        ends = array("i", accumulate(map(len, values), initial=0))
    else:
        ends = np.zeros(len(values) + 1, np.int32)
        np.cumsum(np.fromiter(map(len, values), np.int32, len(values)), out=ends[1:])
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))])


def microseconds(values: "np.ndarray[Any, np.dtype[np.int64]]") -> pa.Array:
    """Returns microseconds since the epoch as a timestamp column, without a copy."""
    return pa.Array.from_buffers(TIMESTAMP, len(values), [None, pa.py_buffer(values)])


def newest_us(rows: pa.RecordBatch) -> int:
    """Returns the newest `_timestamp` of one or more rows, in microseconds since the epoch."""
    times = rows.column(0)
    return int(np.frombuffer(times.buffers()[1], np.int64, len(times), 8 * times.offset).max())


def optional(values: Sequence[Any], kind: pa.DataType) -> pa.Array | None:
    """Returns a column, or None if all values are None."""
    return pa.array(values, kind) if values.count(None) < len(values) else None


def headers_column(headers: Sequence[dict[str, str] | None]) -> pa.Array | None:
    """Returns the `_headers` column, or None if no message has headers. Empty headers become null."""
    if headers.count(None) == len(headers):
        return None
    return pa.array([list(each.items()) if each else None for each in headers], HEADERS)


def references_column(references: Sequence[Reference | str | None]) -> pa.Array:
    """Returns the `_reference` column. For an upload that was not looked up yet, `uri` is its id and the other fields
    are null."""
    return pa.array([_fields(each) for each in references], REFERENCE)


def _fields(reference: Reference | str | None) -> dict[str, Any] | None:
    if reference is None:
        return None
    if isinstance(reference, str):
        return {"uri": reference}
    return {
        "uri": reference.uri,
        "size": reference.size,
        "content_type": reference.content_type,
        "sha256": reference.sha256,
    }


def header_sizes(headers: pa.Array) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Returns the bytes of each row's headers, names and values together."""
    each = [pc.binary_length(part).fill_null(0).to_numpy() for part in (headers.keys, headers.items)]
    before = np.concatenate([[0], np.cumsum(np.add(*each), dtype=np.int64)])
    sizes: np.ndarray[Any, np.dtype[np.int64]] = np.diff(before[headers.offsets.to_numpy()])
    return sizes


def any_there(values: Sequence[Any]) -> bool:
    """Tells whether some value is not None."""
    return values.count(None) < len(values)

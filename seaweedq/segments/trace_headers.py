"""The header `traceparent` of rows: how a request's is added to those without one, and the contexts of rows.

It adds SIZE bytes to a message. A message, or a request, that would be over its bound with them stays as it is.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seaweedq.segments.layout import HEADERS, OPTIONAL_FIELDS, Layout, mask_of
from seaweedq.segments.rows import Single, header_sizes
from seaweedq.traces import LINKS, TRACEPARENT, Traces

LENGTH = 55  # of the header's value
SIZE = len(TRACEPARENT) + LENGTH
FEW, FEW_BYTES = 300, 64 * 1024  # rows, for which Arrow's kernels cost more than they do
LOOKED = 1_000  # rows in which contexts are looked for: the group commit does it on the event loop
_NAME = "_headers"
_BIT = 1 << [field.name for field in OPTIONAL_FIELDS].index(_NAME)


def add_to_single(message: Single, traceparent: str, max_message_bytes: int) -> None:
    """Adds the header to a message, unless it has one."""
    headers = message.headers or {}
    beside = sum(len(text.encode()) for text in (message.key or "", *headers, *headers.values()))
    if TRACEPARENT not in headers and beside + SIZE <= max_message_bytes:
        message.headers = {**headers, TRACEPARENT: traceparent}


def add_to_rows(
    rows: pa.RecordBatch, layout: Layout, traceparent: str, max_message_bytes: int, max_request_bytes: int
) -> pa.RecordBatch:
    """Returns rows of a layout with the header in each message that has none."""
    count, mask = rows.num_rows, mask_of(rows)
    if rows.nbytes + SIZE * count > max_request_bytes:
        return rows
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    headers = columns.get(_NAME)
    if headers is None:
        headers = pa.nulls(count, HEADERS)
    sizes = header_sizes(headers)
    if "_key" in columns:
        sizes = sizes + pc.binary_length(columns["_key"]).fill_null(0).to_numpy()
    keys, items, ends = _flat(headers)
    there = np.concatenate([[0], np.cumsum(pc.equal(keys, TRACEPARENT).to_numpy(zero_copy_only=False))])
    lacking = (np.diff(there[ends]) == 0) & (sizes + SIZE <= max_message_bytes)
    # One entry more behind those of each row that lacks it: the entry behind all others.
    taken = pa.array(np.insert(np.arange(len(keys)), ends[1:][lacking], len(keys)))
    after = (ends + np.concatenate([[0], np.cumsum(lacking)])).astype(np.int32)
    columns[_NAME] = pa.MapArray.from_arrays(
        pa.array(after),
        pa.concat_arrays([keys, pa.array([TRACEPARENT])]).take(taken),
        pa.concat_arrays([items, pa.array([traceparent])]).take(taken),
        mask=pa.array(np.diff(after) == 0),
    )
    schema = layout.rows(mask | _BIT)
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def traceparents(rows: pa.RecordBatch) -> tuple[str, ...]:
    """Returns the first LINKS different values of the header in the first LOOKED rows, which may be any text of its
    length."""
    at = rows.schema.get_field_index(_NAME)
    if at < 0:
        return ()
    headers = rows.column(at).slice(0, LOOKED)
    if len(headers) <= FEW and headers.nbytes <= FEW_BYTES:
        pairs = chain.from_iterable(filter(None, headers.to_pylist()))
        few = dict.fromkeys(text for name, text in pairs if name == TRACEPARENT and len(text) == LENGTH)
        return tuple(islice(few, LINKS))
    keys, items, _ = _flat(headers)
    found = pc.and_(pc.equal(keys, TRACEPARENT), pc.equal(pc.binary_length(items), LENGTH))
    return tuple(items.filter(found).unique().slice(0, LINKS).to_pylist())


def note_delivery(traces: Traces, topic: str, rows: Sequence[pa.RecordBatch], begun_us: int, **about: Any) -> None:
    """Makes the span of a delivery of these rows, which began then and ends now."""
    contexts, count = contexts_of(rows), sum(one.num_rows for one in rows)
    with traces.span("deliver", topic, contexts, begun_us=begun_us, count=count, **about):
        pass


def contexts_of(rows: Iterable[pa.RecordBatch]) -> Iterator[str]:
    """Yields the values of the header in all of them, as `traceparents` has those of each."""
    return (text for one in rows for text in traceparents(one))


def _flat(headers: pa.MapArray) -> "tuple[pa.Array, pa.Array, np.ndarray[tuple[int], np.dtype[np.int64]]]":
    """Returns names and values of the headers of these rows alone, and where those of each row begin and end."""
    offsets = headers.offsets.to_numpy().astype(np.int64)
    first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    return headers.keys.slice(first, count), headers.items.slice(first, count), offsets - first

"""Cuts tables by the keys of their rows, and into Arrow streams that fit into requests."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seaweedq.client.core.batching import END_OF_STREAM
from seaweedq.client.core.segment_map import Keys
from seaweedq.segments import row_hashes


def slices(table: pa.Table | pa.RecordBatch, limit_bytes: int) -> Iterator[pa.Table]:
    """Yields a table's rows, uncopied, in slices whose Arrow streams are on average below `limit_bytes`."""
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    rows = max(1, table.num_rows * (limit_bytes * 15 // 16) // max(1, table.nbytes))
    for start in range(0, table.num_rows, rows):
        yield table.slice(start, rows)


def streams(table: pa.Table | pa.RecordBatch, limit_bytes: int) -> Iterator[tuple[bytes, int]]:
    """Yields a table as Arrow streams with their numbers of rows, each at most `limit_bytes` long.

    Cuts by rows, as measured. A single row that is larger is sent alone, and the broker refuses it.
    """
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    rows_per_stream = max(1, table.num_rows * limit_bytes // max(1, table.nbytes))
    start = 0
    while start < table.num_rows:
        rows = table.slice(start, rows_per_stream)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        stream = bytes(sink.getvalue())
        if len(stream) > limit_bytes and rows.num_rows > 1:
            rows_per_stream = max(1, min(rows.num_rows - 1, rows.num_rows * limit_bytes // len(stream)))
            continue
        yield stream, rows.num_rows
        start += rows.num_rows


def head_of(stream: bytes, schema: pa.Schema) -> bytes:
    """Returns the beginning of a stream, which states its schema; empty if such streams cannot be joined."""
    head = bytes(schema.serialize())
    plain = not any(pa.types.is_dictionary(field.type) for field in schema)
    return head if plain and stream.startswith(head) and stream.endswith(END_OF_STREAM) else b""


def cut(
    table: pa.Table | pa.RecordBatch, keys: Keys, bounds: Sequence[int], targets: Sequence[int], n: int
) -> list[tuple[int, pa.RecordBatch]]:
    """Groups a table's rows by target, of `n`: keys from `bounds[i]` on go to `targets[i]`, rows without a key to
    target 0.

    The rows of a target stay in order. Keys that cannot be read count as missing.
    """
    batches = table.combine_chunks().to_batches() if isinstance(table, pa.Table) else [table]
    lows, where = np.array(bounds, np.int32), np.array(targets, np.min_scalar_type(n))
    groups = []
    for rows in batches:
        try:
            found = keys_of(rows, keys)
        except pa.ArrowException:
            found = None
        if found is None:
            groups.append((0, rows))
            continue
        at = where[row_hashes.route(row_hashes.hash_keys(found), lows)]
        if found.null_count:
            at[found.is_null().to_numpy(zero_copy_only=False)] = 0
        groups += [(target, group) for target, group, _ in row_hashes.cut(rows, at, n)]
    return groups


def keys_of(rows: pa.RecordBatch, keys: Keys) -> pa.Array | None:
    """Returns the keys of a table's rows, as strings; None if no row has one. Raises pa.ArrowException."""
    stated = rows.column("_key").cast(pa.string()) if "_key" in rows.schema.names else None
    if keys.rule.field is None or (stated is not None and not stated.null_count):
        return stated
    if not keys.rule.typed:
        found = pa.array([keys.key_of_value(text) for text in rows.column("value").to_pylist()], pa.string())
    elif keys.rule.field in rows.schema.names:
        found = rows.column(keys.rule.field).cast(pa.string())
    else:
        found = pa.nulls(len(rows), pa.string())
    return found if stated is None else pc.coalesce(stated, found)

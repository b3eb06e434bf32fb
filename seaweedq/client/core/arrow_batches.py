"""Tables cut by the keys of their rows, and into Arrow streams that fit into requests."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from seaweedq.client.core.batching import END_OF_STREAM
from seaweedq.client.core.key_extraction import Keys
from seaweedq.segments import keyhash


def slices(table: pa.Table | pa.RecordBatch, limit_bytes: int) -> Iterator[pa.Table]:
    """A table's rows, uncopied, in slices whose Arrow streams are on average below `limit_bytes`."""
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    rows = max(1, table.num_rows * (limit_bytes * 15 // 16) // max(1, table.nbytes))
    for start in range(0, table.num_rows, rows):
        yield table.slice(start, rows)


def streams(table: pa.Table | pa.RecordBatch, limit_bytes: int) -> Iterator[tuple[bytes, int]]:
    """A table as Arrow streams with their numbers of rows, each at most `limit_bytes` long.

    Cut by rows, as measured; a single row that is larger goes alone, and is the broker's to refuse.
    """
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    rows_a_piece = max(1, table.num_rows * limit_bytes // max(1, table.nbytes))
    start = 0
    while start < table.num_rows:
        piece = table.slice(start, rows_a_piece)
        stream = _stream(piece)
        if len(stream) > limit_bytes and piece.num_rows > 1:
            rows_a_piece = max(1, min(piece.num_rows - 1, piece.num_rows * limit_bytes // len(stream)))
            continue
        yield stream, piece.num_rows
        start += piece.num_rows


def head_of(stream: bytes, schema: pa.Schema) -> bytes:
    """The beginning of a stream that says its schema; empty where streams of it cannot be joined."""
    head = bytes(schema.serialize())
    plain = not any(pa.types.is_dictionary(field.type) for field in schema)
    return head if plain and stream.startswith(head) and stream.endswith(END_OF_STREAM) else b""


def cut(
    table: pa.Table | pa.RecordBatch, keys: Keys, bounds: Sequence[int], places: Sequence[int], n: int
) -> list[tuple[int, pa.RecordBatch]]:
    """A table's rows by place, of `n`: `places[i]` has the keys from `bounds[i]` on, place 0 those without one.

    The rows of a place stay in order. Keys that cannot be read count as none.
    """
    batches = table.combine_chunks().to_batches() if isinstance(table, pa.Table) else [table]
    lows, where = np.array(bounds, np.int32), np.array(places, np.min_scalar_type(n))
    parts = []
    for rows in batches:
        try:
            found = keys.of_rows(rows)
        except pa.ArrowException:
            found = None
        if found is None:
            parts.append((0, rows))
            continue
        at = where[keyhash.route(keyhash.hash_keys(found), lows)]
        if found.null_count:
            at[found.is_null().to_numpy(zero_copy_only=False)] = 0
        parts += [(place, part) for place, part, _ in keyhash.cut(rows, at, n)]
    return parts


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())

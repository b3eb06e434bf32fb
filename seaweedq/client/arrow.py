"""Tables cut into Arrow streams that fit into requests."""

from collections.abc import Iterator

import pyarrow as pa


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


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())

"""The messages that benchmarks publish, prepared beforehand."""

import os
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from benchmarks.http import ARROW, NDJSON, request

BATCH = 10_000
VALUE_BYTES = 100


def arrow_batches(count: int, rows: int = BATCH) -> Iterator[pa.RecordBatch]:
    """Batches of so many rows: a key of its own and VALUE_BYTES random bytes each."""
    ends = pa.py_buffer(np.arange(0, (rows + 1) * VALUE_BYTES, VALUE_BYTES, dtype=np.int32))
    for n in range(count):
        keys = pa.array([f"key-{n * rows + row:08d}" for row in range(rows)])
        values = pa.Array.from_buffers(pa.binary(), rows, [None, ends, pa.py_buffer(os.urandom(rows * VALUE_BYTES))])
        yield pa.RecordBatch.from_arrays([keys, values], names=["_key", "value"])


def arrow_request(topic: str, batch: pa.RecordBatch) -> bytes:
    """A publish of one batch."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return request(f"/v1/topics/{topic}/messages", sink.getvalue().to_pybytes(), ARROW)


def ndjson_bodies(count: int) -> Iterator[bytes]:
    """Bodies of BATCH lines of about VALUE_BYTES bytes, each with a key of its own."""
    for n in range(count):
        noise = os.urandom(BATCH * 16).hex()
        rows = range(n * BATCH, (n + 1) * BATCH)
        yield b"".join(
            b'{"key":"key-%08d","value":{"n":%d,"noise":"%b"}}\n' % (row, row, noise[at * 32 : at * 32 + 32].encode())
            for at, row in enumerate(rows)
        )


def ndjson_request(topic: str, body: bytes) -> bytes:
    """A publish of lines."""
    return request(f"/v1/topics/{topic}/messages", body, NDJSON)

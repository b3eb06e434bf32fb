"""Pulled messages as an Arrow stream: the columns of the topic's files, and `segment`, `_offset`, `_attempt`.

The name of the lease is a header, which is left out where there are no messages. Columns go into the stream as they
were read, never row by row; neighbours of one segment and schema are one batch.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from seaweedq.api.asgi.accepted import accepts, names
from seaweedq.api.asgi.http import Answer, Scope, header
from seaweedq.broker.read.segment_reader import Readable
from seaweedq.broker.subscriptions.pull_reads import Delivered
from seaweedq.broker.subscriptions.pulling import Leased
from seaweedq.codec.bodies import ARROW, JSON
from seaweedq.errors import NotAcceptable
from seaweedq.segments.layout import PARTITION_COLUMN, Layout

SPARE_BYTES = 256  # for the mark of a stream's end
SHOWN = 100  # characters of a value that an error shows
SEGMENT_FIELD = pa.field(PARTITION_COLUMN, pa.int32(), nullable=False)
ATTEMPT_FIELD = pa.field("_attempt", pa.int32(), nullable=False)
Group: TypeAlias = tuple[Readable, pa.Array, pa.Array, pa.RecordBatch]


def wants_arrow(scope: Scope) -> bool:
    """Tells whether a client that pulls wants Arrow, rather than JSON. Raises NotAcceptable where it takes neither."""
    accepted = header(scope, b"accept")
    if accepted is None or accepted == "*/*":
        return False
    if names(scope, ARROW):
        return True
    if not accepts(scope, JSON):
        raise NotAcceptable(
            f"a pull is answered as {JSON} or {ARROW}; the request accepts {accepted[:SHOWN]!r}",
            supported=[JSON, ARROW],
        )
    return False


def together(found: Sequence[Delivered]) -> Iterator[Group]:
    """Yields segment, offsets, attempts and rows, neighbours of one segment and schema put together: texts take 0.2 ms
    a batch, however small that is."""
    for _, group in groupby(found, lambda one: (one.segment.id, one.rows.schema)):
        same = list(group)
        numbers = pa.array(np.concatenate([one.offsets for one in same]))
        attempts = pa.array(np.concatenate([one.attempts for one in same]))
        rows = same[0].rows if len(same) == 1 else pa.concat_batches([one.rows for one in same])
        yield same[0].segment, numbers, attempts, rows


def arrow_answer(leased: Leased, layout: Layout) -> Answer:
    """Returns the answer to a pull as an Arrow stream."""
    headers = {"content-type": ARROW} | ({"lease": leased.name} if leased.name else {})
    return Answer(200, _stream(together(leased.messages), layout), headers)


def _stream(groups: Iterable[Group], layout: Layout) -> memoryview:
    schema = pa.schema([SEGMENT_FIELD, *layout.table, ATTEMPT_FIELD])
    batches: list[pa.RecordBatch] = []
    for segment, numbers, attempts, rows in groups:
        count, complete = rows.num_rows, layout.complete(rows, 0)
        numbered = [pa.array(np.full(count, segment.id, np.int32)), numbers, *complete.columns[1:]]
        batches.append(pa.RecordBatch.from_arrays([*numbered, attempts.cast(pa.int32())], schema=schema))
    size = schema.serialize().size + sum(map(pa.ipc.get_record_batch_size, batches))
    buffer = pa.allocate_buffer(size + SPARE_BYTES)  # one that grows is copied several times
    with pa.FixedSizeBufferWriter(buffer) as sink:
        with pa.ipc.new_stream(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        return memoryview(buffer)[: sink.tell()]

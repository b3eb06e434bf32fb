"""Rows of one segment as Arrow, wherever they are: in files, or at the segment's owner alone. No I/O."""

import pyarrow as pa

from seaweedq.client.core.calls import Expired, fetch_request
from seaweedq.client.core.effects import ARROW, Steps
from seaweedq.client.core.retry import Patience
from seaweedq.errors import ClientError

FETCH_ROWS = 10_000
SEGMENT = pa.field("segment", pa.int32())


def fetch_rows(
    topic: str, segment: int, start: int, end: int, patience: Patience, expired: Expired
) -> Steps[tuple[list[pa.RecordBatch], int]]:
    """Returns some rows of [start, end), with the column `segment` at the end, and the offset after them.

    Waits for an owner as `patience` allows. Raises BelowRetention if the first is gone.
    """
    request = fetch_request(topic, segment, start, min(FETCH_ROWS, end - start), accept=ARROW, expired=expired)
    reply = yield from patience.send(request)
    rows = pa.ipc.open_stream(reply.body).read_all().combine_chunks()
    next_offset = int(reply.headers["next-offset"])
    if next_offset <= start:
        raise ClientError(
            f"the broker returned no rows of segment {segment} from offset {start} on, but its end is {end}",
            segment=segment,
            offset=start,
        )
    batches = rows.to_batches()
    if SEGMENT.name in rows.schema.names:
        return batches, next_offset
    number = pa.scalar(segment, SEGMENT.type)
    return [batch.append_column(SEGMENT, pa.repeat(number, batch.num_rows)) for batch in batches], next_offset

"""Checks rows before they are uploaded, as brokers check them when they import the file, and with the same reasons.

What a broker knows of a topic comes from its answer of `GET /v1/topics/{topic}`. Brokers check again: their limits and
their clocks decide.
"""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from seaweedq.errors import RequestTooLarge
from seaweedq.rows.arrow_bodies import InvalidRow, invalid_rows
from seaweedq.rows.intake import Intake
from seaweedq.segments.layout import Format, Layout
from seaweedq.segments.schema import parse_schema

CHUNK_BYTES = 128 * 1024 * 1024  # of a file's columns, once dictionaries and views are expanded
CHECKED_ROWS = 8192  # at a time, fewer than the faults after which a check gives up


def topic_intake(facts: Mapping[str, Any], now_us: int) -> Intake:
    """Returns the rules of a topic, given the topic as a broker shows it; `now_us` is the time of this machine, in
    microseconds since the epoch, by which times ahead are judged."""
    fields = parse_schema(facts["schema"]) if facts["schema"] else None
    layout = Layout.from_format(Format(facts["format"]), fields)
    most = facts["bounds"]["max_message_bytes"]
    return Intake(layout, facts["key_field"], most, now_us, CHUNK_BYTES).at(now_us)


def check_rows(batch: pa.RecordBatch, intake: Intake) -> list[InvalidRow]:
    """Returns all rows of a batch that brokers would refuse, in order, each with its first fault; none if the batch is
    empty.

    Raises InvalidRequest if a column does not fit (`arrow_bodies.check_columns` tells so without rows), UnreadableBody
    if Arrow itself does not hold the batch valid.
    """
    found: list[InvalidRow] = []
    for first in range(0, batch.num_rows, CHECKED_ROWS):
        found += _check(first, batch.slice(first, CHECKED_ROWS), intake)
    return found


def _check(first: int, batch: pa.RecordBatch, intake: Intake) -> list[InvalidRow]:
    try:
        return [fault._replace(row=first + fault.row) for fault in invalid_rows(batch, intake)]
    except RequestTooLarge as error:
        half = batch.num_rows // 2
        if not half:
            return [InvalidRow(first, None, f"over {error.fields['limit_bytes']} bytes")]
        return [*_check(first, batch.slice(0, half), intake), *_check(first + half, batch.slice(half), intake)]

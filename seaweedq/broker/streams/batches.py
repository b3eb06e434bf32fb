"""A batch of a subscription's stream: the messages of one lease as JSON texts, in the order in which they are sent.

That order is by segment and offset, so that it is known again from what the lease still holds.

A message that comes goes to all subscriptions of its topic at once, and its text is the same in all of them. So the
last rows that were made are kept, as long as they are few and small, with what the outlets made of them.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from seaweedq.broker.subscriptions.pull_reads import DeliveredRows
from seaweedq.broker.topics.catalog import Topic
from seaweedq.codec.message_json import message_texts
from seaweedq.segments.layout import Layout

SCHEMA = pa.schema([("segment", pa.int64()), ("offset", pa.int64()), ("text", pa.string())])
FEW = 32  # rows, for which Arrow's kernels cost more than they do
SHARED_BYTES = 64 * 1024  # of rows that are kept
SHARED_ROWS = 32  # so many of them
Key: TypeAlias = tuple[Topic, int, int, int, int]  # segment, first offset, count, attempt


class Rows:
    """Messages in the order in which they are sent; `table` has SCHEMA. There is at least one."""

    def __init__(self, table: pa.RecordBatch) -> None:
        self.table = table

    @property
    def are_few(self) -> bool:
        """Tells whether `numbered` is faster than Arrow."""
        return int(self.table.num_rows) <= FEW

    @cached_property
    def numbered(self) -> list[tuple[int, int, str]]:
        """Returns segment, offset and text of each message."""
        return list(zip(*(column.to_pylist() for column in self.table.columns), strict=True))

    @cached_property
    def size(self) -> int:
        """Returns about how many bytes the texts take."""
        return int(self.table.column(2).nbytes)

    @cached_property
    def last(self) -> tuple[int, int]:
        """Returns segment and offset of the last message."""
        end = self.table.num_rows - 1
        return self.table.column(0)[end].as_py(), self.table.column(1)[end].as_py()

    def encoded(self) -> bytes:
        """Returns the rows for another broker."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, SCHEMA) as writer:
            writer.write_batch(self.table)
        return bytes(sink.getvalue())

    @staticmethod
    def decode(content: bytes) -> "Rows":
        """Returns the rows that another broker has encoded."""
        return Rows(pa.ipc.open_stream(content).read_next_batch())


@dataclass(frozen=True, slots=True)
class Batch:
    """The messages of a lease."""

    lease: str
    rows: Rows


class SharedRows:
    """The rows that were made last for some subscription of this broker. Those with references have links, which end;
    they are not kept."""

    def __init__(self) -> None:
        self._rows: OrderedDict[Key, tuple[Layout, Rows]] = OrderedDict()

    def of(self, topic: Topic, found: Sequence[DeliveredRows], links: dict[str, str]) -> Rows:
        """Returns the rows of what a lease gave."""
        key = _key(topic, found)
        if key is None:
            return rows_of(found, links)
        layout, known = self._rows.get(key, (None, None))
        if known and layout is found[0].segment.layout:
            return known
        rows = rows_of(found, links)
        if rows.size <= SHARED_BYTES:
            self._rows[key] = found[0].segment.layout, rows
            if len(self._rows) > SHARED_ROWS:
                self._rows.popitem(last=False)
        return rows


def _key(topic: Topic, found: Sequence[DeliveredRows]) -> Key | None:
    """Returns the name of rows that other subscriptions may get too."""
    if len(found) != 1:
        return None
    one = found[0]
    offsets, attempts, count = one.offsets, one.attempts, len(one.offsets)
    first, attempt = int(offsets[0]), int(attempts[0])
    if int(offsets[-1]) - first + 1 != count or "_reference" in one.rows.schema.names:
        return None
    return None if count > 1 and (attempts != attempt).any() else (topic, one.segment.id, first, count, attempt)


def rows_of(found: Sequence[DeliveredRows], links: dict[str, str]) -> Rows:
    """Returns the rows of what a lease gave."""
    if len(found) == 1:
        return Rows(_table(list(found), links))
    rising = sorted(found, key=_first)
    parts = [_table(list(group), links) for _, group in groupby(rising, lambda one: (one.segment.id, one.rows.schema))]
    table = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
    order = np.lexsort((table.column(1).to_numpy(), table.column(0).to_numpy()))
    return Rows(table.take(pa.array(order)) if (np.diff(order) != 1).any() else table)


def _first(one: DeliveredRows) -> tuple[int, int]:
    return one.segment.id, int(one.offsets[0])


def _table(found: list[DeliveredRows], links: dict[str, str]) -> pa.RecordBatch:
    """Returns the messages of one segment and schema: texts take 0.2 ms a batch, however small that is."""
    segment, count = found[0].segment, sum(len(one.offsets) for one in found)
    offsets = pa.array(np.concatenate([one.offsets for one in found]))
    attempts = pa.array(np.concatenate([one.attempts for one in found]))
    rows = found[0].rows if len(found) == 1 else pa.concat_batches([one.rows for one in found])
    texts = message_texts(offsets, rows, segment.id, segment.layout, attempts, links)
    return pa.record_batch([pa.array(np.full(count, segment.id)), offsets, texts], schema=SCHEMA)

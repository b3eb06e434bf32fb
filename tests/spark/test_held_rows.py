"""The rows of a topic's tail that come through the driver, and the ranges that are left to executors. No Spark."""

from collections.abc import Iterator
from typing import Any, cast

import pyarrow as pa
import pytest

from seaweedq import Client
from seaweedq.client.core.tables.table_plan import Rows
from seaweedq.spark import topic_table

EXPIRED = {1, 2, 5, 9}


class Tails:
    """Brokers whose segments have ten rows each, of which some have expired; three offsets a request."""

    def read_segment(self, topic: str, segment: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        for first in range(start, end, 3):
            if alive := [n for n in range(first, min(first + 3, end)) if n not in EXPIRED]:
                yield pa.RecordBatch.from_pydict({"_offset": alive, "segment": [segment] * len(alive)})


@pytest.mark.parametrize("most", [1, 60, 1000])
def test_each_row_comes_once_though_some_have_expired(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """What expired was taken for rows that are still to be fetched: others came twice."""
    monkeypatch.setattr(topic_table, "DRIVER_BYTES", most)
    tails: Any = Tails()
    held, rest = topic_table._held(cast(Client, tails), "t", [Rows(0, 0, 10), Rows(1, 4, 10)])
    held += [batch for rows in rest for batch in tails.read_segment("t", rows.segment, rows.start, rows.end)]
    found = [(row["segment"], row["_offset"]) for batch in held for row in batch.to_pylist()]
    alive = [n for n in range(10) if n not in EXPIRED]
    assert sorted(found) == [*((0, n) for n in alive), *((1, n) for n in alive if n >= 4)]

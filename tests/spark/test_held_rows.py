"""The rows of a topic's tail that come through the driver, and the ranges that are left to executors. No Spark."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pyarrow as pa
import pytest

from seaweedq import Client
from seaweedq.client.core.table_plan import Rows
from seaweedq.errors import TopicNotFound
from seaweedq.spark import topic_table


class Tails:
    """Brokers whose segments have ten rows each, three of them a request."""

    def read_segment(self, topic: str, segment: int, start: int, end: int, expired: str) -> Iterator[pa.RecordBatch]:
        assert expired == "keep", "the frame judges them by its own time"
        for first in range(start, end, 3):
            some = [*range(first, min(first + 3, end))]
            yield pa.RecordBatch.from_pydict({"_offset": some, "segment": [segment] * len(some)})


@pytest.mark.parametrize("most", [1, 60, 1000])
def test_each_row_comes_once(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(topic_table, "DRIVER_BYTES", most)
    tails: Any = Tails()
    held, rest = topic_table._held(cast(Client, tails), "t", [Rows(0, 0, 10), Rows(1, 4, 10)])
    held += [batch for rows in rest for batch in tails.read_segment("t", rows.segment, rows.start, rows.end, "keep")]
    found = [(row["segment"], row["_offset"]) for batch in held for row in batch.to_pylist()]
    assert sorted(found) == [*((0, n) for n in range(10)), *((1, n) for n in range(4, 10))]


@pytest.mark.parametrize("tail", ["read", "flush", "skip"])
def test_brokers_that_are_away_for_a_moment_are_waited_for(monkeypatch: pytest.MonkeyPatch, tail: Any) -> None:
    """The source waited, and read_topic failed at once."""
    asked: list[str] = []

    def brokers(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        if len(asked) < 3:
            raise httpx.ConnectError("refused")
        return httpx.Response(404, json={"type": "/problems/topic-not-found", "title": "no topic", "status": 404})

    def client(url: str, headers: Any) -> Client:
        return Client(url, headers=headers, transport=httpx.MockTransport(brokers))

    monkeypatch.setattr(topic_table, "Client", client)
    with pytest.raises(TopicNotFound):
        topic_table.read_topic(cast(Any, SimpleNamespace(version="4.3.0")), "t", "http://b", tail=tail)
    assert len(asked) == 3

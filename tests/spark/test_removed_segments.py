"""Bounds of the data source that name a segment which retention has removed since. No Spark."""

from collections.abc import Mapping
from typing import Any

import httpx
import pyarrow as pa
import pytest

from seaweedq import Client
from seaweedq.errors import ClientError
from seaweedq.spark import source
from seaweedq.spark.options import Options
from seaweedq.spark.partition_reader import TopicFacts
from seaweedq.spark.source import BatchReader
from seaweedq.spark.stream_reader import StreamReader
from tests.support import privates

REMOVED = {"id": 0, "state": "removed", "ended": True, "start_offset": 6, "end_offset": 6}
CREATED = {"created_at": "2026-01-01T00:00:00Z"}
FACTS = TopicFacts(pa.schema([]), "file:///t", CREATED["created_at"])
OPEN = {"id": 1, "state": "open", "start_offset": 0, "flushed_offset": 0, "end_offset": 2, **CREATED}
LINEAGE: dict[int, dict[str, list[int]]] = {
    0: {"predecessors": [], "successors": [1]},
    1: {"predecessors": [0], "successors": []},
}


def brokers(request: httpx.Request) -> httpx.Response:
    """Brokers of a topic with the segment 1, which came from the removed 0."""
    path = request.url.path
    if path.endswith("/segments"):
        return httpx.Response(200, json={"segments": [OPEN | LINEAGE[1]], "now": CREATED["created_at"]})
    if path.endswith("/segments/0"):
        return httpx.Response(200, json=REMOVED | LINEAGE[0])
    if "/segments/" in path:
        problem = {"type": "/problems/segment-not-found", "title": "", "detail": "", "status": 404}
        return httpx.Response(404, json=problem)
    return httpx.Response(200, json={"path": "file:///t", "format": "json", "schema": None, **CREATED})


def client(*_: Any) -> Client:
    return Client("http://test", transport=httpx.MockTransport(brokers))


def read(monkeypatch: pytest.MonkeyPatch, starting: Mapping[int, int]) -> list[tuple[int, int, int]]:
    """The ranges of a batch."""
    monkeypatch.setattr(source, "Client", client)
    reader: Any = object.__new__(BatchReader)
    reader.options = Options("http://test", "t", starting=starting)
    reader.facts = FACTS
    rows = [rows for part in reader.partitions() for rows in part.share.tail]
    return [(one.segment, one.start, one.end) for one in rows]


def test_a_batch_goes_on_with_its_successors(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(monkeypatch, {0: 6}) == [(1, 0, 2)]
    with pytest.raises(ClientError, match="were deleted before they were read"):
        read(monkeypatch, {0: 5})
    with pytest.raises(ValueError, match="names segment 9"):
        read(monkeypatch, {9: 0})


def test_a_stream_goes_on_with_its_successors(monkeypatch: pytest.MonkeyPatch) -> None:
    reader: Any = object.__new__(StreamReader)
    monkeypatch.setattr(reader, "_client", client(), raising=False)
    reader.options = Options("http://test", "t", starting={0: 6})
    monkeypatch.setattr(reader, "_followed", None, raising=False)
    reader.facts = FACTS
    assert reader.initialOffset() == {"0": 6, "now": CREATED["created_at"]}
    assert privates.known(reader)({0: 6}).keys() == {0, 1}
    reader.options = Options("http://test", "t", starting={9: 0})
    with pytest.raises(ValueError, match="segment 9"):
        reader.initialOffset()

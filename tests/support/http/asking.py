"""What the tests of the HTTP surface share: problems, topics, messages, Arrow."""

import io
from typing import Any

import httpx
import pyarrow as pa

ARROW, NDJSON = "application/vnd.apache.arrow.stream", "application/x-ndjson"


def problem_of(
    answer: httpx.Response, status: int, slug: str, *says: object, most_bytes: int = 20_000
) -> dict[str, Any]:
    """The problem, which must be of this kind, say these things in its detail, and be no larger."""
    assert answer.status_code == status, (answer.status_code, answer.text[:500])
    assert answer.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = answer.json()
    assert found["type"] == f"/problems/{slug}", found
    assert found["status"] == status
    assert isinstance(found["title"], str)
    for one in says:
        assert str(one) in found["detail"], found["detail"]
    assert len(answer.content) < most_bytes
    assert ("retry-after" in answer.headers) == (status == 503)
    return found


def send(http: httpx.Client, topic: str, *values: Any, **more: Any) -> list[str]:
    """Publish JSON values, with other members of each message: their ids."""
    messages = [{"value": value, **more} for value in values]
    answer = http.post(f"{topic}/messages", json={"messages": messages})
    assert answer.status_code == 200, answer.text
    ids: list[str] = answer.json()["ids"]
    return ids


def fetch(http: httpx.Client, topic: str, segment: int = 0, **options: Any) -> dict[str, Any]:
    """The answer to a fetch."""
    answer = http.get(f"{topic}/segments/{segment}/messages", params=options)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def values(answer: dict[str, Any]) -> list[Any]:
    """The values of messages that were read."""
    return [message["value"] for message in answer["messages"]]


def arrow_stream(table: pa.Table) -> bytes:
    """A table as an IPC stream."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def arrow_table(content: bytes) -> pa.Table:
    """The table of an IPC stream."""
    return pa.ipc.open_stream(content).read_all()

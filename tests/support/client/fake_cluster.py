"""A broker made of dictionaries, behind httpx.MockTransport: what API.md says, and faults on request."""

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pyarrow as pa

Fault = Callable[[httpx.Request], httpx.Response | None]


def problem(
    status: int, slug: str, detail: str = "no", retry_after: str | None = None, **fields: Any
) -> httpx.Response:
    """A problem document as a broker writes it."""
    headers = {"content-type": "application/problem+json"} | ({"retry-after": retry_after} if retry_after else {})
    body = {"type": f"/problems/{slug}", "title": slug, "status": status, "detail": detail, **fields}
    return httpx.Response(status, content=json.dumps(body).encode(), headers=headers)


def lines_of(request: httpx.Request) -> list[dict[str, Any]]:
    """The messages of a publish, as a line says them; rows of Arrow are as valid as the lines would be."""
    if "arrow" not in request.headers["content-type"]:
        return [json.loads(line) for line in request.content.splitlines()]
    found = []
    for row in pa.ipc.open_stream(request.content).read_all().to_pylist():
        value = row["value"]
        is_binary = isinstance(value, bytes)
        said = {"value_base64": base64.b64encode(value).decode()} if is_binary else {"value": json.loads(value)}
        found.append(said | ({"key": row["_key"]} if row.get("_key") is not None else {}))
    return found


@dataclass
class FakeCluster:
    """One topic `t` of one segment 0. `faults` are used up first, one a request: before it is handled, or with
    `lost` after it was. Producers look at the segment map and the topic when they like: that is neither recorded nor at
    fault."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    requests: list[httpx.Request] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    producers: dict[str, dict[int, tuple[int, int]]] = field(default_factory=dict)
    acked: list[str] = field(default_factory=list)
    ack_requests: list[list[str]] = field(default_factory=list)
    delivered: int = 0
    leases: dict[str | None, tuple[int, int]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    answers: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/topics/t/segments":
            return httpx.Response(200, json={"segments": self.segments()})
        if request.method == "GET" and request.url.path == "/v1/topics/t":
            return httpx.Response(200, json={"key_field": None, "format": "json"} | self.facts)
        self.requests.append(request)
        fault = self.faults.pop(0) if self.faults else lambda _: None
        return fault(request) or self.handle(request)

    def lost(self, request: httpx.Request) -> httpx.Response:
        """A fault: the request is handled, and its answer lost."""
        self.handle(request)
        raise httpx.ReadError("connection reset", request=request)

    def handle(self, request: httpx.Request) -> httpx.Response:
        if request.method == "POST" and request.url.path == "/v1/topics/t/messages":
            return self._publish(request)
        if request.url.path == "/v1/topics/t/subscriptions/s":
            return httpx.Response(201, json={})
        if request.url.path.endswith("/pull"):
            return self._pull(json.loads(request.content))
        if (verb := request.url.path.rpartition("/")[2]) in ("nack", "extend"):
            self.answers.append((verb, json.loads(request.content)))
            return httpx.Response(200, json={f"{verb}ed": 1, "late": 0, "unknown": []})
        if request.url.path.endswith("/ack"):
            ids = json.loads(request.content)["ids"]
            self.acked += ids
            self.ack_requests.append(ids)
            return httpx.Response(200, json={"acked": len(ids), "unknown": []})
        return problem(404, "topic-not-found", f"no topic at {request.url.path}", topic="x")

    def segments(self) -> list[dict[str, Any]]:
        """The segment map."""
        whole = {"id": 0, "low": 0, "high": 2**31 - 1, "state": "open"}
        return [whole | {"owner": "b0.1", "owner_url": "http://test"}]

    def _publish(self, request: httpx.Request) -> httpx.Response:
        lines = lines_of(request)
        bad = [{"index": n, "reason": "bad"} for n, line in enumerate(lines) if line.get("value") == "bad"]
        if bad:
            return problem(422, "invalid-messages", "1 message is not valid", errors=bad, invalid=len(bad))
        producer, sequence = request.headers.get("producer-id"), int(request.headers.get("producer-sequence", "0"))
        taken = self.producers.setdefault(producer, {}) if producer else {}
        duplicate = sequence in taken
        if not duplicate:
            if taken and sequence < max(first + count for first, (_, count) in taken.items()):
                return problem(409, "sequence-out-of-order", producer=producer, sequence=sequence)
            taken[sequence] = (len(self.messages), len(lines))
            self.messages += lines
        first, count = taken[sequence]
        answer = {"count": count, "segments": [{"segment": 0, "first_offset": first, "count": count}]}
        named = "arrow" not in request.headers["content-type"] or request.url.params.get("ids") == "true"
        answer |= {"ids": [f"0-{first + n}" for n in range(count)]} if named else {}
        answer |= {"duplicate": True} if duplicate else {}
        return httpx.Response(200, json=answer)

    def _pull(self, body: dict[str, Any]) -> httpx.Response:
        name = body.get("lease")
        if name not in self.leases:
            first, self.delivered = self.delivered, min(len(self.messages), self.delivered + body["max_messages"])
            self.leases[name] = first, self.delivered
        first, end = self.leases[name] if name else self.leases.pop(name)
        lease = name if end > first else None
        return httpx.Response(200, json={"lease": lease, "messages": [self.read(at) for at in range(first, end)]})

    def read(self, offset: int) -> dict[str, Any]:
        """A message as a reader gets it."""
        message = self.messages[offset]
        fixed = {"id": f"0-{offset}", "segment": 0, "offset": offset, "timestamp": "2026-01-02T03:04:05.678901Z"}
        return fixed | {"key": None, "headers": {}, "attempt": 1} | message

    def published(self) -> list[Any]:
        """The values taken so far."""
        return [message["value"] for message in self.messages]

"""A broker and a store made of dictionaries, behind httpx.MockTransport: uploads as API.md has them, faults on request.

The broker is at http://broker, the store at http://store: signed URLs carry `sig=`, which nobody may ever see.
"""

import hashlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import httpx

SECRET = "sig=do-not-tell"
Fault = Callable[[httpx.Request], httpx.Response | None]


def problem(status: int, slug: str, **fields: Any) -> httpx.Response:
    """A problem document as a broker writes it."""
    body = {"type": f"/problems/{slug}", "title": slug, "status": status, "detail": f"it is {slug}", **fields}
    return httpx.Response(status, json=body, headers={"content-type": "application/problem+json", "retry-after": "0"})


def xml(status: int, code: str) -> httpx.Response:
    """An error as S3 writes it."""
    return httpx.Response(status, content=f"<Error><Code>{code}</Code><Key>{SECRET}</Key></Error>".encode())


class Whole(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body that comes in pieces."""

    def __init__(self, data: bytes) -> None:
        self._pieces = [data[at : at + 50_000] for at in range(0, len(data), 50_000)]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._pieces)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


def sends(data: bytes, status: int = 200, **headers: str) -> httpx.Response:
    """An answer with these bytes."""
    return httpx.Response(status, stream=Whole(data), headers={"content-length": str(len(data)), **headers})


class Cut(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body of which the end does not come."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __iter__(self) -> Iterator[bytes]:
        yield self._data
        raise httpx.ReadError("connection reset")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._data
        raise httpx.ReadError("connection reset")


@dataclass
class FakeStore:
    """One topic `t` of one segment. `faults` of a route are used up first, by (method, what the path ends with)."""

    part_bytes: int | None = None
    limit_bytes: int = 1 << 20
    topic: dict[str, Any] = field(default_factory=lambda: {"name": "t", "format": "json"})
    uploads: dict[str, dict[str, Any]] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    parts: dict[tuple[str, int], bytes] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)
    faults: dict[tuple[str, str], list[Fault]] = field(default_factory=dict)
    requests: list[httpx.Request] = field(default_factory=list)
    urls: Iterator[int] = field(default_factory=lambda: count(1))

    def __call__(self, request: httpx.Request) -> httpx.Response:
        request.read() if isinstance(request.stream, httpx.SyncByteStream) else None
        return self.answer(request)

    async def async_call(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        return self.answer(request)

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        for (method, end), faults in self.faults.items():
            if request.method == method and request.url.path.endswith(end) and faults:
                if response := faults.pop(0)(request):
                    return response
                break
        return self.handle(request)

    def handle(self, request: httpx.Request) -> httpx.Response:
        if request.url.host == "store":
            return self._store(request)
        assert request.url.host == "broker", request.url.host
        path = request.url.path.removeprefix("/v1/topics/t")
        match request.method, path.split("/")[1:]:
            case "GET", []:
                return httpx.Response(200, json=self.topic)
            case "GET", ["segments"]:
                whole = {"id": 0, "low": 0, "high": 2**31 - 1, "state": "open", "owner": "b", "owner_url": "http://b"}
                return httpx.Response(200, json={"segments": [whole]})
            case "POST", ["messages"]:
                return self._publish(request)
            case "POST", ["uploads"]:
                return self._create(json.loads(request.content))
            case "GET", ["uploads", upload]:
                return self._show(upload)
            case "POST", ["uploads", upload, "parts"]:
                numbers = json.loads(request.content)["numbers"]
                found = [{"number": n, **self._signed(f"{upload}/{n}")} for n in numbers]
                return httpx.Response(200, json={"parts": found})
            case "POST", ["uploads", upload, "complete"]:
                return self._complete(upload)
            case "DELETE", ["uploads", upload]:
                self.uploads[upload]["state"] = "removed"
                return httpx.Response(204)
            case "GET", ["segments", _, "messages", offset, "payload"]:
                upload = self.messages[int(offset)]["reference"]["upload_id"]
                return ranged(request, self.objects[upload])
        return problem(404, "not-found")

    def put_paths(self) -> list[str]:
        """What was put, in order."""
        return [request.url.path for request in self.requests if request.method == "PUT"]

    def asked(self, method: str, end: str) -> int:
        """How often."""
        return sum(r.method == method and r.url.path.endswith(end) for r in self.requests)

    def message(self, offset: int) -> dict[str, Any]:
        """A message as a reader gets it."""
        found = dict(self.messages[offset])
        fixed = {"id": f"0-{offset}", "segment": 0, "offset": offset, "timestamp": "2026-01-02T03:04:05.678901Z"}
        if "reference" in found:
            upload = found["reference"]["upload_id"]
            facts = {name: self.uploads[upload][name] for name in ("size", "sha256", "content_type")}
            found["reference"] = {"uri": f"s3://b/{upload}", "url": f"http://store/{upload}?{SECRET}", **facts}
            found["value"] = None
        return {"key": None, "headers": {}, **fixed, **found}

    def _signed(self, path: str) -> dict[str, Any]:
        url = f"http://store/{path}?n={next(self.urls)}&{SECRET}"
        return {"url": url, "method": "PUT", "headers": {"x-signed": "yes"}}

    def _create(self, wanted: dict[str, Any]) -> httpx.Response:
        upload = f"u{len(self.uploads)}"
        self.uploads[upload] = {**wanted, "state": "open"}
        more = self._signed(upload) if self.part_bytes is None else {"part_bytes": self.part_bytes, "parts": 1}
        return httpx.Response(201, json={"upload_id": upload, "expires_at": "2026-01-02T03:04:05Z", **more})

    def _show(self, upload: str) -> httpx.Response:
        if upload not in self.uploads:
            return problem(404, "upload-not-found")
        there = [{"number": n, "size": len(data)} for (of, n), data in self.parts.items() if of == upload]
        more = self._signed(upload) if self.part_bytes is None else {"part_bytes": self.part_bytes, "parts": there}
        return httpx.Response(200, json={"upload_id": upload, **self.uploads[upload], **more})

    def _complete(self, upload: str) -> httpx.Response:
        wanted = self.uploads[upload]
        if self.part_bytes is not None:
            numbers = range(1, max(1, -(-wanted["size"] // self.part_bytes)) + 1)
            if missing := [n for n in numbers if (upload, n) not in self.parts]:
                return problem(409, "upload-incomplete", missing=missing)
            self.objects[upload] = b"".join(self.parts[upload, n] for n in numbers)
        if upload not in self.objects:
            return problem(409, "upload-incomplete")
        if hashlib.sha256(self.objects[upload]).hexdigest() != wanted["sha256"]:
            return problem(422, "upload-mismatch", upload_id=upload)
        return httpx.Response(200, json={"upload_id": upload, **wanted})

    def _store(self, request: httpx.Request) -> httpx.Response:
        assert SECRET in request.url.query.decode()
        upload, _, number = request.url.path[1:].partition("/")
        if request.method == "GET":
            return ranged(request, self.objects[upload])
        if request.headers.get("x-signed") != "yes" or "authorization" in request.headers:
            return xml(403, "AccessDenied")
        if number:
            self.parts[upload, int(number)] = request.content
        elif upload in self.objects:
            return xml(412, "PreconditionFailed")
        else:
            self.objects[upload] = request.content
        return httpx.Response(200)

    def _publish(self, request: httpx.Request) -> httpx.Response:
        lines = [json.loads(line) for line in request.content.splitlines()]
        for index, line in enumerate(lines):
            if "value" in line and len(json.dumps(line["value"])) > self.limit_bytes:
                return problem(413, "message-too-large", limit_bytes=self.limit_bytes, index=index)
        first = len(self.messages)
        self.messages += lines
        ids = [f"0-{first + n}" for n in range(len(lines))]
        rows = [{"segment": 0, "first_offset": first, "count": len(lines)}]
        return httpx.Response(200, json={"count": len(lines), "segments": rows, "ids": ids})


def ranged(request: httpx.Request, data: bytes) -> httpx.Response:
    """The bytes, or those of a range `bytes=n-`."""
    if "range" not in request.headers:
        return sends(data)
    start = int(request.headers["range"].removeprefix("bytes=").removesuffix("-"))
    said = {"content-range": f"bytes {start}-{len(data) - 1}/{len(data)}"}
    return sends(data[start:], 206, **said)

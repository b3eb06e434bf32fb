"""Bare HTTP on ASGI: reading a body within bounds, answering with bytes.

The hot routes stand on this directly; FastAPI's routes use the same reading, so that every body on every route is
bounded in size, in decoded size and in time. (uvicorn has no deadline for receiving a request.)
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from seaweedq.broker.log.memory_budget import Budget
from seaweedq.codec.content_encoding import decode_body
from seaweedq.errors import BadRequest, RequestTimeout, RequestTooLarge, UnreadableBody
from seaweedq.settings import Settings

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

JSON_HEADERS = {"content-type": "application/json"}
_STEP_BYTES = 256 * 1024  # in which a body of unknown length takes its memory


class ClientGone(Exception):
    """The client went away before its request was complete: nobody is there to answer."""


@dataclass(slots=True)
class Answer:
    """Status, body, headers."""

    status: int
    body: bytes | memoryview = b""
    headers: Mapping[str, str] = field(default_factory=lambda: JSON_HEADERS)


def header(scope: Scope, name: bytes) -> str | None:
    """The header of that (lower-case) name; latin-1, as HTTP has it, and repeated ones joined (RFC 9110, 5.3)."""
    found = [value for key, value in scope["headers"] if key == name]
    return b", ".join(found).decode("latin-1") if found else None


def query(scope: Scope) -> dict[str, str]:
    """The query's parameters; of repeated ones the last counts. Raises UnreadableBody for bytes that are not UTF-8."""
    raw = scope["query_string"]
    if not raw:
        return {}
    try:
        return dict(parse_qsl(raw.decode("latin-1"), keep_blank_values=True, errors="strict"))
    except ValueError as error:
        raise UnreadableBody(f"the query string cannot be read: {error}") from None


async def send(answer: Answer, out: Send) -> None:
    """Send an answer in one piece."""
    headers = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in answer.headers.items()]
    headers.append((b"content-length", str(len(answer.body)).encode()))
    await out({"type": "http.response.start", "status": answer.status, "headers": headers})
    await out({"type": "http.response.body", "body": answer.body})


class body:
    """The decoded body, held in the memory budget for as long as the block runs.

    Raises RequestTooLarge, RequestTimeout, UnsupportedEncoding, UnreadableBody, Overloaded, ClientGone.
    """

    __slots__ = ("_budget", "_held", "_limit", "_receive", "_scope", "_timeout_s")

    def __init__(
        self, scope: Scope, receive: Receive, settings: Settings, budget: Budget, limit: int | None = None
    ) -> None:
        self._scope, self._receive, self._budget = scope, receive, budget
        self._limit, self._timeout_s = limit or settings.max_request_bytes, settings.request_timeout_s
        self._held = 0

    async def __aenter__(self) -> bytes:
        try:
            return await self._read()
        except BaseException:
            self._budget.release(self._held)
            raise

    async def __aexit__(self, *error: object) -> None:
        self._budget.release(self._held)

    async def _read(self) -> bytes:
        stated = content_length(self._scope) or 0
        if stated > self._limit:
            raise _too_large(self._limit)
        self._hold(stated)
        try:
            async with asyncio.timeout(self._timeout_s):
                raw = await self._chunks(stated)
        except TimeoutError:
            raise _too_slow(self._timeout_s) from None
        encoding = header(self._scope, b"content-encoding")
        if encoding is None:
            return raw
        self._hold(self._limit)
        return await asyncio.to_thread(decode_body, raw, encoding, self._limit)

    async def _chunks(self, reserved: int) -> bytes:
        """The body as it comes; what is over the `reserved` bytes is reserved step by step."""
        chunks: list[bytes] = []
        size, more = 0, True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            chunks.append(message.get("body", b""))
            more = message.get("more_body", False)
            size += len(chunks[-1])
            if size > self._limit:
                raise _too_large(self._limit)
            while size > reserved:
                self._hold(_STEP_BYTES)
                reserved += _STEP_BYTES
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _hold(self, size: int) -> None:
        self._budget.hold(size)
        self._held += size


def content_length(scope: Scope) -> int | None:
    """The stated length, if there is one (the server has checked that it is a number)."""
    text = header(scope, b"content-length")
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def _too_large(limit: int) -> BadRequest:
    return RequestTooLarge(
        f"the body is over max_request_bytes={limit}; split it into smaller requests, "
        "or publish large payloads as uploads by reference",
        limit_bytes=limit,
    )


def _too_slow(timeout_s: float) -> BadRequest:
    return RequestTimeout(f"the body did not arrive within request_timeout_s={timeout_s:g}", timeout_s=timeout_s)

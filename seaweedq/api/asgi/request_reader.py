"""Reads the bodies of requests: every body on every route is bounded in size, in decoded size, in time and in memory.

uvicorn has no deadline for receiving a request, and FastAPI none of these bounds.
"""

import asyncio
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from fastapi import Request

from seaweedq.api.asgi.http import ClientGone, Receive, Scope, content_length, header
from seaweedq.api.asgi.json_requests import check_free_form, decode_request
from seaweedq.broker.log.memory_budget import Budget
from seaweedq.clock import Clock
from seaweedq.codec.content_encoding import decode_body
from seaweedq.errors import BadRequest, MissingContentType, RequestTimeout, RequestTooLarge
from seaweedq.settings import Settings

T = TypeVar("T")
_STEP_BYTES = 256 * 1024  # a body of unknown length takes its memory in such steps


@dataclass(frozen=True, slots=True)
class RequestReader:
    """Reads requests within the bounds of the settings. Their bodies take their memory from the budget."""

    settings: Settings
    budget: Budget
    clock: Clock

    def body(self, scope: Scope, receive: Receive) -> "Body":
        """Returns the body as a block that holds its memory: `async with reader.body(...) as content`."""
        typed = header(scope, b"content-type") is not None
        return Body(scope, receive, self.budget, self.settings.max_request_bytes, self.timeout_s, typed)

    def body_of_peer(self, scope: Scope, receive: Receive, limit_bytes: int) -> "Body":
        """Returns the body of a call of another broker, which has no content type."""
        return Body(scope, receive, self.budget, limit_bytes, self.timeout_s, True)

    async def json(self, request: Request, decoder: msgspec.json.Decoder[T], free_form: bool = False) -> T:
        """Returns the request's JSON body, decoded strictly; `free_form` says that a field may hold any JSON.

        Raises the errors of `Body` and of `decode_request`.
        """
        async with self.body(request.scope, request.receive) as content:
            decoded = decode_request(content, request.scope, decoder)
            if free_form:
                check_free_form(content)
            return decoded

    @property
    def timeout_s(self) -> float:
        """The seconds within which a body must arrive, or its next bytes where it is streamed."""
        return self.settings.request_timeout_s


class Body:
    """The decoded body of a request, held in the memory budget for as long as the block runs.

    Raises MissingContentType unless it is `typed` or empty, RequestTooLarge, RequestTimeout, UnsupportedEncoding,
    UnreadableBody, Overloaded, ClientGone.
    """

    __slots__ = ("_budget", "_held", "_limit", "_receive", "_scope", "_timeout_s", "_typed")

    def __init__(
        self, scope: Scope, receive: Receive, budget: Budget, limit_bytes: int, timeout_s: float, typed: bool
    ) -> None:
        self._scope, self._receive, self._budget = scope, receive, budget
        self._limit, self._timeout_s = limit_bytes, timeout_s
        self._typed = typed
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
        self._check_typed(stated)
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
        """Reads the body as it comes. Bytes beyond the `reserved` ones are reserved step by step."""
        chunks: list[bytes] = []
        size, more = 0, True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            chunks.append(message.get("body", b""))
            more = message.get("more_body", False)
            size += len(chunks[-1])
            self._check_typed(size)
            if size > self._limit:
                raise _too_large(self._limit)
            while size > reserved:
                self._hold(_STEP_BYTES)
                reserved += _STEP_BYTES
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _check_typed(self, size: int) -> None:
        if size and not self._typed:
            raise MissingContentType("a body that is not empty needs a content type")

    def _hold(self, size: int) -> None:
        self._budget.hold(size)
        self._held += size


def _too_large(limit: int) -> BadRequest:
    return RequestTooLarge(
        f"the body is over max_request_bytes={limit}; split it into smaller requests, "
        "or publish large payloads as uploads by reference",
        limit_bytes=limit,
    )


def _too_slow(timeout_s: float) -> BadRequest:
    return RequestTimeout(f"the body did not arrive within request_timeout_s={timeout_s:g}", timeout_s=timeout_s)

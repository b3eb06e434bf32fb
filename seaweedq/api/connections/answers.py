"""The way of answers out: large ones are let through only if there is memory for those that nobody takes. A request for
a WebSocket has a way of its own.

Stored objects are sent in chunks, whole or a byte range of them (RFC 9110, 14). One range a request is understood.
Several ranges, or other units, are answered with the whole, as the RFC allows.
"""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Callable, Mapping, MutableMapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

from seaweedq.api.access.authentication import PEER_PREFIX
from seaweedq.api.connections.memory import LARGE_BYTES, UnreadAnswers
from seaweedq.api.connections.request_reader import StreamedBody
from seaweedq.api.problems import problem, problem_answer
from seaweedq.api.request import SWITCHED, Answer, Request, Send, headers_of, start_of
from seaweedq.broker.broker import Readiness
from seaweedq.errors import OffsetOutOfRange, SeaweedqError

CLOSING = (b"connection", b"close")
TERMINALS = (b"curl/", b"Wget/", b"HTTPie/")
STORED = ("/payload", "/content")  # bytes of users, which stay as they are
_JSON = (b"application/json", b"application/problem+json")
RESTARTS, UNAUTHENTICATED = 1012, 4401  # why the broker closes a WebSocket
MAX_DIGITS = 18
SEND_BYTES = 256 * 1024  # at a time: the server holds that much more for a client that does not take it
_RANGE = re.compile(r"bytes=\s*([0-9]*)\s*-\s*([0-9]*)\s*", re.IGNORECASE)
# A browser must never show an upload as a page of the broker's.
SAFE = {"accept-ranges": "bytes", "x-content-type-options": "nosniff", "content-disposition": "attachment"}
logger = logging.getLogger(__name__)


class Outgoing:
    """Sends the messages of one answer. Its start waits for the first bytes, since a large answer for which there is no
    room becomes a 503. `begun` says that something was sent, and `status` which status. A `body` is one that comes
    while it is read: it is drained before the answer, so that the connection may be used again.

    An answer is the last one on its connection while the broker leaves or drains, so that the client turns to another
    broker: a connection that is idle when the broker ends may be closed under a request. Brokers stay until the
    hand-over. JSON for the programs of a terminal ends with a newline, so that the prompt has its own line.
    """

    __slots__ = ("_dropped", "_more", "_readiness", "_request", "_send", "_start", "_unread", "begun", "body", "status")

    def __init__(
        self,
        request: Request,
        send: Send,
        unread: UnreadAnswers,
        readiness: Readiness,
        more: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        self._request = request
        self._send = send
        self._unread = unread
        self._readiness = readiness
        self._more = more  # headers
        self._start: MutableMapping[str, Any] | None = None
        self._dropped = False
        self.begun = False
        self.status = 0
        self.body: StreamedBody | None = None

    async def answer(self, answer: Answer) -> None:
        """Sends a whole answer. If one was begun already its caller has lost the right to the rest: a stream of events
        ends with the reason, and the connection of any other answer is cut."""
        if self.begun:
            if self.body is not None:
                await self(last_event(bytes(answer.body)))
            elif self._request.connection:
                self._request.connection.abort()
            return
        ends = self.body is not None and not await self.body.drained()
        self.begun = True
        if len(answer.body) >= LARGE_BYTES and not self._unread.has_room(len(answer.body)):
            answer = problem_answer(self._unread.refusal())
        await self._send_whole(start_of(answer), {"type": "http.response.body", "body": answer.body}, ends)
        if self._request.meter is not None:
            self._request.meter.spend("bytes_out", len(answer.body))

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        """As ASGI's `send`."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        if self._start is not None:
            start, self._start, self.begun = self._start, None, True
            size = 0 if message.get("more_body", False) else len(message.get("body", b""))
            if size >= LARGE_BYTES and not self._unread.has_room(size):  # its route admits an answer in parts
                self._dropped = True
                refusal = problem_answer(self._unread.refusal())
                await self._send_whole(start_of(refusal), {"type": "http.response.body", "body": refusal.body})
                self._request.spend("bytes_out", len(refusal.body))
                return
            await self._send_whole(start, message)
        elif not self._dropped:
            await self._send(message)
        if not self._dropped and self._request.meter is not None:
            await self._request.meter.sent(message)

    async def _send_whole(
        self, start: MutableMapping[str, Any], first: MutableMapping[str, Any], ends: bool = False
    ) -> None:
        """Sends the start of an answer, and its first bytes."""
        self.status = start["status"]
        if (
            ends
            or self._readiness.draining
            or (self._readiness.leaving and not self._request.path.startswith(PEER_PREFIX))
        ):
            headers = list(start.get("headers", ()))
            start["headers"] = headers if CLOSING in headers else [*headers, CLOSING]
        if self._more:
            start["headers"] = [*start.get("headers", ()), *self._more]
        if self._request.headers.get(b"user-agent", b"").startswith(TERMINALS):
            start, first = self._with_line_end(start, first)
        await self._send(start)
        await self._send(first)

    def _with_line_end(
        self, start: MutableMapping[str, Any], first: MutableMapping[str, Any]
    ) -> tuple[MutableMapping[str, Any], MutableMapping[str, Any]]:
        """Returns both, with a newline behind JSON that comes in one piece."""
        if not first.get("body") or first.get("more_body") or self._request.path.endswith(STORED):
            return start, first
        headers = {name.lower(): value for name, value in start.get("headers", ())}
        if b"content-encoding" in headers or headers.get(b"content-type", b"").partition(b";")[0] not in _JSON:
            return start, first
        longer = [(k, b"%d" % (int(v) + 1)) if k.lower() == b"content-length" else (k, v) for k, v in start["headers"]]
        return {**start, "headers": longer}, {**first, "body": bytes(first["body"]) + b"\n"}


class KeptAnswer:
    """Keeps the answer to a request of this process itself, which sends it in its own way. `status` is 0 until there is
    one."""

    __slots__ = ("_parts", "_request", "headers", "status")

    def __init__(self, request: Request) -> None:
        self._request = request
        self._parts: list[bytes | memoryview] = []
        self.headers: Mapping[str, str] = {}
        self.status = 0

    @property
    def begun(self) -> bool:
        """Whether there is an answer, or a part of one."""
        return self.status != 0

    @property
    def body(self) -> bytes:
        """The whole body."""
        return bytes(self._parts[0]) if len(self._parts) == 1 else b"".join(self._parts)

    async def answer(self, answer: Answer) -> None:
        """Takes a whole answer, in place of one that was begun."""
        self.status, self.headers, self._parts = answer.status, answer.headers, [answer.body]
        self._request.spend("bytes_out", len(answer.body))

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        """As ASGI's `send`."""
        if message["type"] == "http.response.start":
            self.status, self._parts = message["status"], []
            self.headers = headers_of(message)
            return
        self._parts.append(message.get("body", b""))
        if self._request.meter is not None:
            await self._request.meter.sent(message)


def last_event(content: bytes) -> dict[str, Any]:
    """Returns the message that ends a stream of events, with the problem why."""
    return {"type": "http.response.body", "body": b"event: bye\ndata: %b\n\n" % content}


class SocketOutgoing:
    """The way out of a request for a WebSocket. Before it has become one its answer is one of HTTP; then the answer is
    why it ends: its caller has lost the right to it, or may have. `status` is 0 until something was sent."""

    __slots__ = ("_request", "_send", "status")

    def __init__(self, request: Request, send: Send) -> None:
        self._request = request
        self._send = send
        self.status = 0

    @property
    def begun(self) -> bool:
        """Whether anything was sent."""
        return self.status != 0

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        """As ASGI's `send`."""
        await self._send(message)
        if message["type"] == "websocket.accept":
            self.status = SWITCHED
        if self._request.meter is not None:
            await self._request.meter.sent(message)

    async def answer(self, answer: Answer) -> None:
        """Refuses the request, or ends the WebSocket and says why."""
        with suppress(OSError):  # the client has gone
            if self.status == SWITCHED:
                await self._send({"type": "websocket.send", "text": f'{{"bye":{bytes(answer.body).decode()}}}'})
                code = RESTARTS if answer.status == 503 else UNAUTHENTICATED
                await self._send({"type": "websocket.close", "code": code})
                return
            self.status = answer.status
            headers = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in answer.headers.items()]
            await self._send({"type": "websocket.http.response.start", "status": answer.status, "headers": headers})
            await self._send({"type": "websocket.http.response.body", "body": bytes(answer.body)})


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object of the store. `tag` names its bytes for If-Range; `read` yields the bytes of a half-open range."""

    size: int
    tag: str
    content_type: str
    read: Callable[[int, int], AsyncGenerator[bytes, None]]


def parse_range(text: str | None, size: int) -> tuple[int, int] | None:
    """Returns the half-open range [start, end) of an object of `size` bytes that a Range header asks for, None for the
    whole object. Raises OffsetOutOfRange if the range has no byte of the object."""
    found = _RANGE.fullmatch(text) if text else None
    if found is None or found[1] == found[2] == "":
        return None
    if any(len(number) > MAX_DIGITS for number in found.groups()):
        raise _beyond(text, size)
    if not found[1]:
        last = int(found[2])
        if not last or not size:
            raise _beyond(text, size)
        return max(0, size - last), size
    start = int(found[1])
    if found[2] and int(found[2]) < start:
        return None
    if start >= size:
        raise _beyond(text, size)
    return start, min(size, int(found[2]) + 1) if found[2] else size


def _beyond(text: str | None, size: int) -> OffsetOutOfRange:
    return OffsetOutOfRange(
        f"the range {(text or '')[:100]!r} contains no byte of an object of {size} bytes", size=size
    )


async def send_object(stored: StoredObject, request: Request, out: Send, stall_s: float) -> Answer | None:
    """Sends an object, or the range of it that was asked for; to HEAD its headers alone. Returns an answer that is
    still to be sent, None if everything was sent.

    Raises what `stored.read` raises before its first bytes. A client that takes nothing for `stall_s` seconds is cut
    off, and so is one that would get an incomplete body.
    """
    headers = {**SAFE, "content-type": stored.content_type, "etag": f'"{stored.tag}"'}
    try:
        is_same = request.header(b"if-range") in (None, headers["etag"])  # else the range is one of other bytes
        span = parse_range(request.header(b"range") if is_same else None, stored.size)
    except OffsetOutOfRange as error:
        status, said, content = problem(error)
        return Answer(status, content, {**said, "content-range": f"bytes */{stored.size}"})
    start, end = span or (0, stored.size)
    headers["content-length"] = str(end - start)
    if span:
        headers["content-range"] = f"bytes {start}-{end - 1}/{stored.size}"
    if request.method == "HEAD" or start == end:
        await _begin(out, span, headers)
        await out({"type": "http.response.body", "body": b""})
        return None
    async with aclosing(stored.read(start, end)) as chunks:
        first = await anext(chunks)
        await _begin(out, span, headers)
        watcher = asyncio.create_task(request.until_gone())  # to send to a client that has gone is no error
        try:
            await _send_chunks(out, first, chunks, watcher, stall_s)
        except (SeaweedqError, FileNotFoundError, TimeoutError) as error:  # the server closes an incomplete answer
            logger.warning("sending a payload to a client was interrupted: %s", str(error) or type(error).__name__)
        finally:
            watcher.cancel()
    return None


async def _begin(out: Send, span: tuple[int, int] | None, headers: Mapping[str, str]) -> None:
    encoded = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in headers.items()]
    await out({"type": "http.response.start", "status": 206 if span else 200, "headers": encoded})


async def _send_chunks(
    out: Send, chunk: bytes | None, chunks: AsyncGenerator[bytes, None], gone: asyncio.Task[None], stall_s: float
) -> None:
    while chunk is not None and not gone.done():
        view = memoryview(chunk)
        for at in range(0, len(view), SEND_BYTES):
            async with asyncio.timeout(stall_s):
                await out({"type": "http.response.body", "body": view[at : at + SEND_BYTES], "more_body": True})
        chunk = await anext(chunks, None)
    if chunk is None:
        await out({"type": "http.response.body", "body": b""})

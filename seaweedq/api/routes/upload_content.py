"""The bytes of a payload through a broker, where the store gives no URLs: streamed, never as a whole in memory.

Bare ASGI. Who asks shows a token for this method and this payload; nothing else about them matters.
"""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import msgspec

from seaweedq.api.asgi.http import Answer, ClientGone, Receive, Scope, Send, content_length, header, query
from seaweedq.api.asgi.parameters import check_name
from seaweedq.api.asgi.range_requests import send_object
from seaweedq.broker.broker import Broker
from seaweedq.broker.uploads.prefetch import pieces
from seaweedq.broker.uploads.rules import incarnation_of, object_name
from seaweedq.coordination.records import UploadRecord
from seaweedq.errors import InvalidRequest, PayloadNotFound, RequestTimeout, UploadMismatch, UploadNotFound

PUT_BYTES = 3 * 1024 * 1024  # what a put holds in memory: pieces of it on their way to the disk
PIECE_BYTES = 1024 * 1024
DRAIN_BYTES, DRAIN_S = 1024 * 1024, 1.0
METHODS = ("GET", "HEAD", "PUT")
PUT_REFUSES = (403, 404, 405, 408, 409, 410)
GET_REFUSES = (403, 404, 405, 416)


class Received(msgspec.Struct):
    """What came."""

    upload_id: str
    size: int
    sha256: str | None


class Body:
    """A request's body as it comes; `ended` once all of it has, or the client is gone."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._receive = receive
        self._asks = header(scope, b"expect") is not None  # and sends nothing before it is told to
        self.ended = content_length(scope) in (None, 0) and header(scope, b"transfer-encoding") is None

    async def __call__(self) -> Any:
        message = await self._receive()
        self.ended = not message.get("more_body", False)
        return message

    async def chunks(self, stall_s: float) -> AsyncIterator[bytes]:
        """All of it. Raises ClientGone, and RequestTimeout where nothing comes for `stall_s` seconds."""
        while not self.ended:
            try:
                async with asyncio.timeout(stall_s):
                    message = await self()
            except TimeoutError:
                detail = f"nothing of the body arrived for request_timeout_s={stall_s:g}"
                raise RequestTimeout(detail, timeout_s=stall_s) from None
            if message["type"] == "http.disconnect":
                raise ClientGone
            if chunk := message.get("body"):
                yield chunk

    async def drained(self) -> bool:
        """Whether nothing more can come, so that the connection may be used again. A little is read to that end: a
        client that still sends would else see its connection reset, and not the answer."""
        left = DRAIN_BYTES
        try:
            async with asyncio.timeout(DRAIN_S):
                while not self.ended and not self._asks and left > 0:
                    left -= len((await self()).get("body", b""))
        except TimeoutError:
            pass
        return self.ended


async def serve(broker: Broker, scope: Scope, body: Body, out: Send, topic: str, upload: str) -> Answer | None:
    """The answer to a request, of one of METHODS, for an upload's content; None where it was sent already.

    Raises Forbidden and whatever stands against the rest.
    """
    broker.readiness.check_ready()
    check_name(topic)
    if scope["method"] == "PUT":
        return await put(broker, scope, body, topic, upload)
    return await get(broker, scope, body, out, topic, upload)


async def put(broker: Broker, scope: Scope, body: Body, topic: str, upload: str) -> Answer:
    """Take the bytes of an upload: 201 once they are durable, and those that were announced; so again for the same
    bytes. The URL is that of the upload's answer."""
    found = await broker.core.catalog.known(topic)
    record = (await broker.joined.uploads.find(found, upload)).record
    await _check(broker, scope, "PUT", record.name, record.size)
    _check_length(scope, upload, record)
    broker.core.budget.hold(PUT_BYTES)
    try:
        chunks = body.chunks(broker.environment.settings.request_timeout_s)
        record = await broker.joined.uploads.receive(found, upload, chunks)
    finally:
        broker.core.budget.release(PUT_BYTES)
    return Answer(201, msgspec.json.encode(Received(upload, record.size, record.checked)))


async def get(broker: Broker, scope: Scope, body: Body, out: Send, topic: str, upload: str) -> Answer | None:
    """A payload, or a range of it, as it was put. The URL is that of a message's reference."""
    if incarnation_of(upload) is None:
        raise UploadNotFound(f"{upload[:100]!r} is no upload", topic=topic, upload_id=upload[:100])
    name = object_name(topic, upload)
    await _check(broker, scope, "GET", name, 0)
    try:
        size = await broker.environment.store.size(name)
    except FileNotFoundError:
        raise PayloadNotFound("the payload is not in the store", topic=topic, id=upload) from None
    read = partial(pieces, broker.environment.store, name, piece_bytes=PIECE_BYTES)
    broker.core.budget.hold(2 * PIECE_BYTES)
    try:
        stall_s = broker.environment.settings.request_timeout_s
        return await send_object(scope, body, out, size, upload, "application/octet-stream", read, stall_s)
    except FileNotFoundError:  # its topic went meanwhile
        raise PayloadNotFound("the payload is not in the store any more", topic=topic, id=upload) from None
    finally:
        broker.core.budget.release(2 * PIECE_BYTES)


async def _check(broker: Broker, scope: Scope, method: str, name: str, size: int) -> None:
    shown = query(scope)
    await broker.joined.uploads.own_urls.check(method, name, size, shown.get("expires", ""), shown.get("token", ""))


def _check_length(scope: Scope, upload: str, record: UploadRecord) -> None:
    size = content_length(scope)
    if size is None or header(scope, b"transfer-encoding") is not None:
        raise InvalidRequest("a put of an upload needs a Content-Length", field="content-length")
    if size != record.size:
        detail = f"the upload was announced with {record.size} bytes, and this has {size}"
        raise UploadMismatch(detail, upload_id=upload, field="size", value=size, bound=record.size)

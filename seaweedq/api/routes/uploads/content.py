"""The bytes of a payload through a broker, where the store signs no URLs: streamed, never as a whole in memory.

Bare ASGI. A request shows a token for this method and this payload, and needs no other right. It is judged before
anything is looked up: who has no such token learns nothing of topics and uploads.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from seaweedq.api.asgi.http import Answer, ClientGone, Receive, Scope, Send, content_length, header, query
from seaweedq.api.asgi.parameters import check_name
from seaweedq.api.asgi.range_requests import StoredObject, send_object
from seaweedq.api.bodies.incomplete_bodies import Incomplete
from seaweedq.api.bodies.request_reader import RequestReader, end_now
from seaweedq.broker.topics.catalog import Catalog
from seaweedq.broker.uploads.prefetch import pieces
from seaweedq.broker.uploads.rules import incarnation_of, object_name
from seaweedq.broker.uploads.service import Uploads
from seaweedq.coordination.records.uploads import UploadRecord
from seaweedq.errors import InvalidRequest, PayloadNotFound, UploadMismatch
from seaweedq.storage.interface import ObjectStore

PUT_BYTES = 3 * 1024 * 1024  # a put holds so much in memory: chunks on their way to the disk
CHUNK_BYTES = 1024 * 1024
DRAIN_BYTES, DRAIN_S = 1024 * 1024, 1.0
METHODS = ("GET", "HEAD", "PUT")
PUT_REFUSES = (403, 404, 405, 408, 409, 410)
GET_REFUSES = (403, 404, 405, 416)


class Received(msgspec.Struct):
    """The bytes that were received."""

    upload_id: str
    size: int
    sha256: str | None


class StreamedBody:
    """A request's body as it comes; `ended` once all of it came, or the client has gone."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._receive = receive
        self._waiting: asyncio.Timeout | None = None
        self._asks = header(scope, b"expect") is not None  # the client sends nothing before it is told to
        self.ended = content_length(scope) in (None, 0) and header(scope, b"transfer-encoding") is None

    async def __call__(self) -> Any:
        message = await self._receive()
        self.ended = not message.get("more_body", False)
        return message

    async def chunks(self, reader: RequestReader, held: Incomplete) -> AsyncIterator[bytes]:
        """Yields all of it; `held` holds the memory of what is on its way. Raises ClientGone, Overloaded, and
        RequestTimeout where nothing comes for request_timeout_s, or too little while others need the memory."""
        while not self.ended:
            message = await self._next(reader, held)
            if message["type"] == "http.disconnect":
                raise ClientGone
            if chunk := message.get("body"):
                reader.arrived(held, len(chunk))
                yield chunk

    def dismiss(self) -> None:
        """Ends the wait for bytes that come too slowly."""
        if self._waiting:
            end_now(self._waiting)

    async def _next(self, reader: RequestReader, held: Incomplete) -> Any:
        try:
            if not held.dismissed:
                async with asyncio.timeout(reader.timeout_s) as self._waiting:
                    return await self()
        except TimeoutError:
            pass
        finally:
            self._waiting = None
        raise reader.too_slow(held, f"nothing of the body arrived for request_timeout_s={reader.timeout_s:g}")

    async def drained(self) -> bool:
        """Returns whether nothing more can come, so that the connection may be used again. A little is read to that
        end: a client that still sends would otherwise see a reset connection in place of the answer."""
        left = DRAIN_BYTES
        try:
            async with asyncio.timeout(DRAIN_S):
                while not self.ended and not self._asks and left > 0:
                    left -= len((await self()).get("body", b""))
        except TimeoutError:
            pass
        return self.ended


@dataclass(frozen=True)
class UploadContent:
    """The routes, with the services that they use."""

    catalog: Catalog
    uploads: Uploads
    store: ObjectStore
    reader: RequestReader

    async def serve(self, scope: Scope, body: StreamedBody, out: Send, topic: str, upload: str) -> Answer | None:
        """Returns the answer to a request of one of METHODS, None where it was sent already. Raises Forbidden."""
        check_name(topic)
        is_put = scope["method"] == "PUT"
        await self._check(scope, "PUT" if is_put else "GET", topic, upload)
        return await (self.put(scope, body, topic, upload) if is_put else self.get(scope, body, out, topic, upload))

    async def put(self, scope: Scope, body: StreamedBody, topic: str, upload: str) -> Answer:
        """Receives the bytes of an upload: 201 once they are durable, and equal those that were announced; also where
        the same bytes come again. The URL is that of the upload's answer."""
        found = await self.catalog.known(topic)
        record = (await self.uploads.find(found, upload)).record
        _check_length(scope, upload, record)
        held = Incomplete(body.dismiss, PUT_BYTES)
        try:
            record = await self.uploads.receive(found, upload, body.chunks(self.reader, held))
        finally:
            self.reader.bodies.leave(held)
        return Answer(201, msgspec.json.encode(Received(upload, record.size, record.checked)))

    async def get(self, scope: Scope, body: StreamedBody, out: Send, topic: str, upload: str) -> Answer | None:
        """Returns a payload, or a range of it, as it was put. The URL is that of a message's reference."""
        name = object_name(topic, upload)
        try:
            size = await self.store.size(name)
        except FileNotFoundError:
            raise PayloadNotFound("the payload is not in the store", topic=topic, id=upload) from None
        read = partial(pieces, self.store, name, piece_bytes=CHUNK_BYTES)
        try:
            with self.reader.unread.streaming(2 * CHUNK_BYTES):
                stored = StoredObject(size, upload, "application/octet-stream", read)
                return await send_object(stored, scope, body, out, self.reader.settings.answer_timeout_s)
        except FileNotFoundError:  # its topic was deleted meanwhile
            raise PayloadNotFound("the payload is not in the store any more", topic=topic, id=upload) from None

    async def _check(self, scope: Scope, method: str, topic: str, upload: str) -> None:
        shown, name = query(scope), object_name(topic, upload) if incarnation_of(upload) is not None else ""
        await self.uploads.own_urls.check(method, name, shown.get("expires", ""), shown.get("token", ""))


def _check_length(scope: Scope, upload: str, record: UploadRecord) -> None:
    size = content_length(scope)
    if size is None or header(scope, b"transfer-encoding") is not None:
        raise InvalidRequest("the PUT of an upload needs a Content-Length", field="content-length")
    if size != record.size:
        detail = f"the upload was announced with {record.size} bytes, but Content-Length is {size}"
        raise UploadMismatch(detail, upload_id=upload, field="size", value=size, bound=record.size)

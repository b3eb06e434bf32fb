"""The payload of a message through a broker, for clients that cannot reach the store. It is streamed."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Response

from seaweedq.api.asgi.http import Receive, Scope, Send, send
from seaweedq.api.asgi.parameters import MAX_NUMBER, check_name, whole_number
from seaweedq.api.asgi.range_requests import StoredObject, send_object
from seaweedq.api.asgi.services import given
from seaweedq.api.bodies.request_reader import RequestReader
from seaweedq.api.openapi.document import described
from seaweedq.broker.topics.catalog import Catalog
from seaweedq.broker.uploads.message_payloads import PIECE_BYTES, Payloads
from seaweedq.errors import ChainDamaged, PayloadNotFound

PATH = "/v1/topics/{topic}/segments/{segment}/messages/{offset}/payload"
OCTETS = "application/octet-stream"
router = APIRouter(tags=["read"])
_BYTES: dict[str, Any] = {OCTETS: {"schema": {"type": "string", "format": "binary"}}}
_RANGE = {
    "name": "Range",
    "in": "header",
    "description": "one range of bytes",
    "schema": {"type": "string"},
    "example": "bytes=0-1023",
}
_SAYS = described(None, {200: _BYTES, 206: _BYTES}, (404, 409, 416), parameters=[_RANGE])


@dataclass(frozen=True)
class PayloadServices:
    """The services of this route."""

    catalog: Catalog
    payloads: Payloads
    reader: RequestReader


Services = Annotated[PayloadServices, given(PayloadServices)]


class _Payload(Response):
    """An answer that is sent chunk by chunk."""

    def __init__(self, stored: StoredObject, reader: RequestReader) -> None:
        super().__init__()
        self._stored, self._reader = stored, reader

    async def __call__(self, scope: Scope, receive: Receive, out: Send) -> None:
        try:
            with self._reader.unread.streaming(2 * PIECE_BYTES):
                answer = await send_object(self._stored, scope, receive, out, self._reader.settings.answer_timeout_s)
        except FileNotFoundError:
            raise PayloadNotFound("the payload is not in the store any more") from None
        if answer:
            await send(answer, out)


@router.get(PATH, **_SAYS)
@router.head(PATH, include_in_schema=False)
async def payload(services: Services, topic: str, segment: str, offset: str) -> Response:
    """Returns the payload of a message that was published by reference, or a range of it. Any broker answers."""
    catalog = services.catalog
    found = await catalog.known(check_name(topic))
    number = whole_number(segment, "segment", 0, MAX_NUMBER)
    at = whole_number(offset, "offset", 0, MAX_NUMBER)
    await catalog.known_segment(found, number)
    try:
        name, reference = await services.payloads.find(found, number, at)
    except ChainDamaged:  # the topic may be going, and its files with it
        await catalog.look(topic)
        catalog.check(found)
        raise
    read = partial(services.payloads.pieces, name)
    kind = _content_type(reference.content_type)
    return _Payload(StoredObject(reference.size, reference.sha256, kind, read), services.reader)


def _content_type(stated: str) -> str:
    """Returns the reference's content type, if that can stand in a header."""
    return stated if stated and stated.isascii() and stated.isprintable() else OCTETS

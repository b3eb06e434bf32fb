"""The payload of a message through a broker, for whoever cannot reach the store. Streamed, two pieces at a time."""

from typing import Any

from fastapi import APIRouter, Request, Response

from seaweedq.api.asgi.http import Receive, Scope, Send, send
from seaweedq.api.asgi.openapi import broker_of, described
from seaweedq.api.asgi.parameters import MAX_NUMBER, check_name, whole_number
from seaweedq.api.asgi.range_requests import send_object
from seaweedq.broker.broker import Broker
from seaweedq.broker.uploads.message_payloads import PIECE_BYTES
from seaweedq.coordination.keys import ID_BOUND
from seaweedq.errors import ChainDamaged, PayloadNotFound
from seaweedq.segments.rows import Reference

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


class _Payload(Response):
    """An answer that is sent piece by piece."""

    def __init__(self, broker: Broker, name: str, reference: Reference) -> None:
        super().__init__()
        self._broker, self._name, self._reference = broker, name, reference

    async def __call__(self, scope: Scope, receive: Receive, out: Send) -> None:
        broker, reference = self._broker, self._reference

        def pieces(start: int, end: int) -> Any:
            return broker.serving.payloads.pieces(self._name, start, end)

        broker.core.budget.hold(2 * PIECE_BYTES)
        try:
            kind, stall_s = _content_type(reference.content_type), broker.environment.settings.request_timeout_s
            answer = await send_object(scope, receive, out, reference.size, reference.sha256, kind, pieces, stall_s)
        except FileNotFoundError:
            raise PayloadNotFound("the payload is not in the store any more") from None
        finally:
            broker.core.budget.release(2 * PIECE_BYTES)
        if answer:
            await send(answer, out)


@router.get(PATH, **_SAYS)
@router.head(PATH, include_in_schema=False)
async def payload(request: Request, topic: str, segment: str, offset: str) -> Response:
    """The payload of a message that was published by reference, or a range of it. Any broker answers."""
    broker = broker_of(request)
    found = await broker.core.catalog.known(check_name(topic))
    number = whole_number(segment, "segment", 0, MAX_NUMBER)
    at = whole_number(offset, "offset", 0, MAX_NUMBER)
    if number < ID_BOUND and number not in broker.core.catalog.records(found):
        await broker.core.catalog.look(topic, number)  # it may have come to be a moment ago, at another broker
    broker.core.catalog.segment(found, number)
    try:
        name, reference = await broker.serving.payloads.find(found, number, at)
    except ChainDamaged:  # the topic may be going, and its files with it
        await broker.core.catalog.look(topic)
        broker.core.catalog.check(found)
        raise
    return _Payload(broker, name, reference)


def _content_type(stated: str) -> str:
    """What the reference says, if that can stand in a header."""
    return stated if stated and stated.isascii() and stated.isprintable() else OCTETS

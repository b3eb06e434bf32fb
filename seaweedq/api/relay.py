"""Requests of clients that another broker has to answer, handed on whole.

Only what may be repeated is handed on. A broker that does not answer, or says that it is not the one, is asked again,
or the next one is, until the time for it is over: then the client gets 503, never an empty page.
"""

from collections.abc import Awaitable, Callable

from fastapi import Request, Response

from seaweedq.api.http import Answer, Scope
from seaweedq.api.internal import is_peer
from seaweedq.broker.broker import Broker
from seaweedq.broker.catalog import Topic
from seaweedq.errors import NotOwner, Unavailable

PAUSE_S = 0.1
MARGIN_S = 5.0
_KEPT = {b"accept", b"content-type", b"content-encoding"}
_GIVEN = ("content-type", "next-offset", "retry-after", "content-encoding")
_NOT_THERE = (b"/problems/not-owner", b"/problems/not-ready")


async def at_owner(
    broker: Broker, request: Request, topic: Topic, segment: int, wait_s: float, here: Callable[[], Awaitable[Response]]
) -> Response:
    """Answer here if the segment is this broker's, else have its owner answer. Raises Unavailable, SegmentNotFound."""
    end_s = broker.clock.monotonic_s() + broker.settings.publish_timeout_s
    relayed = is_peer(broker, request.scope)
    while True:
        seen = topic.moved.count
        try:
            if broker.ownership.has(topic, segment) or relayed:
                return await here()
            owner = broker.catalog.segment(topic, segment)[0].owner
            answer = await hand_on(broker, request.scope, b"", broker.roster.url(owner), wait_s)
            return Response(bytes(answer.body), answer.status, dict(answer.headers))
        except Unavailable:
            left_s = end_s - broker.clock.monotonic_s()
            if relayed or left_s <= 0:
                raise
        broker.catalog.check(topic)
        if topic.moved.count == seen:
            await topic.moved.wait(min(PAUSE_S, left_s))


async def hand_on(broker: Broker, scope: Scope, content: bytes, url: str | None, wait_s: float) -> Answer:
    """The answer of the broker at `url`. Raises NotOwner where it is not the one, Unavailable where none came."""
    if url is None:
        raise NotOwner("the broker that could answer is gone")
    query = scope["query_string"].decode("latin-1")
    target = url + scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
    headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"] if k in _KEPT}
    found = await broker.peers.relay(scope["method"], target, headers, content, wait_s + MARGIN_S)
    if found.status == 503 and any(slug in found.body for slug in _NOT_THERE):
        raise NotOwner(f"{url} is not the one that can answer")
    given = {name: value for name, value in found.headers.items() if name.lower() in _GIVEN}
    return Answer(found.status, found.body, given)

"""Requests of clients that another broker has to answer, handed on whole.

Only what may be repeated is handed on. A broker that does not answer, or says that it is not the one, is asked again,
or the next one is, until the time for it is over: then the client gets 503, never an empty page.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar
from urllib.parse import urlencode

from fastapi import Request, Response

from seaweedq.api.asgi.http import Answer, Scope, query
from seaweedq.api.internal.server import is_relayed
from seaweedq.broker.broker import Broker
from seaweedq.broker.rpc.client import FORBIDDEN, other_secret
from seaweedq.broker.topics.catalog import Topic
from seaweedq.errors import ChainDamaged, NotOwner, NotReady, SubscriptionNotFound, Unavailable

PAUSE_S = 0.1
LONG_PAUSE_S = 0.5
LOOK_S = 0.5
MARGIN_S = 5.0
_KEPT = {b"accept", b"content-type"}
_GIVEN = ("content-type", "next-offset", "sealed", "successors", "retry-after", "content-encoding")
T = TypeVar("T")
_NOT_THERE = (b"/problems/not-owner", b"/problems/not-ready")


async def at_owner(
    broker: Broker,
    request: Request,
    topic: Topic,
    segment: int,
    wait_s: float,
    here: Callable[[float], Awaitable[Response]],
) -> Response:
    """Answer here if the segment is this broker's, or sealed, else have its owner answer.

    `here`, and whoever answers, get how much of `wait_s` is left. Raises Unavailable, SegmentNotFound.
    """
    clock, relayed = broker.environment.clock, is_relayed(broker, request.scope)
    end_s, give_up_s = clock.monotonic_s() + wait_s, None
    while True:
        seen, tried_s = topic.moved.count, clock.monotonic_s()
        left_s = max(0.0, end_s - tried_s)
        try:
            if broker.serving.publishing.ownership.has(topic, segment) or relayed:
                return await _unless_deleted(broker, topic, here(left_s))
            owner = broker.core.catalog.segment(topic, segment).record.owner
            answer = await hand_on(broker, _waiting(request.scope, left_s), b"", broker.core.roster.url(owner), left_s)
            return Response(bytes(answer.body), answer.status, dict(answer.headers))
        except Unavailable:
            now_s = clock.monotonic_s()
            give_up_s = give_up_s or min(now_s, tried_s + left_s) + broker.environment.settings.publish_timeout_s
            if relayed or now_s >= give_up_s:
                raise
        broker.core.catalog.check(topic)
        if topic.moved.count == seen:
            await topic.moved.wait(PAUSE_S)


async def at_dispatcher(
    broker: Broker,
    scope: Scope,
    topic: Topic,
    name: str,
    here: Callable[[float], Awaitable[Answer]],
    content: Callable[[float], bytes] = lambda left_s: b"",
    wait_s: float = 0.0,
) -> Answer:
    """Answer here if this broker dispatches the subscription, or should, else have the one that does answer.

    `here` and `content` (of what is handed on) get how much of `wait_s` is left. Raises Unavailable, what `here` does.
    """
    clock, relayed = broker.environment.clock, is_relayed(broker, scope)
    end_s, give_up_s, pause_s, in_doubt = clock.monotonic_s() + wait_s, None, PAUSE_S / 2, False
    while True:
        left_s = max(0.0, end_s - clock.monotonic_s())
        try:
            answer = await _at_dispatcher(broker, scope, topic, name, here, content, left_s, relayed)
            return Answer(204) if _was_deleted(scope, in_doubt) and answer.status == 404 else answer
        except SubscriptionNotFound:
            if _was_deleted(scope, in_doubt):
                return Answer(204)
            raise
        except Unavailable as error:
            if relayed or type(error) not in (NotOwner, Unavailable):
                raise
            in_doubt = in_doubt or type(error) is Unavailable
            now_s = clock.monotonic_s()
            give_up_s = give_up_s or now_s + broker.environment.settings.publish_timeout_s
            if now_s >= give_up_s:
                raise
        broker.serving.subscribing.assignment.doubt(topic, name)
        await asyncio.sleep(pause_s)
        broker.core.catalog.check(topic)
        pause_s = min(LONG_PAUSE_S, pause_s * 2)


async def _at_dispatcher(
    broker: Broker,
    scope: Scope,
    topic: Topic,
    name: str,
    here: Callable[[float], Awaitable[Answer]],
    content: Callable[[float], bytes],
    left_s: float,
    relayed: bool,
) -> Answer:
    if relayed or broker.serving.subscribing.dispatcher.has(topic, name):
        return await _unless_deleted(broker, topic, here(left_s))
    who = await broker.serving.subscribing.assignment.dispatcher(topic, name)
    if who == broker.joined.membership.broker:
        return await _unless_deleted(broker, topic, here(left_s))
    wait_s = left_s + broker.environment.settings.publish_timeout_s
    asking = asyncio.create_task(hand_on(broker, scope, content(left_s), broker.core.roster.url(who), wait_s))
    try:
        while not (await asyncio.wait([asking], timeout=LOOK_S))[0]:
            if broker.readiness.stopping:
                raise NotReady("the broker is stopping")
            if not broker.core.roster.alive(who):
                raise Unavailable(f"{who}, who was asked, has gone, and has not answered")
        return asking.result()
    finally:
        asking.cancel()


async def _unless_deleted(broker: Broker, topic: Topic, answer: Awaitable[T]) -> T:
    """The answer. The files of a sealed segment may go before this broker has heard that its topic is being deleted:
    then that is the error."""
    try:
        return await answer
    except ChainDamaged:
        await broker.core.catalog.look(topic.name)
        broker.core.catalog.check(topic)
        raise


def _waiting(scope: Scope, left_s: float) -> Scope:
    """The request with another `wait_s`, where it has one."""
    options = query(scope)
    if "wait_s" not in options:
        return scope
    return {**scope, "query_string": urlencode({**options, "wait_s": f"{left_s:.3f}"}).encode()}


def _was_deleted(scope: Scope, in_doubt: bool) -> bool:
    """Whether a subscription that is not there any more may have gone by this very request."""
    return in_doubt and scope["method"] == "DELETE"


async def hand_on(broker: Broker, scope: Scope, content: bytes, url: str | None, wait_s: float) -> Answer:
    """The answer of the broker at `url`. Raises NotOwner where it is not the one, Unavailable where none came."""
    if url is None:
        raise NotOwner("the broker that could answer is gone")
    query = scope["query_string"].decode("latin-1")
    target = url + scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
    headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"] if k in _KEPT}
    found = await broker.environment.peers.relay(scope["method"], target, headers, content, wait_s + MARGIN_S)
    if found.status == 503 and any(slug in found.body for slug in _NOT_THERE):
        raise NotOwner("the broker that was asked is not the one that can answer", inside=url)
    if found.status == FORBIDDEN:
        raise other_secret(url)
    given = {name: value for name, value in found.headers.items() if name.lower() in _GIVEN}
    return Answer(found.status, found.body, given)

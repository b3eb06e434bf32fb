"""Pull and ack, on bare ASGI."""

import asyncio
import re
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from seaweedq.api.asgi.http import Answer, ClientGone, Receive, Scope, body
from seaweedq.api.asgi.json_requests import decode_request
from seaweedq.api.asgi.parameters import check_name
from seaweedq.api.internal.proxy import at_dispatcher
from seaweedq.api.routes.fetch import Message
from seaweedq.broker.broker import Broker
from seaweedq.broker.subscriptions.dispatcher import Delivered
from seaweedq.broker.topics.catalog import Topic
from seaweedq.codec.message_json import dense, json_array, message_texts
from seaweedq.errors import ChainDamaged, NotOwner

MAX_WAIT_S = 30.0
MAX_PULL = 10_000
MAX_IDS = 100_000
T = TypeVar("T")
Consumer = Annotated[str, Meta(min_length=1, max_length=255)]
_ID = re.compile(r"(0|[1-9][0-9]{0,17})-(0|[1-9][0-9]{0,17})")


class PullRequest(msgspec.Struct, forbid_unknown_fields=True):
    """How many messages are wanted, how long to wait for the first one (seconds), and for whom."""

    max_messages: Annotated[int, Meta(ge=1, le=MAX_PULL)] = 100
    wait_s: Annotated[float, Meta(ge=0, le=MAX_WAIT_S)] = 0
    consumer: Consumer | None = None


class AckRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The ids to ack; with `consumer`, only those that this consumer holds."""

    ids: Annotated[list[str], Meta(max_length=MAX_IDS)]
    consumer: Consumer | None = None


class PullAnswer(msgspec.Struct):
    """Messages that are leased to the consumer now; none when the wait has ended. `attempt` counts their deliveries."""

    messages: list[Message]


class AckAnswer(msgspec.Struct):
    """`acked` counts the ids that are acked now, durably; `unknown` ones are neither leased nor acked."""

    acked: int
    unknown: list[str]


_PULL = msgspec.json.Decoder(PullRequest)
_ACK = msgspec.json.Decoder(AckRequest)


async def pull(broker: Broker, scope: Scope, receive: Receive, topic_name: str, name: str) -> Answer:
    """Lease messages to a consumer; waits for the first one."""
    async with _asked(broker, scope, receive, _PULL, topic_name, name) as (topic, wanted):
        pass  # the body's memory is not needed while waiting
    if broker.serving.subscribing.dispatcher.has(topic, name):
        with suppress(NotOwner, ChainDamaged):  # it is just being handed on, or its topic deleted
            found = await broker.serving.subscribing.dispatcher.look(topic, name, wanted.consumer, wanted.max_messages)
            if found:
                return await _given(broker, topic, found)

    async def here(left_s: float) -> Answer:
        found = await broker.serving.subscribing.dispatcher.pull(
            topic, name, wanted.consumer, wanted.max_messages, left_s
        )
        return await _given(broker, topic, found)

    def content(left_s: float) -> bytes:
        return msgspec.json.encode(msgspec.structs.replace(wanted, wait_s=left_s))

    return await _while_there(receive, at_dispatcher(broker, scope, topic, name, here, content, wanted.wait_s))


async def _given(broker: Broker, topic: Topic, found: Sequence[Delivered]) -> Answer:
    links = await broker.serving.payloads.links_of(topic, [rows for one in found for _, rows in one.pieces])
    if not broker.readiness.stopping:
        broker.readiness.check_ready()  # else another one may dispatch by now
    texts = [
        message_texts(first, rows, one.segment.id, one.segment.layout, one.attempts, links)
        for one in found
        for first, rows in dense(one.pieces)
    ]
    return Answer(200, b'{"messages":%b}' % json_array(texts))


async def ack(broker: Broker, scope: Scope, receive: Receive, topic_name: str, name: str) -> Answer:
    """Ack messages; durable when it answers."""
    async with _asked(broker, scope, receive, _ACK, topic_name, name) as (topic, wanted):

        async def here(left_s: float) -> Answer:
            return await _ack(broker, topic, name, wanted)

        return await at_dispatcher(broker, scope, topic, name, here, lambda left_s: msgspec.json.encode(wanted))


async def _ack(broker: Broker, topic: Topic, name: str, wanted: AckRequest) -> Answer:
    offsets: dict[int, list[int]] = {}
    unknown = []
    for text in wanted.ids:
        if parts := _ID.fullmatch(text):
            offsets.setdefault(int(parts[1]), []).append(int(parts[2]))
        else:
            unknown.append(text)
    judged = await broker.serving.subscribing.dispatcher.ack(topic, name, offsets, wanted.consumer)
    if not broker.readiness.stopping:
        broker.readiness.check_ready()
    unknown += [f"{segment}-{offset}" for segment, result in judged.items() for offset in result.unknown]
    return Answer(200, msgspec.json.encode({"acked": sum(r.known for r in judged.values()), "unknown": unknown}))


@asynccontextmanager
async def _asked(
    broker: Broker, scope: Scope, receive: Receive, decoder: msgspec.json.Decoder[T], topic: str, name: str
) -> AsyncIterator[tuple[Topic, T]]:
    broker.readiness.check_ready()
    check_name(topic)
    check_name(name, "subscription")
    async with body(scope, receive, broker.environment.settings, broker.core.budget) as content:
        request = decode_request(content, scope, decoder)
        yield await broker.core.catalog.known(topic), request


async def _while_there(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives; it ends with the client, so that nothing is leased to one who has gone. Raises ClientGone."""
    working, gone = asyncio.create_task(work), asyncio.create_task(_until_gone(receive))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone
    finally:
        working.cancel()
        gone.cancel()


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

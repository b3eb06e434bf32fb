"""Pull and ack, on bare ASGI."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec

from seaweedq.api.answers import json_array, message_texts
from seaweedq.api.http import Answer, Receive, Scope, body
from seaweedq.api.json_bodies import decode_request
from seaweedq.api.names import check_name
from seaweedq.api.segments import Message
from seaweedq.broker.broker import Broker
from seaweedq.broker.catalog import Topic
from seaweedq.errors import InvalidRequest

MAX_WAIT_S = 30.0
MAX_PULL = 10_000
MAX_IDS = 100_000
T = TypeVar("T")


class PullRequest(msgspec.Struct, forbid_unknown_fields=True):
    """How many messages are wanted, how long to wait for the first one (seconds), and for whom."""

    max_messages: int = 100
    wait_s: float = 0
    consumer: str | None = None


class AckRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The ids to ack; with `consumer`, only those that this consumer holds."""

    ids: list[str]
    consumer: str | None = None


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
    _check(1 <= wanted.max_messages <= MAX_PULL, "max_messages", wanted.max_messages, f"from 1 to {MAX_PULL}")
    _check(0 <= wanted.wait_s <= MAX_WAIT_S, "wait_s", wanted.wait_s, f"from 0 to {MAX_WAIT_S:g} seconds")
    _check_consumer(wanted.consumer)
    found = await broker.dispatcher.pull(topic, name, wanted.consumer, wanted.max_messages, wanted.wait_s)
    texts = [
        message_texts(first, rows, one.segment.id, one.segment.layout, one.attempts)
        for one in found
        for first, rows in one.pieces
    ]
    return Answer(200, b'{"messages":%b}' % json_array(texts))


async def ack(broker: Broker, scope: Scope, receive: Receive, topic_name: str, name: str) -> Answer:
    """Ack messages; durable when it answers."""
    async with _asked(broker, scope, receive, _ACK, topic_name, name) as (topic, wanted):
        _check(len(wanted.ids) <= MAX_IDS, "ids", len(wanted.ids), f"at most {MAX_IDS}")
        _check_consumer(wanted.consumer)
        offsets: dict[int, list[int]] = {}
        unknown = []
        for text in wanted.ids:
            segment, dash, offset = text.partition("-")
            if dash and _is_number(segment) and _is_number(offset):
                offsets.setdefault(int(segment), []).append(int(offset))
            else:
                unknown.append(text)
        judged = await broker.dispatcher.ack(topic, name, offsets, wanted.consumer)
    unknown += [f"{segment}-{offset}" for segment, result in judged.items() for offset in result.unknown]
    return Answer(200, msgspec.json.encode({"acked": sum(r.known for r in judged.values()), "unknown": unknown}))


@asynccontextmanager
async def _asked(
    broker: Broker, scope: Scope, receive: Receive, decoder: msgspec.json.Decoder[T], topic: str, name: str
) -> AsyncIterator[tuple[Topic, T]]:
    broker.check_ready()
    check_name(topic)
    check_name(name, "subscription")
    async with body(scope, receive, broker.settings, broker.budget) as content:
        request = decode_request(content, scope, decoder)
        found = broker.catalog.topic(topic)
        await broker.dispatcher.open(found, name)
        yield found, request


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18


def _check_consumer(consumer: str | None) -> None:
    if consumer is not None:
        _check(0 < len(consumer) <= 255, "consumer", f"of {len(consumer)} characters", "of 1 to 255 characters")


def _check(holds: bool, field: str, value: object, bound: str) -> None:
    if not holds:
        raise InvalidRequest(f"{field} is {value}; it must be {bound}", field=field, value=value, bound=bound)

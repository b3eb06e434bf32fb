"""What brokers ask one another, below /internal: msgpack in and out, with the cluster's secret, for nobody else."""

import hmac
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from seaweedq.api.asgi.http import Answer, Receive, Scope, body, header
from seaweedq.broker.broker import Broker
from seaweedq.broker.rpc.client import SECRET_HEADER, Trouble
from seaweedq.broker.rpc.forward_frames import decode
from seaweedq.broker.rpc.messages import BrokerStatus, EndsCall, GiveCall, SegmentCall, TopicCall
from seaweedq.broker.topics.catalog import Topic
from seaweedq.errors import Forbidden, NotOwner, RouteNotFound, SeaweedqError, UnreadableBody

PREFIX = "/internal/"
FORWARD_BYTES = 64 * 1024 * 1024  # of a body; forwards are cut at 8 MiB, and one parcel may be larger
_SECRET = SECRET_HEADER.lower().encode()
_encode = msgspec.msgpack.encode


def is_peer(broker: Broker, scope: Scope) -> bool:
    """Whether the request comes from a broker of this cluster."""
    shown = header(scope, _SECRET)
    return (
        shown is not None
        and bool(broker.environment.secret)
        and hmac.compare_digest(shown.encode(), broker.environment.secret.encode())
    )


def is_relayed(broker: Broker, scope: Scope) -> bool:
    """Whether the request was handed on by a broker of this cluster. Raises Forbidden for one of another cluster: what
    it hands on must not be handed on once more, and so round and round."""
    if is_peer(broker, scope):
        return True
    if header(scope, _SECRET) is not None:
        raise Forbidden("Seaweedq-Secret is for brokers of this cluster among themselves, and this is not theirs")
    return False


async def answer(broker: Broker, scope: Scope, receive: Receive) -> Answer:
    """The answer to a call; an error as `Trouble`."""
    if not is_peer(broker, scope):
        raise Forbidden("only brokers of this cluster may call /internal")
    work = _CALLS.get(scope["path"].removeprefix(PREFIX))
    if work is None:
        raise RouteNotFound(f"there is nothing at {scope['path'][:200]}")
    try:
        broker.readiness.check_joined()
        async with body(
            scope, receive, broker.environment.settings, broker.core.budget, limit=FORWARD_BYTES
        ) as content:
            return Answer(200, _encode(await work(broker, content)))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Answer(422, _encode(Trouble.of(UnreadableBody(str(error)))))
    except SeaweedqError as error:
        return Answer(409, _encode(Trouble.of(error)))


async def _publish(broker: Broker, content: bytes) -> Any:
    return await broker.serving.publishing.receiver.receive(decode(content))


async def _positions(broker: Broker, content: bytes) -> Any:
    call = msgspec.msgpack.decode(content, type=TopicCall)
    return await broker.serving.reading.positions.own(
        await _topic(broker, call.topic, call.incarnation), call.sizes, call.flush
    )


async def _close(broker: Broker, content: bytes) -> Any:
    call = msgspec.msgpack.decode(content, type=TopicCall)
    await broker.core.catalog.look(call.topic)
    topic = broker.core.catalog.find(call.topic)
    if topic and topic.record.incarnation == call.incarnation:
        if topic.record.state != "deleting":
            raise NotOwner(f"topic {call.topic!r} is not being deleted")
        await broker.serving.closing.close(topic)
    return True


async def _give(broker: Broker, content: bytes) -> Any:
    call = msgspec.msgpack.decode(content, type=GiveCall)
    return await broker.serving.reshaping.mover.move(
        await _topic(broker, call.topic, call.incarnation), call.segment, call.target
    )


async def _ends(broker: Broker, content: bytes) -> Any:
    call = msgspec.msgpack.decode(content, type=EndsCall)
    return await broker.serving.reading.server.ends(
        await _topic(broker, call.topic, call.incarnation), call.known, call.wait_s
    )


async def _read(broker: Broker, content: bytes) -> Any:
    call = msgspec.msgpack.decode(content, type=SegmentCall)
    return await broker.serving.reading.server.read(await _topic(broker, call.topic, call.incarnation), call)


async def _find(broker: Broker, content: bytes) -> Any:
    call = msgspec.msgpack.decode(content, type=SegmentCall)
    return await broker.serving.reading.server.find(await _topic(broker, call.topic, call.incarnation), call)


async def _size(broker: Broker, content: bytes) -> Any:
    call = msgspec.msgpack.decode(content, type=SegmentCall)
    return await broker.serving.reading.server.size_since(await _topic(broker, call.topic, call.incarnation), call)


async def _load(broker: Broker, content: bytes) -> Any:
    return broker.serving.loads.report()


async def _status(broker: Broker, content: bytes) -> Any:
    return BrokerStatus(broker.core.budget.tails, broker.serving.log.journal.unreleased_bytes)


async def _topic(broker: Broker, name: str, incarnation: int) -> Topic:
    """The topic that the other broker means. Raises NotOwner where the two see different ones."""
    found = broker.core.catalog.find(name)
    if found is None or found.record.incarnation != incarnation:
        await broker.core.catalog.look(name)
        found = broker.core.catalog.find(name)
    if found is None or found.record.incarnation != incarnation:
        raise NotOwner(f"this broker does not know that topic {name!r}")
    broker.core.catalog.check(found)
    return found


_CALLS: dict[str, Callable[[Broker, bytes], Awaitable[Any]]] = {
    "publish": _publish,
    "positions": _positions,
    "close": _close,
    "give": _give,
    "ends": _ends,
    "read": _read,
    "find": _find,
    "size": _size,
    "load": _load,
    "status": _status,
}

"""The streams of subscriptions, at any broker: the next messages of one, and its end.

The dispatcher of the subscription leases, and bounds what is in flight; the broker of the stream knows its position
alone. It asks for what comes behind that. A request that is repeated, by itself or since its client came back at
another broker, gets the same messages, as long as their lease is open.
"""

from dataclasses import dataclass, field, replace
from typing import TypeVar

from seaweedq.access.caller import NEVER_US
from seaweedq.broker.read.request_search import Asked, Target
from seaweedq.broker.rpc.client import Peers
from seaweedq.broker.rpc.messages import StreamAnswer, StreamCall
from seaweedq.broker.streams.batches import Batch, Rows, SharedRows
from seaweedq.broker.subscriptions.admin import SubscriptionAdmin
from seaweedq.broker.subscriptions.dispatcher import Dispatcher
from seaweedq.broker.subscriptions.leases import Position
from seaweedq.broker.subscriptions.pulling import Pull
from seaweedq.broker.subscriptions.relaying import DispatcherFinder
from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.uploads.message_payloads import Payloads
from seaweedq.errors import NotOwner, SubscriptionNotFound

NEXT, LEAVE = "stream-next", "stream-leave"
ANSWER_S = 5.0  # of a dispatcher that is told that a connection has left
T = TypeVar("T")


@dataclass(frozen=True)
class SubscriptionStreams:
    """The streams of one broker, and those of other brokers whose subscriptions this one dispatches."""

    admin: SubscriptionAdmin
    dispatcher: Dispatcher
    finder: DispatcherFinder
    payloads: Payloads
    peers: Peers
    rows: SharedRows = field(default_factory=SharedRows)

    async def check(self, topic: Topic, name: str) -> None:
        """Raises SubscriptionNotFound. The dispatcher is not asked: a client that comes back after its death must not
        be sent away."""
        if not self.dispatcher.has(topic, name) and not await self.admin.find(topic, name):
            raise SubscriptionNotFound(
                f"topic {topic.name!r} has no subscription {name!r}", topic=topic.name, subscription=name
            )

    async def next(self, topic: Topic, name: str, wanted: Pull, until_us: int = NEVER_US) -> Batch | None:
        """Returns the messages behind `wanted.position`, which are leased; None where there are none within `wait_s`,
        or too many are in flight. Links in them end by `until_us`. Raises SubscriptionNotFound, TopicBeingDeleted,
        Unavailable."""

        async def here(target: Target) -> Batch | None:
            return await self._next(topic, name, replace(wanted, wait_s=target.wait_s), until_us)

        async def there(target: Target) -> Batch | None:
            call = _next_call(topic, name, replace(wanted, wait_s=target.wait_s), until_us)
            found = await target.ask(self._ask(target.url, NEXT, call, StreamAnswer, target.answer_s))
            return Batch(found.lease, Rows.decode(found.rows)) if found.lease else None

        return await self.finder.search(topic, name, Asked(wanted.wait_s)).answer(here, there)

    async def leave(self, topic: Topic, name: str, position: Position, free: bool) -> None:
        """Has a connection get nothing any more; with `free` the leases of its stream end at once. Raises as `next`."""

        async def here(_: Target) -> None:
            await self.dispatcher.leave(topic, name, position, free)

        async def there(target: Target) -> None:
            call = _call(topic, name, position)
            call.free = free
            await target.ask(self._ask(target.url, LEAVE, call, bool, ANSWER_S))

        await self.finder.search(topic, name, Asked()).answer(here, there)

    async def answer_next(self, topic: Topic, call: StreamCall) -> StreamAnswer:
        """Answers `next` of another broker."""
        wanted = Pull(call.max_messages, call.wait_s, call.consumer, position=_position(call), max_bytes=call.max_bytes)
        found = await self._next(topic, call.subscription, wanted, call.links_until_us)
        return StreamAnswer(found.lease, found.rows.encoded()) if found else StreamAnswer("", b"")

    async def answer_leave(self, topic: Topic, call: StreamCall) -> bool:
        """Answers `leave` of another broker."""
        await self.dispatcher.leave(topic, call.subscription, _position(call), call.free)
        return True

    async def _next(self, topic: Topic, name: str, wanted: Pull, until_us: int) -> Batch | None:
        leased = await self.dispatcher.pull(topic, name, wanted)
        if leased.name is None or not leased.messages:
            return None
        links = await self.payloads.links_of(topic, [one.rows for one in leased.messages], until_us)
        self.finder.check_lease()
        return Batch(leased.name, self.rows.of(topic, leased.messages, links))

    async def _ask(self, url: str | None, call: str, request: StreamCall, answer: type[T], timeout_s: float) -> T:
        if url is None:
            raise NotOwner("the broker that could answer has gone")
        return await self.peers.call(url, call, request, answer, timeout_s)


def _call(topic: Topic, name: str, position: Position) -> StreamCall:
    return StreamCall(
        topic.name,
        topic.record.incarnation,
        name,
        position.stream,
        position.connection,
        position.consumer,
        position.serial,
        position.segment,
        position.offset,
        position.resumed,
        position.max_in_flight,
    )


def _next_call(topic: Topic, name: str, wanted: Pull, until_us: int) -> StreamCall:
    assert wanted.position
    call = _call(topic, name, wanted.position)
    call.max_messages, call.max_bytes, call.wait_s = wanted.max_messages, wanted.max_bytes, wanted.wait_s
    call.links_until_us = until_us
    return call


def _position(call: StreamCall) -> Position:
    begin = Position(call.stream, call.connection, call.consumer, call.max_in_flight)
    return replace(begin.at(call.serial, call.segment, call.offset), resumed=call.resumed)

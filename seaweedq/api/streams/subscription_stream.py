"""`GET /v1/topics/{topic}/subscriptions/{subscription}/stream`: messages are leased to a client as they come, up to
`max_in_flight` that are not acked. Bare ASGI.

States of a connection: opening -> sending <-> full or spent -> ended. *Sending*: one request to the dispatcher at a
time, for the messages behind the last one that was sent (broker/subscriptions/leases). It begins once the socket has
taken that: leased messages are sent at once, else their deadline would run while they wait here. *Full*:
`max_in_flight` messages are not acked, so that the dispatcher gives nothing. *Spent*: the client of a WebSocket that
counts `credits` has none; then the dispatcher is not asked, and each COMMENT_S the broker looks whether the
subscription is still there. Each message that is sent takes a credit. *Ended*: the client has gone, the subscription
was deleted, or the broker leaves; the dispatcher is told, so that no request that waits there leases anything more. The
leases of a WebSocket end with that. Those of server-sent events stay until their deadline, since EventSource comes
back. Nothing is written: after a crash of this broker the dispatcher ends those of WebSockets once the roster says so,
and the others end at their deadline.
"""

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Self

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from seaweedq.access.rights import Action
from seaweedq.api.access.origins import CLIENT
from seaweedq.api.connections.request_reader import decode_request
from seaweedq.api.handlers.acks import AckRequest, Acks, ExtendRequest, NackRequest
from seaweedq.api.handlers.pulls import MAX_PULL, check_count
from seaweedq.api.parameters import check_name, whole_number
from seaweedq.api.request import Request, Send
from seaweedq.api.routes import SOCKET, STREAM, SUBSCRIPTION, Router
from seaweedq.api.services import Parts
from seaweedq.api.streams import session as sessions
from seaweedq.api.streams.session import CHUNK_BYTES, StreamMemory, StreamSession, StreamTransport
from seaweedq.api.streams.transports import (
    LAST_ID,
    MEDIA,
    EventId,
    EventTransport,
    WebSocket,
    accept,
    check_accepted,
    id_at,
    listen,
)
from seaweedq.broker.streams import LeasedBatch, OpenStreams, SubscriptionStreams
from seaweedq.broker.subscriptions import Position, Pull, parse_lease
from seaweedq.broker.topics import Topic
from seaweedq.clock import Clock, Ids
from seaweedq.concurrency.futures import Signal
from seaweedq.errors import InvalidPositions, InvalidRequest, SeaweedqError, Unavailable, UnreadableBody
from seaweedq.traces import Traces

MAX_IN_FLIGHT, LARGEST_IN_FLIGHT = 1_000, 1_000_000
CONSUMER_CHARACTERS = 255
AGAIN_S = 0.5  # before a dispatcher that cannot answer is asked again
LEAVE_S = 2.0  # for the dispatcher to hear that a client has gone
logger = logging.getLogger(__name__)
router = Router("subscriptions")
LEASED = 'id: 5f2b8a6c.1.17\ndata: {"id":"0-17","key":"UA","value":1,"segment":0,"offset":17,"attempt":1}\n\n'
_PARAMETERS = (
    {
        "name": "consumer",
        "in": "query",
        "description": "as in a pull; a stream without this parameter is a separate consumer",
        "schema": {"type": "string", "maxLength": CONSUMER_CHARACTERS},
    },
    {
        "name": "max_in_flight",
        "in": "query",
        "description": "maximum number of unacked messages of the stream",
        "schema": {"type": "integer", "minimum": 1, "maximum": LARGEST_IN_FLIGHT, "default": MAX_IN_FLIGHT},
    },
    {
        "name": "credits",
        "in": "query",
        "description": "WebSockets: number of messages that the broker may send before the client sends more credits",
        "schema": {"type": "integer", "minimum": 0, "maximum": LARGEST_IN_FLIGHT},
    },
    LAST_ID,
    {
        "name": CLIENT,
        "in": "header",
        "description": "any value; required without Authorization, because a web page never sends it by default",
        "schema": {"type": "string"},
        "example": "curl",
    },
)


class CreditRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Lets the broker send so many messages more."""

    messages: Annotated[int, Meta(ge=1, le=LARGEST_IN_FLIGHT)]


class ClientFrame(msgspec.Struct, forbid_unknown_fields=True):
    """A message of a WebSocket's client: one of the four, and the context of its trace."""

    ack: AckRequest | UnsetType = UNSET
    nack: NackRequest | UnsetType = UNSET
    extend: ExtendRequest | UnsetType = UNSET
    credit: CreditRequest | UnsetType = UNSET
    traceparent: str = ""


VERBS = ("ack", "nack", "extend", "credit")
_CLIENT_FRAME = msgspec.json.Decoder(ClientFrame)


@dataclass(frozen=True)
class SubscriptionStreamRoute:
    """The route, with the services that it uses. `ended` is set once the broker leaves."""

    streams: SubscriptionStreams
    acks: Acks
    ended: asyncio.Event
    room: StreamMemory
    clock: Clock
    ids: Ids
    open: OpenStreams
    traces: Traces | None

    @classmethod
    def of(cls, parts: Parts) -> Self:
        streaming, process = parts.broker.streaming, parts.broker.process
        ended, room = streaming.watches.ended, parts.get(StreamMemory)
        acks = parts.get(Acks)
        rest = streaming.open, process.traces
        return cls(streaming.subscriptions, acks, ended, room, process.clock, process.ids, *rest)

    @router.route(
        "GET",
        f"{SUBSCRIPTION}/stream",
        Action.CONSUME,
        "streamSubscription",
        "Stream a subscription's messages",
        mode=STREAM,
        lasts=True,
        answers={200: {MEDIA: {"schema": {"type": "string"}, "example": LEASED}}},
        refuses=(404, 406, 409, InvalidPositions),
        parameters=_PARAMETERS,
    )
    async def serve(self, request: Request, out: Send, topic: str, name: str) -> None:
        """Leases messages to a consumer as they arrive, over server-sent events or a WebSocket. At most `max_in_flight`
        messages are unacked at a time.

        An event's data is a message as in a pull, and its id is `{lease}.{n}`. Send acks, nacks and extensions as
        separate requests, to any broker. A stream does not extend leases: a message that is not acked within
        `ack_deadline_s` is delivered again. From its third delivery on, a message arrives alone.

        With `Last-Event-ID`, any broker can continue the stream. It first sends the unacked messages after that event,
        with their ids and a new deadline, and then new messages. If the lease has ended, the stream starts at the first
        unacked message. Continue a stream under the same `consumer`; a different consumer gets 409 `lease-of-another`.
        Only one connection at a time should continue a stream. In `ordered` mode, a new stream starts with the messages
        that its `consumer` already holds, and this consumer's older streams get no messages as long as the new stream
        lasts.

        A WebSocket receives `{"messages": [...], "lease": "..."}` for each batch. The client sends `{"ack": {"ids":
        ["0-17"]}}`, `nack` or `extend`, each with the same body as the HTTP request, and optionally with `traceparent`
        beside it. It receives their answers, or `{"error": {...}}`, in the same order. When the WebSocket closes, its
        leases end immediately and count as an attempt; if the broker fails, they end after `lease_s`. With the
        parameter `credits`, each message takes a credit, and `{"credit": {"messages": 10}}` adds ten; the answer is
        `{"credits": 10}`, the number that is left.

        A request without a token needs the header `Seaweedq-Client`, with any value. WebSockets and requests from pages
        of the broker's own origin do not.
        """
        check_accepted(request)
        stream = await self._open(request, topic, name, transport := EventTransport(out))
        await transport.begin(id_at(stream.position))  # a client that loses the first batch goes on there
        try:
            with self.open.counting(stream.topic):
                await stream.session.run(stream.step, request.until_gone())
        finally:
            await stream.leave()

    @router.route(SOCKET, f"{SUBSCRIPTION}/stream", Action.CONSUME, mode=STREAM, lasts=True)
    async def serve_socket(self, request: Request, out: Send, topic: str, name: str) -> None:
        """Sends the same over a WebSocket, which takes acks, nacks and extensions; its close frees its leases."""
        stream = await self._open(request, topic, name, transport := WebSocket(out))
        await accept(request, out)
        try:
            with self.open.counting(stream.topic):
                await stream.session.run(stream.step, listen(request, transport, stream.hear))
        finally:
            await stream.leave()

    async def _open(
        self, request: Request, topic_name: str, name: str, transport: StreamTransport
    ) -> "SubscriptionStream":
        calls = self.acks.calls
        check_name(topic_name)
        check_name(name, "subscription")
        resumed = request.header(b"last-event-id")
        before = EventId.parse(resumed) if resumed else None
        options, consumer = request.query, request.query.get("consumer")
        if consumer is not None and not 1 <= len(consumer) <= CONSUMER_CHARACTERS:
            raise InvalidRequest(
                f"the consumer name must have 1 to {CONSUMER_CHARACTERS} characters, not {len(consumer)}",
                field="consumer",
                value=consumer[:100],
                bound=CONSUMER_CHARACTERS,
            )
        text = options.get("max_in_flight", str(MAX_IN_FLIGHT))
        max_in_flight = whole_number(text, "max_in_flight", 1, LARGEST_IN_FLIGHT)
        topic = await calls.catalog.require(topic_name)
        await self.streams.check(topic, name)
        position = replace(_begin(before, self.ids.nonce(), consumer, max_in_flight), frees=request.is_socket)
        session = StreamSession(self.ended, request, transport)
        return SubscriptionStream(self, topic, name, session, position, credits=_credits_of(request))


@dataclass
class SubscriptionStream:
    """One connection. `needed` is the room that the next batch takes, at least: it is not leased before. `credits` are
    the messages that may be sent, None if the client counts none."""

    route: SubscriptionStreamRoute
    topic: Topic
    name: str
    session: StreamSession
    position: Position
    needed: int = CHUNK_BYTES
    credits: int | None = None
    credited: Signal = field(default_factory=Signal)

    async def step(self) -> None:
        """Sends one batch, or waits for messages; after COMMENT_S without any it gives a sign of session."""
        route, session = self.route, self.session
        until_s = route.clock.monotonic_s() + sessions.COMMENT_S
        while not route.ended.is_set():
            has_room = await route.room.wait(session.request, self.needed, until_s)
            left_s = until_s - route.clock.monotonic_s()
            if left_s <= 0:
                await session.transport.keep_alive()
                return
            batch = await session.unless_ended(self._next(left_s)) if has_room else None
            if batch and await self._send(batch):
                return

    async def leave(self) -> None:
        """Tells the dispatcher that this connection gets nothing more. If it does not hear it, the leases end at their
        deadline."""
        with suppress(SeaweedqError, TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self.route.streams.leave(self.topic, self.name, self.position)

    async def hear(self, text: str | None) -> bytes:
        """Returns the answer to a message of the client."""
        if not text:
            raise UnreadableBody("the WebSocket message is not JSON: it is empty, or is not a text frame")
        content = text.encode()
        check_count(content)
        with self.route.acks.calls.reader.decoding_json(content):
            said = decode_request(content, None, _CLIENT_FRAME)
            named = {verb: one for verb in VERBS if (one := getattr(said, verb)) is not UNSET}
            if len(named) != 1:
                raise InvalidRequest(
                    f"the message must have exactly one of the fields ack, nack, extend and credit, not {sorted(named)}"
                )
            ((verb, wanted),) = named.items()
            if isinstance(wanted, CreditRequest):
                return self._credit(wanted.messages)
            path = f"/v1/topics/{self.topic.name}/subscriptions/{self.name}/{verb}"
            self.route.acks.calls.catalog.check(self.topic)  # as the request of its own does that acks
            request = self.session.request.derived("POST", path, headers=False)
            work, traces = self.route.acks.answer(request, self.topic, self.name, wanted), self.route.traces
            if traces is not None:
                contexts = (said.traceparent,)
                work = traces.around(work, verb, self.topic.name, contexts, "SERVER", subscription=self.name)
            found = await work
        return bytes(found.body) if found.status < 400 else b'{"error":%b}' % bytes(found.body)

    def _credit(self, count: int) -> bytes:
        """Adds credits, and returns the answer. Raises InvalidRequest."""
        if self.credits is None:
            raise InvalidRequest(
                "the stream began without the parameter `credits`, so the client cannot send credits on this stream"
            )
        if self.credits + count > LARGEST_IN_FLIGHT:
            raise InvalidRequest(
                f"the stream has {self.credits} credits; with {count} more, it would have more than "
                f"{LARGEST_IN_FLIGHT}",
                field="messages",
                value=count,
                bound=LARGEST_IN_FLIGHT,
            )
        self.credits += count
        self.credited.wake()
        return b'{"credits":%d}' % self.credits

    async def _next(self, wait_s: float) -> LeasedBatch | None:
        """Leases the next messages. A dispatcher that cannot answer is asked again: the stream lives on."""
        most = MAX_PULL if self.credits is None else min(MAX_PULL, self.credits)
        if not most:
            await self.credited.wait(wait_s)
            if not self.credits:  # the dispatcher, which would tell, is not asked
                self.route.acks.calls.catalog.check(self.topic)
                await self.route.streams.check(self.topic, self.name)
            return None
        try:
            wanted = Pull(most, wait_s, self.position.consumer, position=self.position, max_bytes=CHUNK_BYTES)
            until_us = self.session.request.caller.expires_us
            return await self.route.streams.next(self.topic, self.name, wanted, until_us)
        except Unavailable as error:
            logger.debug("the stream of subscription %s of topic %s is waiting: %s", self.name, self.topic.name, error)
            await asyncio.sleep(AGAIN_S)
            return None

    async def _send(self, batch: LeasedBatch) -> bool:
        """Sends a batch, unless it is so large that it has to wait for room of its own: it is read again then."""
        size = batch.rows.size
        if size > CHUNK_BYTES and not self.route.room.has(size):
            self.needed = size
            return False
        self.needed = CHUNK_BYTES
        _, serial = parse_lease(batch.lease) or ("", 0)
        await self.session.transport.leased(batch)
        if self.credits is not None:
            self.credits = max(0, self.credits - len(batch.rows))  # an earlier connection's messages may be more
        self.position = self.position.at(serial, *batch.rows.last)
        await asyncio.sleep(0)  # if nothing had to be waited for, others have their turn
        return True


def _credits_of(request: Request) -> int | None:
    """Returns the credits with which a stream begins. Raises InvalidRequest."""
    text = request.query.get("credits")
    if text is None:
        return None
    if not request.is_socket:
        raise InvalidRequest(
            "the parameter `credits` needs a WebSocket, because a client can send more credits only over a WebSocket",
            field="credits",
            value=text[:100],
        )
    return whole_number(text, "credits", 0, LARGEST_IN_FLIGHT)


def _begin(before: EventId | None, connection: str, consumer: str | None, max_in_flight: int) -> Position:
    """Returns the start of a connection: behind the event that its client has, or a new stream."""
    if before is None or before.stream is None:
        return Position(connection, connection, consumer or connection, max_in_flight)
    begin = Position(before.stream, connection, consumer or before.stream, max_in_flight)
    return replace(begin.at(before.serial, before.segment, before.offset), resumed=True)

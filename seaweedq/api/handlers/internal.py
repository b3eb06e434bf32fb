"""Answers other brokers' calls below /internal, in msgpack. Only brokers may use these routes. Each call is declared at
its handler, with its name and the message that it takes (broker/rpc/messages)."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import msgspec

from seaweedq.api.access.authentication import PEER_PREFIX, PeerRequests
from seaweedq.api.connections.request_reader import RequestReader
from seaweedq.api.request import Answer, Request
from seaweedq.api.routes import HOT, OWN_RIGHT, Router
from seaweedq.api.services import Parts
from seaweedq.broker.broker import Broker
from seaweedq.broker.load import FoundHistory, LoadReport
from seaweedq.broker.rpc import (
    FENCE,
    HELD,
    HOLD,
    BrokerStatus,
    EndsCall,
    ErrorMessage,
    GiveCall,
    Heartbeat,
    HeartbeatCall,
    HistoryCall,
    MarkCall,
    RecoverCall,
    SegmentCall,
    ShareCall,
    StreamCall,
    TopicCall,
    UseReport,
    WaitsCall,
    decode_forward,
)
from seaweedq.broker.streams import COUNT, LEAVE, NEXT
from seaweedq.broker.subscriptions import WAITS
from seaweedq.broker.topics import Topic
from seaweedq.errors import Forbidden, NotOwner, PeerRefused, RouteNotFound, SeaweedqError, UnreadableBody
from seaweedq.journal.holdings import FenceCall, HeldCall

HELLO = "hello"
FORWARD_BYTES = 64 * 1024 * 1024  # of a body; forwards are cut at 8 MiB, and one forwarded frame may be larger
Handler = TypeVar("Handler", bound=Callable[..., Coroutine[Any, Any, Any]])
router = Router("cluster")
_encode = msgspec.msgpack.encode


@dataclass(frozen=True, slots=True)
class _Call:
    """An internal call: its handler, the decoder of its message (None if it takes no message), and whether the handler
    takes a topic as its first argument. Brokers answer a call about a holding until the end of a stop; its handler
    takes the caller's id first, and returns bytes. One that `leases` ends with the connection: the caller has died."""

    handler: Callable[..., Coroutine[Any, Any, Any]]
    decode: Callable[[bytes], Any] | None
    has_topic: bool
    of_holding: bool
    leases: bool


_CALLS: dict[str, _Call] = {}


def _raw(content: bytes) -> bytes:
    return bytes(content)


def _answers(
    name: str, takes: Any = None, topic: bool = False, holding: bool = False, leases: bool = False
) -> Callable[[Handler], Handler]:
    """Declares a call with this name. `takes` is the message's type, or a function that decodes its bytes."""

    def declare(handler: Handler) -> Handler:
        decode = msgspec.msgpack.Decoder(takes).decode if isinstance(takes, type) else takes
        _CALLS[name] = _Call(handler, decode, topic, holding, leases)
        return handler

    return declare


@dataclass(frozen=True)
class Internal:
    """The calls by name: about a broker (including forwarded rows), about topics, about segments, and about the
    subscriptions that this broker dispatches."""

    peers: PeerRequests
    reader: RequestReader
    broker: Broker

    @classmethod
    def of(cls, parts: Parts) -> Self:
        return cls(parts.peers, parts.reader, parts.broker)

    @router.route("POST", f"{PEER_PREFIX}*", OWN_RIGHT, mode=HOT, early=True)
    async def answer(self, request: Request) -> Answer:
        """Answers a call; errors are sent as `ErrorMessage`. Raises Forbidden, RouteNotFound."""
        name = request.path.removeprefix(PEER_PREFIX)
        try:
            if name == HELLO:
                return Answer(200, _encode(self.peers.welcome(request)))
            if self.peers.is_authenticated(request):
                call = _CALLS.get(name)
                if call is None or not call.of_holding:
                    self.broker.readiness.check_joined()
                if call is None:
                    raise RouteNotFound(f"there is no internal route {name[:200]}")
                holdings = self.broker.process.journals.holdings
                limit_bytes = max(FORWARD_BYTES, holdings.limit_bytes) if call.of_holding else FORWARD_BYTES
                async with self.reader.body_of_peer(request, limit_bytes) as content:
                    asked = () if call.decode is None else (call.decode(content),)
                    if call.of_holding:
                        return Answer(200, await call.handler(self, request.sender, *asked))
                    if call.has_topic:
                        asked = (await self._topic(*asked), *asked)
                    work = call.handler(self, *asked)
                    return Answer(200, _encode(await (request.while_there(work) if call.leases else work)))
        except msgspec.DecodeError as error:
            return Answer(422, _encode(ErrorMessage.from_error(UnreadableBody(str(error)))))
        except (PeerRefused, RouteNotFound):
            raise
        except SeaweedqError as error:
            return Answer(409, _encode(ErrorMessage.from_error(error)))
        raise Forbidden("only brokers of this cluster may call /internal")

    def status(self) -> BrokerStatus:
        """Returns this broker's load: the bytes that it holds, and its rates."""
        budget, log, now_s = self.broker.budget, self.broker.log, self.broker.process.clock.monotonic_s()
        messages, size = self.broker.load.loads.totals()
        came_s = [segment.tail.oldest().at_s for segment in log.dirty if segment.tail]
        return BrokerStatus(
            budget.tails,
            log.journal.unreleased_bytes,
            budget.limit_bytes,
            budget.held,
            messages[0],
            size[0],
            max(0.0, now_s - min(came_s)) if came_s else 0.0,
            self.broker.leadership.brokers_wanted,
            next((one for one in self.broker.leadership.first_to_stop() if one != self.broker.id), ""),
        )

    @_answers("publish", decode_forward)
    async def publish(self, forwarded: Any) -> Any:
        return await self.broker.publishing.receiver.receive(forwarded)

    @_answers("load")
    async def load(self) -> LoadReport:
        return self.broker.load.loads.report()

    @_answers("use")
    async def use(self) -> UseReport:
        return UseReport.from_accounts(self.broker.accounts, self.broker.process.clock.monotonic_s())

    @_answers("share", ShareCall)
    async def share(self, call: ShareCall) -> bool:
        return self.broker.accounts.apply_shares(call.number, call.shares, self.broker.process.clock.monotonic_s())

    @_answers("status")
    async def told_status(self) -> BrokerStatus:
        return self.status()

    @_answers("greet", HeartbeatCall)
    async def heartbeat(self, call: HeartbeatCall) -> Heartbeat:
        return await self.broker.suspecting.responder.heartbeat(call.hold_s)

    @_answers("recover", RecoverCall)
    async def recover(self, call: RecoverCall) -> bool:
        return await self.broker.recovery.requested.recover(call.broker)

    @_answers(HOLD, _raw, holding=True)
    async def hold(self, caller: str, data: bytes) -> bytes:
        return _encode(self.broker.process.journals.holdings.hold(caller, data))

    @_answers(FENCE, FenceCall, holding=True)
    async def fence(self, caller: str, call: FenceCall) -> bytes:
        return _encode(self.broker.process.journals.holdings.fence(call.owner))

    @_answers(HELD, HeldCall, holding=True)
    async def held(self, caller: str, call: HeldCall) -> bytes:
        return self.broker.process.journals.holdings.held(call)

    @_answers("history", HistoryCall)
    async def history(self, call: HistoryCall) -> FoundHistory:
        return await self.broker.load.histories.here(call)

    @_answers("mark", MarkCall, topic=True)
    async def mark(self, topic: Topic, call: MarkCall) -> bool:
        return await self.broker.retaining.empty_entries.append_here(topic, call.segments)

    @_answers("positions", TopicCall, topic=True)
    async def positions(self, topic: Topic, call: TopicCall) -> Any:
        return await self.broker.reading.local_positions.positions(topic, call.sizes, call.flush)

    @_answers("close", TopicCall)
    async def close(self, call: TopicCall) -> bool:
        await self.broker.catalog.refresh(call.topic)
        topic = self.broker.catalog.get(call.topic)
        if topic and topic.record.incarnation == call.incarnation:
            if topic.record.state != "deleting":
                raise NotOwner(f"topic {call.topic!r} is not being deleted")
            await self.broker.deletion.close(topic)
        return True

    @_answers("give", GiveCall, topic=True)
    async def give(self, topic: Topic, call: GiveCall) -> bool:
        return await self.broker.reshaping.mover.move(topic, call.segment, call.target)

    @_answers("ends", EndsCall, topic=True)
    async def ends(self, topic: Topic, call: EndsCall) -> Any:
        return await self.broker.reading.server.ends(topic, call.known, call.wait_s)

    @_answers("read", SegmentCall, topic=True)
    async def read(self, topic: Topic, call: SegmentCall) -> Any:
        return await self.broker.reading.server.read(topic, call)

    @_answers("find", SegmentCall, topic=True)
    async def find(self, topic: Topic, call: SegmentCall) -> Any:
        return await self.broker.reading.server.find(topic, call)

    @_answers("size", SegmentCall, topic=True)
    async def size(self, topic: Topic, call: SegmentCall) -> Any:
        return await self.broker.reading.server.size_since(topic, call)

    @_answers(WAITS, WaitsCall)
    async def waits(self, call: WaitsCall) -> bool:
        return self.broker.subscribing.reports.receive(call)

    @_answers(NEXT, StreamCall, topic=True, leases=True)
    async def next(self, topic: Topic, call: StreamCall) -> Any:
        return await self.broker.streaming.subscriptions.answer_next(topic, call)

    @_answers(LEAVE, StreamCall, topic=True)
    async def leave(self, topic: Topic, call: StreamCall) -> Any:
        return await self.broker.streaming.subscriptions.answer_leave(topic, call)

    @_answers(COUNT, TopicCall, topic=True)
    async def count(self, topic: Topic, call: TopicCall) -> int:
        return self.broker.streaming.open.here(topic)

    async def _topic(self, call: TopicCall | EndsCall | SegmentCall | GiveCall | MarkCall | StreamCall) -> Topic:
        """Returns the topic that the other broker means. Raises NotOwner if this broker knows a different topic with
        that name, and NeedsNewerBroker if it cannot read the topic's record."""
        catalog = self.broker.catalog
        catalog.check_readable(call.topic)
        found = catalog.get(call.topic)
        if found is None or found.record.incarnation != call.incarnation:
            await catalog.refresh(call.topic)
            found = catalog.get(call.topic)
        if found is None or found.record.incarnation != call.incarnation:
            raise NotOwner(f"this broker does not know the topic {call.topic!r}")
        catalog.check(found)
        return found

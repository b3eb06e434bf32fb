"""Answers calls of other brokers below /internal: msgpack in and out, for nobody else. Each handler decodes a message
(broker/rpc/messages) and has a service answer it.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import msgspec
from msgspec.msgpack import decode

from seaweedq.api.access.authentication import PEER_PREFIX, PeerRequests
from seaweedq.api.connections.request_reader import RequestReader
from seaweedq.api.request import Answer, Request
from seaweedq.api.routes import HOT, OWN_RIGHT, Router
from seaweedq.api.services import Parts
from seaweedq.broker.broker import Broker
from seaweedq.broker.load import FoundHistory, LoadReport
from seaweedq.broker.rpc import (
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
from seaweedq.broker.streams import LEAVE, NEXT
from seaweedq.broker.subscriptions import WAITS
from seaweedq.broker.topics import Topic
from seaweedq.errors import Forbidden, NotOwner, PeerRefused, RouteNotFound, SeaweedqError, UnreadableBody

HELLO = "hello"
FORWARD_BYTES = 64 * 1024 * 1024  # of a body; forwards are cut at 8 MiB, and one forwarded frame may be larger
Call = Callable[["Internal", bytes], Awaitable[Any]]
router = Router("cluster")
_encode = msgspec.msgpack.encode


@dataclass(frozen=True)
class Internal:
    """The calls by name: of a broker as a whole with the rows that others forward to it, of topics, of segments, and of
    subscriptions that this broker dispatches."""

    peers: PeerRequests
    reader: RequestReader
    broker: Broker

    @classmethod
    def of(cls, parts: Parts) -> Self:
        return cls(parts.peers, parts.reader, parts.broker)

    @router.route("POST", f"{PEER_PREFIX}*", OWN_RIGHT, mode=HOT, early=True)
    async def answer(self, request: Request) -> Answer:
        """Returns the answer to a call; errors travel as `ErrorMessage`. Raises Forbidden, RouteNotFound."""
        name = request.path.removeprefix(PEER_PREFIX)
        try:
            if name == HELLO:
                return Answer(200, _encode(self.peers.welcome(request)))
            if self.peers.is_authenticated(request):
                return await self._answer(name, request)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return Answer(422, _encode(ErrorMessage.from_error(UnreadableBody(str(error)))))
        except (PeerRefused, RouteNotFound):
            raise
        except SeaweedqError as error:
            return Answer(409, _encode(ErrorMessage.from_error(error)))
        raise Forbidden("only brokers of this cluster may call /internal")

    async def _answer(self, name: str, request: Request) -> Answer:
        self.broker.readiness.check_joined()
        call = _CALLS.get(name)
        if call is None:
            raise RouteNotFound(f"there is no internal call {name[:200]}")
        async with self.reader.body_of_peer(request, FORWARD_BYTES) as content:
            return Answer(200, _encode(await call(self, content)))

    def status(self) -> BrokerStatus:
        """Returns what this broker holds, and what comes to it."""
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
        )

    async def _publish(self, content: bytes) -> Any:
        return await self.broker.publishing.receiver.receive(decode_forward(content))

    async def _load(self, content: bytes) -> LoadReport:
        return self.broker.load.loads.report()

    async def _use(self, content: bytes) -> UseReport:
        return UseReport.from_accounts(self.broker.accounts, self.broker.process.clock.monotonic_s())

    async def _share(self, content: bytes) -> bool:
        call = decode(content, type=ShareCall)
        return self.broker.accounts.apply_shares(call.number, call.shares, self.broker.process.clock.monotonic_s())

    async def _status(self, content: bytes) -> BrokerStatus:
        return self.status()

    async def _heartbeat(self, content: bytes) -> Heartbeat:
        return await self.broker.suspecting.responder.heartbeat(decode(content, type=HeartbeatCall).hold_s)

    async def _recover(self, content: bytes) -> bool:
        return await self.broker.recovery.requested.recover(decode(content, type=RecoverCall).broker)

    async def _history(self, content: bytes) -> FoundHistory:
        return await self.broker.load.histories.here(decode(content, type=HistoryCall))

    async def _mark(self, content: bytes) -> bool:
        call = decode(content, type=MarkCall)
        return await self.broker.retaining.empty_entries.append_here(await self._topic(call), call.segments)

    async def _positions(self, content: bytes) -> Any:
        call = decode(content, type=TopicCall)
        return await self.broker.reading.local_positions.positions(await self._topic(call), call.sizes, call.flush)

    async def _close(self, content: bytes) -> bool:
        call = decode(content, type=TopicCall)
        await self.broker.catalog.refresh(call.topic)
        topic = self.broker.catalog.get(call.topic)
        if topic and topic.record.incarnation == call.incarnation:
            if topic.record.state != "deleting":
                raise NotOwner(f"topic {call.topic!r} is not being deleted")
            await self.broker.deletion.close(topic)
        return True

    async def _give(self, content: bytes) -> bool:
        call = decode(content, type=GiveCall)
        return await self.broker.reshaping.mover.move(await self._topic(call), call.segment, call.target)

    async def _ends(self, content: bytes) -> Any:
        call = decode(content, type=EndsCall)
        return await self.broker.reading.server.ends(await self._topic(call), call.known, call.wait_s)

    async def _read(self, content: bytes) -> Any:
        call = decode(content, type=SegmentCall)
        return await self.broker.reading.server.read(await self._topic(call), call)

    async def _find(self, content: bytes) -> Any:
        call = decode(content, type=SegmentCall)
        return await self.broker.reading.server.find(await self._topic(call), call)

    async def _size(self, content: bytes) -> Any:
        call = decode(content, type=SegmentCall)
        return await self.broker.reading.server.size_since(await self._topic(call), call)

    async def _waits(self, content: bytes) -> bool:
        return self.broker.subscribing.reports.receive(decode(content, type=WaitsCall))

    async def _next(self, content: bytes) -> Any:
        call = decode(content, type=StreamCall)
        return await self.broker.streaming.subscriptions.answer_next(await self._topic(call), call)

    async def _leave(self, content: bytes) -> bool:
        call = decode(content, type=StreamCall)
        return await self.broker.streaming.subscriptions.answer_leave(await self._topic(call), call)

    async def _topic(self, call: TopicCall | EndsCall | SegmentCall | GiveCall | MarkCall | StreamCall) -> Topic:
        """Returns the topic that the other broker means. Raises NotOwner if this broker knows a different one,
        NeedsNewerBroker where it cannot read that one."""
        catalog = self.broker.catalog
        catalog.check_readable(call.topic)
        found = catalog.get(call.topic)
        if found is None or found.record.incarnation != call.incarnation:
            await catalog.refresh(call.topic)
            found = catalog.get(call.topic)
        if found is None or found.record.incarnation != call.incarnation:
            raise NotOwner(f"this broker does not know that topic {call.topic!r}")
        catalog.check(found)
        return found


_CALLS: Mapping[str, Call] = {
    "publish": Internal._publish,
    "load": Internal._load,
    "use": Internal._use,
    "share": Internal._share,
    "status": Internal._status,
    "greet": Internal._heartbeat,
    "recover": Internal._recover,
    "history": Internal._history,
    "mark": Internal._mark,
    "positions": Internal._positions,
    "close": Internal._close,
    "give": Internal._give,
    "ends": Internal._ends,
    "read": Internal._read,
    "find": Internal._find,
    "size": Internal._size,
    WAITS: Internal._waits,
    NEXT: Internal._next,
    LEAVE: Internal._leave,
}

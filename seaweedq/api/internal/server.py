"""Answers calls of other brokers below /internal: msgpack in and out, for nobody else."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from seaweedq.api.asgi.http import Answer, Receive, Scope
from seaweedq.api.bodies.request_reader import RequestReader
from seaweedq.api.internal.peer_requests import PREFIX, PeerRequests
from seaweedq.broker.readiness import Readiness
from seaweedq.broker.rpc.client import ErrorMessage
from seaweedq.errors import Forbidden, PeerRefused, RouteNotFound, SeaweedqError, UnreadableBody

HELLO = "hello"
FORWARD_BYTES = 64 * 1024 * 1024  # of a body; forwards are cut at 8 MiB, and one forwarded frame may be larger
Call = Callable[[bytes], Awaitable[Any]]
_encode = msgspec.msgpack.encode


class InternalServer:
    """Answers calls. `calls` returns the handlers by name, once the broker is ready."""

    def __init__(
        self,
        peers: PeerRequests,
        readiness: Readiness,
        reader: RequestReader,
        calls: Callable[[], Mapping[str, Call]],
    ) -> None:
        self._peers = peers
        self._readiness = readiness
        self._reader = reader
        self._calls = calls

    async def answer(self, scope: Scope, receive: Receive) -> Answer:
        """Returns the answer to a call; errors travel as `ErrorMessage`. Raises Forbidden, RouteNotFound."""
        name = scope["path"].removeprefix(PREFIX)
        try:
            if name == HELLO:
                return Answer(200, _encode(self._peers.welcome(scope)))
            if self._peers.authenticated(scope):
                return await self._answer(name, scope, receive)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return Answer(422, _encode(ErrorMessage.of(UnreadableBody(str(error)))))
        except (PeerRefused, RouteNotFound):
            raise
        except SeaweedqError as error:
            return Answer(409, _encode(ErrorMessage.of(error)))
        raise Forbidden("only brokers of this cluster may call /internal")

    async def _answer(self, name: str, scope: Scope, receive: Receive) -> Answer:
        self._readiness.check_joined()
        call = self._calls().get(name)
        if call is None:
            raise RouteNotFound(f"there is no internal call {name[:200]}")
        async with self._reader.body_of_peer(scope, receive, FORWARD_BYTES) as content:
            return Answer(200, _encode(await call(content)))
